"""Checks of single records: who may see them, where they are, and whether any is missing."""

from __future__ import annotations

from collections.abc import Iterator

from faults.facts import Anomaly, Facts
from faults.history import Operation


def check_readers(facts: Facts) -> Iterator[Anomaly]:
    """What was read was sent, before, by someone who had asked to commit and did not fail."""
    for (key, value), readers in facts.readers.items():
        if (key, value) not in facts.writers:
            yield Anomaly("phantom-read", f"{value} of {key} was never sent; {readers[0]}")
            continue
        writer, _ = facts.writers[key, value]
        for reader in readers:
            kind = _wrong_read(facts, writer, reader)
            if kind is not None:
                yield Anomaly(kind, f"{value} of {key}, sent by {writer}, read by {reader}")
                break


def _wrong_read(facts: Facts, writer: Operation, reader: Operation) -> str | None:
    if reader.last_seen < writer.start:
        return "future-read"
    if not facts.is_committed_only:
        return None
    if writer is reader:
        return "precommitted-read"
    if writer.outcome == "fail":
        return "aborted-read"
    if writer.is_transaction and (
        writer.commit_start is None or reader.last_seen < writer.commit_start
    ):
        return "uncommitted-read"
    return None


def check_places(facts: Facts) -> Iterator[Anomaly]:
    """One record at an offset, one offset of a record, and that is the one its sender was told."""
    for (key, offset), values in facts.values_at.items():
        if len(values) > 1:
            yield Anomaly("inconsistent-offsets", f"{key} at {offset} has {sorted(values)}")
    for (key, value), offsets in facts.offsets_of.items():
        if len(offsets) > 1:
            yield Anomaly("duplicate", f"{value} of {key} stands at {sorted(offsets)}")
    acknowledged: dict[tuple[str, int], str] = {}
    for (key, value), (operation, send) in facts.writers.items():
        if send.offset is None or operation.outcome != "ok":
            continue
        offsets = facts.offsets_of.get((key, value), {send.offset})
        if send.offset not in offsets:
            yield Anomaly(
                "offset-mismatch",
                f"{value} of {key} stands at {sorted(offsets)}, its sender was told {send.offset}",
            )
        other = acknowledged.setdefault((key, send.offset), value)
        if other != value:
            yield Anomaly(
                "inconsistent-offsets", f"{key} at {send.offset} was told for {other} and {value}"
            )


def check_losses(facts: Facts) -> Iterator[Anomaly]:
    """What was acknowledged is there, and what was read stays."""
    for record, (operation, send) in facts.writers.items():
        key, value = record
        if operation.outcome == "ok" and not facts.is_visible(record):
            highest = facts.visible.get(key, [-1])[-1]
            is_passed = send.offset is not None and send.offset < highest
            kind = "lost-write" if key in facts.drained or is_passed else "unseen"
            yield Anomaly(kind, f"{value} of {key}, sent by {operation}, offset {send.offset}")
    for (key, value), readers in facts.readers.items():
        is_lasting = facts.is_committed_only or _is_lasting(facts, key, value)
        if key in facts.drained and value not in facts.drained[key] and is_lasting:
            yield Anomaly("vanished-record", f"{value} of {key}, read by {readers[0]}")


def _is_lasting(facts: Facts, key: str, value: str) -> bool:
    return (key, value) in facts.writers and facts.writers[key, value][0].outcome == "ok"


def check_atomicity(facts: Facts) -> Iterator[Anomaly]:
    """A transaction is visible as a whole or not at all."""
    if not facts.is_committed_only:
        return
    for operation in facts.history.operations:
        if not operation.is_transaction or not operation.sends:
            continue
        there = [send for send in operation.sends if facts.is_visible((send.key, send.value))]
        missing = [
            send
            for send in operation.sends
            if send.key in facts.drained and send.value not in facts.drained[send.key]
        ]
        if there and missing:
            yield Anomaly(
                "torn-transaction",
                f"{operation}: {there[0].value} of {there[0].key} is there, "
                f"{missing[0].value} of {missing[0].key} is not",
            )
