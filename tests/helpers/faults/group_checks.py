"""Checks of consumer groups and transactional ids: who worked on what, and who still might."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from faults.facts import Anomaly, Facts
from faults.history import Operation

Place = tuple[str, str]
"""(group, key)."""


def check_sources(facts: Facts) -> Iterator[Anomaly]:
    """Each input has one visible output, below the committed offset and nowhere else."""
    if not facts.is_committed_only:
        return
    outputs: dict[tuple[str, str], list[str]] = defaultdict(list)
    groups: dict[tuple[str, str], str] = {}
    for record, (operation, send) in facts.writers.items():
        if send.source is not None and facts.is_visible(record):
            outputs[send.source].append(f"{send.value} of {send.key}")
            groups[send.source] = operation.group or ""
    for (key, value), copies in outputs.items():
        if len(copies) > 1:
            yield Anomaly("double-process", f"{value} of {key} became {', '.join(copies)}")
        if (key, value) not in facts.readers:
            yield Anomaly("phantom-read", f"{copies[0]} came from {value} of {key}, never seen")
    yield from _check_final_offsets(facts, set(outputs))


def _check_final_offsets(facts: Facts, done: set[tuple[str, str]]) -> Iterator[Anomaly]:
    """At the end, exactly the visible inputs below the committed offset have their output."""
    finals = _final_offsets(facts)
    with_sources = {
        (operation.group, key)
        for operation in facts.history.operations
        if any(send.source is not None for send in operation.sends)
        for key in operation.offsets
    }
    for (group, key), committed in finals.items():
        if key not in facts.drained or (group, key) not in with_sources:
            continue
        for value in facts.drained[key]:
            offset = min(facts.offsets_of[key, value])
            if offset < committed and (key, value) not in done:
                yield Anomaly(
                    "consume-skip",
                    f"{group} committed {committed} of {key}, {value} at {offset} has no output",
                )
            if offset >= committed and (key, value) in done:
                yield Anomaly(
                    "torn-offsets",
                    f"{value} of {key} at {offset} has its output, "
                    f"but {group} committed only {committed}",
                )


def _final_offsets(facts: Facts) -> dict[Place, int]:
    """What groups had committed by the last look, taken by a process that drained keys."""
    drainers = {op.process for op in facts.history.operations if op.function == "drained"}
    finals: dict[Place, int] = {}
    for operation in facts.history.operations:
        if _is_fetch(operation) and operation.process in drainers:
            for key, offset in operation.value.items():
                finals[operation.group or "", key] = offset or 0
    return finals


def _is_fetch(operation: Operation) -> bool:
    return operation.function == "committed" and operation.outcome == "ok"


def check_consumed(facts: Facts) -> Iterator[Anomaly]:
    """No two transactions of a group that are known to have committed consumed one record."""
    consumed: dict[tuple[str, str, int], Operation] = {}
    for operation in facts.history.operations:
        if operation.group is None or not facts.is_committed_only or not _is_done(facts, operation):
            continue
        for key, offset, _ in operation.reads():
            other = consumed.setdefault((operation.group, key, offset), operation)
            if other is not operation:
                yield Anomaly("double-consume", f"{key} at {offset}: {other} and {operation}")


def _is_done(facts: Facts, operation: Operation) -> bool:
    """Whether a transaction is known to have committed."""
    return operation.outcome == "ok" or any(
        facts.is_visible((send.key, send.value)) for send in operation.sends
    )


def check_fetched_offsets(facts: Facts) -> Iterator[Anomaly]:
    """A fetched offset was committed by someone who did not fail, and is the newest known."""
    commits: dict[Place, list[tuple[int, Operation]]] = defaultdict(list)
    fetches: dict[Place, list[tuple[int, Operation]]] = defaultdict(list)
    for operation in facts.history.operations:
        if operation.is_transaction and operation.group is not None:
            for key, offset in operation.offsets.items():
                commits[operation.group, key].append((offset, operation))
        elif _is_fetch(operation):
            for key, fetched in operation.value.items():
                fetches[operation.group or "", key].append((fetched or 0, operation))
    for place, found in fetches.items():
        yield from _check_fetches(facts, place, found, commits.get(place, []))


def _check_fetches(
    facts: Facts,
    place: Place,
    fetches: list[tuple[int, Operation]],
    commits: list[tuple[int, Operation]],
) -> Iterator[Anomaly]:
    group, key = place
    asked: dict[int, float] = {0: -math.inf}
    for offset, commit in commits:
        if commit.may_commit and commit.commit_start is not None:
            asked[offset] = min(asked.get(offset, math.inf), commit.commit_start)
    known = [(commit.end, offset) for offset, commit in commits if commit.outcome == "ok"]
    known += [(fetch.end, offset) for offset, fetch in fetches]
    known.sort()
    newest, place_in_known = 0, 0
    for offset, fetch in sorted(fetches, key=lambda item: item[1].start):
        while place_in_known < len(known) and known[place_in_known][0] < fetch.start:
            newest = max(newest, known[place_in_known][1])
            place_in_known += 1
        if fetch.end < asked.get(offset, math.inf):
            yield Anomaly("aborted-offset", f"{group} {key}: {offset} fetched by {fetch}")
        if offset < newest:
            yield Anomaly(
                "stale-offset", f"{group} {key}: {offset} fetched by {fetch}, {newest} was known"
            )


def check_fencing(facts: Facts) -> Iterator[Anomaly]:
    """After an id was taken over nobody else commits with it; no two inits get the same epoch.

    Only readers of committed data tell which transactions committed. The commit of a transaction
    that wrote nothing changes nothing and asks nobody, so it may succeed after any takeover.
    """
    if not facts.is_committed_only:
        return
    inits: dict[str, list[Operation]] = defaultdict(list)
    epochs: dict[tuple[int, int], Operation] = {}
    for operation in facts.history.operations:
        if operation.function != "init" or operation.transactional_id is None:
            continue
        inits[operation.transactional_id].append(operation)
        if operation.outcome == "ok" and operation.value is not None:
            token = (operation.value[0], operation.value[1])
            other = epochs.setdefault(token, operation)
            if other is not operation:
                yield Anomaly("token-reuse", f"{token} was given to {other} and to {operation}")
    for operation in facts.history.operations:
        has_written = bool(operation.sends or operation.offsets)
        if has_written and operation.is_transaction and operation.commit_start is not None:
            own = inits.get(operation.transactional_id or "", [])
            yield from _check_zombie(facts, operation, own)


def _check_zombie(facts: Facts, operation: Operation, inits: list[Operation]) -> Iterator[Anomaly]:
    """A commit that was asked for after another process took the id over must not succeed."""
    assert operation.commit_start is not None
    mine = [init for init in inits if init.process == operation.process]
    own_end = max((init.end for init in mine if init.start < operation.start), default=-math.inf)
    for init in inits:
        is_takeover = (
            init.process != operation.process
            and init.outcome == "ok"
            and init.start > own_end
            and init.end < operation.commit_start
        )
        if is_takeover and _is_done(facts, operation):
            yield Anomaly("zombie-commit", f"{operation} committed after {init}")
            return
