"""A simulated history as a fault campaign's JSON lines, for a checker unaware of the simulator.

Each producer object is a process, as is each session of a reader and each plain record; a run of a
distributed write is one transaction, whose tasks are each ordered but not among each other. Times
are the ticks of the simulation's total order. Only what read_committed readers saw is exported.
A poll is said to have begun when the previous one ended, which claims no more than is known.
"""

from __future__ import annotations

import copy
import dataclasses
import heapq
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from faults.checker import Verdict, check
from faults.history import Json, build_history
from sim_history import FOREVER, Claim, Facts, History, Outcome, ReadRecord, SentRecord, Write
from sim_stage import PROCESS_TARGET

from oncelog.storage.model import IsolationLevel, TopicPartition

COMMITTED: Final = IsolationLevel.READ_COMMITTED
LAST_READER: Final = "the last reader"
META: Final[Json] = {
    "type": "meta",
    "isolation": "read_committed",
    "rollback": True,
    "rebalance_log": False,
    "commit_marks": True,
    "shared_clock": True,
}
_OUTCOMES: Final = {Outcome.OK: "ok", Outcome.FAIL: "fail", Outcome.UNKNOWN: "info"}


def exported(history: History) -> list[Json]:
    """The lines, those of each process in order."""
    facts = Facts(history)
    history = _without_removals(facts)
    told = _values(facts)
    lines = [META]
    for claim in history.claims:
        if claim.tells_token or claim.is_of_kafka:
            lines += _init(claim.owner, claim, claim.ended_at)
    begun = _runs_begun(history)
    for write in history.writes:
        if write.records or write.offsets:
            lines += (
                _plain(write)
                if write.transactional_id is None
                else _written(facts, write, told, begun.get(write.owner))
            )
    lines += _sessions(history)
    for number, fetch in enumerate(history.committed_offsets):
        lines += _operation(
            f"fetcher {number}",
            "committed",
            (fetch.started_at, fetch.ended_at),
            value={str(fetch.topic_partition): fetch.offset},
            group=fetch.group,
        )
    lines += _last_reader(history)
    return lines


def _without_removals(facts: Facts) -> History:
    """The history but for partitions that records were removed from: the form has no such thing."""
    kept = copy.copy(facts.history)

    def is_kept(item: SentRecord | ReadRecord) -> bool:
        return not facts.is_removed_from(item.topic_partition)

    kept.writes = [
        dataclasses.replace(write, records=list(filter(is_kept, write.records)))
        for write in kept.writes
    ]
    kept.reads = list(filter(is_kept, kept.reads))
    kept.final = {
        place: placed for place, placed in kept.final.items() if not facts.is_removed_from(place[0])
    }
    return kept


def judged(history: History) -> Verdict:
    """What the checker of the fault campaign says of a simulated history."""
    return check(build_history(exported(history)))


def write_history(history: History, path: Path) -> None:
    """Write the lines to a file."""
    path.write_text("".join(f"{json.dumps(line)}\n" for line in exported(history)))


# --- writing ----------------------------------------------------------------------------------


def _written(
    facts: Facts,
    write: Write,
    told: Mapping[tuple[TopicPartition, int], str],
    claim: Claim | None,
) -> Iterator[Json]:
    """One transaction: a line before each record, one before the commit, one at the end.

    ``claim``: that of its run, if it is of one.
    """
    is_run = any("/" in record.value and _member(record) != write.owner for record in write.records)
    process = f"{write.owner} {write.name}" if is_run else write.owner
    if claim is not None and write.commit_started_at is not None:
        yield from _init(process, claim, claim.started_at)
    steps: list[list[Any]] = []
    started_at = min([write.started_at, *(record.sent_at for record in write.records)])
    if claim is not None:
        # The transaction of a run begins with its first member; its rows are read before that.
        # A repeated claim may be answered when the commit is already on its way.
        claimed_at = min(claim.ended_at, write.commit_started_at or claim.ended_at)
        started_at = max(started_at, claimed_at)
    yield _line("invoke", process, started_at, f="txn", value=[], txn_id=write.transactional_id)
    if not is_run:
        for record in write.records:
            steps.append(_step(record, told))
            yield _line("more", process, record.sent_at, value=list(steps))
    final = [_step(record, told, is_final=True) for record in _ordered(facts, write.records)]
    last_at = max([started_at, *(record.sent_at for record in write.records)])
    if is_run and write.ended_at is None:
        yield _line("more", process, last_at, value=final)
    if write.commit_started_at is not None:
        offsets = {str(position[1]): offset for position, offset in write.offsets.items()}
        groups = [position[0] for position in write.offsets]
        commits = {"commits": {"group": groups[0], "offsets": offsets}} if groups else {}
        yield _line("commit", process, write.commit_started_at, **commits)
    if write.ended_at is not None:
        yield _line(
            _OUTCOMES[write.outcome],
            process,
            max(write.ended_at, last_at),
            f="txn",
            value=final,
        )


def _runs_begun(history: History) -> dict[str, Claim]:
    """The first claim of each run. Before that it had begun, and so taken over its id."""
    first: dict[str, Claim] = {}
    for claim in sorted(history.claims, key=lambda claim: claim.started_at):
        if not claim.tells_token and not claim.is_of_kafka:
            first.setdefault(claim.owner, claim)
    return first


def _init(process: str, claim: Claim, ended_at: int) -> Iterator[Json]:
    return _operation(
        process,
        "init",
        (claim.started_at, ended_at),
        value=[claim.producer_id, claim.producer_epoch],
        txn_id=claim.transactional_id,
    )


def _plain(write: Write) -> Iterator[Json]:
    """One record without a transaction; only its own line can tell that it was answered."""
    (record,) = write.records
    process = f"{write.owner} {write.name}"
    fields = {"f": "send", "txn": False}
    yield _line("invoke", process, record.sent_at, value=[_step(record, {})], **fields)
    if write.ended_at is not None:
        value = [_step(record, {}, is_final=True)]
        yield _line(_OUTCOMES[write.outcome], process, write.ended_at, value=value, **fields)


def _ordered(facts: Facts, records: Iterable[SentRecord]) -> list[SentRecord]:
    """The records so that each member's are in its order, members merged by where they stand."""
    by_member: dict[str, list[SentRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.sent_at):
        by_member[_member(record)].append(record)
    if len(by_member) == 1:
        return next(iter(by_member.values()))
    queues: dict[TopicPartition, list[list[SentRecord]]] = defaultdict(list)
    for sent in by_member.values():
        for topic_partition in {record.topic_partition: None for record in sent}:
            queues[topic_partition].append(
                [record for record in sent if record.topic_partition == topic_partition]
            )
    return [
        record
        for queue in queues.values()
        for record in heapq.merge(*queue, key=lambda record: facts.final_offset(record) or 0)
    ]


def _member(record: SentRecord) -> str:
    return record.value.partition("/")[0]


def _step(
    record: SentRecord,
    told: Mapping[tuple[TopicPartition, int], str],
    *,
    is_final: bool = False,
) -> list[Any]:
    step: list[Any] = ["send", str(record.topic_partition), record.value]
    if is_final or record.source is not None:
        step.append(record.offset if is_final else None)
    # Of one input the form knows one output: that of the copiers.
    is_copy = record.topic_partition.topic != PROCESS_TARGET
    if is_copy and record.source is not None and record.source in told:
        step.append([str(record.source[0]), told[record.source]])
    return step


def _values(facts: Facts) -> dict[tuple[TopicPartition, int], str]:
    """What was read as committed at each place: copies name the value that they are made from."""
    return {
        (read.topic_partition, read.offset): read.value
        for read in facts.reads_and_finals(COMMITTED)
    }


# --- reading ----------------------------------------------------------------------------------


def _sessions(history: History) -> Iterator[Json]:
    sessions: dict[tuple[str, int], list[ReadRecord]] = defaultdict(list)
    for read in history.reads:
        if read.isolation is COMMITTED:
            sessions[read.reader, read.session].append(read)
    for (reader, session), reads in sessions.items():
        process = f"{reader} session {session}"
        keys = sorted({str(read.topic_partition) for read in reads})
        yield from _operation(process, "assign", (0, 0), value=keys)
        before = 0
        for read in reads:
            found = {str(read.topic_partition): [[read.offset, read.value]]}
            times = (before, read.at)
            yield from _operation(process, "poll", times, value=[["poll", found]], txn=False)
            before = read.at


def _last_reader(history: History) -> Iterator[Json]:
    """After the quiet: all partitions, and where groups stand."""
    final = {
        str(topic_partition): [[offset, value] for offset, value in placed]
        for (topic_partition, level), placed in history.final.items()
        if level is COMMITTED
    }
    times = (FOREVER, FOREVER)
    keys = list(final)
    if not keys:
        return
    yield from _operation(LAST_READER, "assign", times, value=keys, seek_to_beginning=True)
    yield from _operation(LAST_READER, "poll", times, value=[["poll", final]], txn=False)
    yield from _operation(LAST_READER, "drained", times, value=keys)
    groups: dict[str, dict[str, int | None]] = defaultdict(dict)
    for (group, topic_partition), offset in history.final_positions.items():
        groups[group][str(topic_partition)] = offset
    for group, offsets in groups.items():
        yield from _operation(LAST_READER, "committed", times, value=offsets, group=group)


# --- lines ------------------------------------------------------------------------------------


def _operation(
    process: str, function: str, times: tuple[int, int], *, value: object, **fields: object
) -> Iterator[Json]:
    """An operation that succeeded: both of its lines."""
    asked = [["poll"]] if function == "poll" else value
    yield _line("invoke", process, times[0], f=function, value=asked, **fields)
    yield _line("ok", process, times[1], f=function, value=value, **fields)


def _line(kind: str, process: str, time: int, **fields: object) -> Json:
    return {"type": kind, "process": process, "time": time, **fields}
