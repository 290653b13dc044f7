"""Checkers of a finished history: fences, commit tokens, consumer offsets, what a commit promises.

See ``sim_checkers`` for those about single records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from sim_checkers import COMMITTED, RECORD_CHECKERS, Checker, Violation, check_with
from sim_history import FOREVER, Claim, Facts, History, Outcome, Position, SentRecord, Write

from oncelog.storage.model import IsolationLevel, TopicPartition


class FencedCommits(Checker):
    """A producer, or a run, that committed after its successor had taken the id over."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        claims = _claims_by_id(facts.history)
        for write in facts.history.writes:
            if write.transactional_id is None or write.commit_started_at is None:
                continue
            if facts.is_committed(write) is not True:
                continue
            known = claims[write.transactional_id]
            own = [claim.ended_at for claim in known if claim.owner == write.owner]
            last_own = max(own, default=FOREVER)
            for claim in known:
                is_successor = claim.owner != write.owner and claim.started_at > last_own
                if is_successor and claim.ended_at < write.commit_started_at:
                    yield self.found(f"{write} committed although {claim}", write.transactional_id)


class ReusedEpochs(Checker):
    """One producer id and epoch for two owners, or an epoch that fell."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        owners: dict[tuple[int, int], Claim] = {}
        by_producer: dict[int, list[Claim]] = defaultdict(list)
        for claim in facts.history.claims:
            key = (claim.producer_id, claim.producer_epoch)
            if key in owners:
                yield self.found(f"{claim}, and {owners[key]}", claim.transactional_id)
            owners[key] = claim
            for earlier in by_producer[claim.producer_id]:
                if (
                    earlier.ended_at < claim.started_at
                    and earlier.producer_epoch >= claim.producer_epoch
                ):
                    yield self.found(f"{claim} after {earlier}", claim.transactional_id)
            by_producer[claim.producer_id].append(claim)


class WrongTokens(Checker):
    """A commit token told that is not the one of the last committed transaction."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        claims = _claims_by_id(facts.history)
        commits: dict[str, list[tuple[Write, bool, int]]] = defaultdict(list)
        for write in facts.history.writes:
            committed = facts.is_committed(write)
            is_empty = not (write.records or write.offsets or write.token)
            if write.transactional_id is None or committed is False or is_empty:
                continue
            if write.commit_started_at is not None:
                ended_at = _decided_by(write, claims[write.transactional_id])
                commits[write.transactional_id].append((write, committed is True, ended_at))
        for claim in facts.history.claims:
            if not claim.tells_token:
                continue
            possible = _possible_tokens(claim, commits[claim.transactional_id])
            if claim.token not in possible:
                yield self.found(
                    f"{claim} and was told {claim.token!r}; possible were "
                    f"{sorted(map(repr, possible))}",
                    claim.transactional_id,
                )


class RepeatedTokens(Checker):
    """Two committed writes of one id under one token: what it names was written twice.

    Only for tokens that runs carry: these are refused once they are committed.
    """

    def check(self, facts: Facts) -> Iterator[Violation]:
        first: dict[tuple[str, bytes], Write] = {}
        for write in facts.history.writes:
            if write.transactional_id is None or not write.token or not write.records:
                continue
            if facts.is_committed(write) is not True:
                continue
            key = (write.transactional_id, write.token)
            if key in first:
                yield self.found(
                    f"{write} and {first[key]} both wrote {write.token!r}", write.transactional_id
                )
            first.setdefault(key, write)


class ShutOutWrites(Checker):
    """A distributed write that could not begin, enlist or end although nothing was in its way."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        for refusal in facts.history.shut_out:
            yield self.found(f"after the quiet a write was refused: {refusal}", refusal)


class UnreadableCommits(Checker):
    """A commit that answered "visible", and an end of partition, asked for later, below it.

    Only the open transaction of another may hold readers back, from its first record on.
    """

    def check(self, facts: Facts) -> Iterator[Violation]:
        commits: dict[TopicPartition, list[tuple[int, int, Write]]] = defaultdict(list)
        for write in facts.history.writes:
            if write.outcome is Outcome.OK and write.is_visible and write.ended_at is not None:
                for record in write.records:
                    offset = facts.final_offset(record)
                    if offset is not None:
                        commits[record.topic_partition].append((write.ended_at, offset, write))
        holders = _records_by_place(facts)
        for end in facts.history.end_offsets:
            if end.isolation is not COMMITTED:
                continue
            holder = holders.get((end.topic_partition, end.offset))
            if holder is not None and _may_be_open(holder, end.started_at):
                continue
            if holder is None and facts.is_removed_from(end.topic_partition):
                # Who held readers back there may be gone.
                continue
            for ended_at, offset, write in commits[end.topic_partition]:
                if ended_at < end.started_at and offset >= end.offset:
                    yield self.found(
                        f"{write} answered visible, has offset {offset} of {end.topic_partition}, "
                        f"and its end was told as {end.offset} at {end.started_at}; there stands "
                        f"{holder and holder.write}",
                        write.transactional_id,
                        end.topic_partition,
                    )


class EndsGoBack(Checker):
    """The end of a partition told lower than before."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        highest: dict[tuple[TopicPartition, IsolationLevel], list[tuple[int, int]]] = {}
        for end in sorted(facts.history.end_offsets, key=lambda item: item.started_at):
            known = highest.setdefault((end.topic_partition, end.isolation), [])
            before = max((offset for at, offset in known if at < end.started_at), default=0)
            if end.offset < before:
                yield self.found(f"{end} after the end was told as {before}", end.topic_partition)
            known.append((end.ended_at, end.offset))


class WrongOffsets(Checker):
    """A fetched group offset that no write could have committed, or older than a known commit."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        commits = _offset_commits(facts.history)
        fetches = [
            ((fetch.group, fetch.topic_partition), fetch.offset, fetch.started_at, fetch.ended_at)
            for fetch in facts.history.committed_offsets
        ]
        fetches += [
            (position, offset, FOREVER, FOREVER)
            for position, offset in facts.history.final_positions.items()
        ]
        for position, offset, started_at, ended_at in fetches:
            known = commits[position]
            possible = {
                value
                for write, value in known
                if (write.commit_started_at or 0) < ended_at
                and write.commit_started_at is not None
                and facts.is_committed(write) is not False
            }
            least = max(
                (
                    value
                    for write, value in known
                    if write.outcome is Outcome.OK and (write.ended_at or FOREVER) < started_at
                ),
                default=None,
            )
            where = f"group {position[0]} at {position[1]}"
            if offset is not None and offset not in possible:
                yield self.found(f"{where}: {offset} was fetched and never committed", position[1])
            if least is not None and (offset is None or offset < least):
                yield self.found(f"{where}: {offset} was fetched after {least} was committed")


class TornOffsets(Checker):
    """Records of a transaction to be seen and its offsets not."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        finals = facts.history.final_positions
        for write in facts.history.writes:
            if facts.is_committed(write) is not True:
                continue
            for position, value in write.offsets.items():
                if position in finals and (finals[position] is None or finals[position] < value):
                    yield self.found(
                        f"{write} is committed with offset {value} of {position}, which ends at "
                        f"{finals[position]}",
                        write.transactional_id,
                    )


class DoubleProcessing(Checker):
    """Two outputs to be seen that were made from the same input."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        made: dict[tuple[str, TopicPartition, int], SentRecord] = {}
        for record in _outputs(facts):
            key = (_group_of(record), *(record.source or ()))
            if key in made:
                yield self.found(
                    f"{record} of {record.write} and {made[key]} of {made[key].write} are both "
                    f"made from {record.source}",
                    record.write.transactional_id,
                    made[key].write.transactional_id,
                )
            made[key] = record


class SkippedInputs(Checker):
    """An input below the group's offset without an output, or one above it that has one."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        processed: dict[Position, set[int]] = defaultdict(set)
        for record in _outputs(facts):
            if record.source is not None:
                processed[_group_of(record), record.source[0]].add(record.source[1])
        for position, committed in facts.history.final_positions.items():
            placed = facts.history.final.get((position[1], COMMITTED))
            if placed is None:
                continue
            done = processed[position]
            for offset, value in placed:
                is_below = committed is not None and offset < committed
                is_refused = (position[1], offset) in facts.history.refused_inputs
                if is_below and offset not in done and not is_refused:
                    yield self.found(
                        f"group {position[0]} is at {committed} of {position[1]} and made nothing "
                        f"from {value} at {offset}",
                        position[1],
                    )
                elif not is_below and offset in done:
                    yield self.found(
                        f"group {position[0]} is at {committed} of {position[1]} and yet made an "
                        f"output from {value} at {offset}",
                        position[1],
                    )


TRANSACTION_CHECKERS: tuple[Checker, ...] = (
    FencedCommits(),
    ReusedEpochs(),
    WrongTokens(),
    RepeatedTokens(),
    ShutOutWrites(),
    UnreadableCommits(),
    EndsGoBack(),
    WrongOffsets(),
    TornOffsets(),
    DoubleProcessing(),
    SkippedInputs(),
)
ALL_CHECKERS = RECORD_CHECKERS + TRANSACTION_CHECKERS


def check_history(history: History) -> list[Violation]:
    """Everything that is wrong with a finished history."""
    return check_with(ALL_CHECKERS, history)


def _records_by_place(facts: Facts) -> dict[tuple[TopicPartition, int], SentRecord]:
    """Every record of the log by where it stands, as the last uncommitted reader found it."""
    places: dict[tuple[TopicPartition, int], SentRecord] = {}
    for (topic_partition, isolation), placed in facts.history.final.items():
        if isolation is IsolationLevel.READ_UNCOMMITTED:
            for offset, value in placed:
                record = facts.senders.get((topic_partition, value))
                if record is not None:
                    places[topic_partition, offset] = record
    return places


def _may_be_open(record: SentRecord, at: int) -> bool:
    """Whether the transaction of ``record`` may have waited for its marker at that time."""
    write = record.write
    is_over = write.outcome is Outcome.OK and write.is_visible and (write.ended_at or FOREVER) < at
    return write.transactional_id is not None and not is_over


def _claims_by_id(history: History) -> dict[str, list[Claim]]:
    claims: dict[str, list[Claim]] = defaultdict(list)
    for claim in history.claims:
        claims[claim.transactional_id].append(claim)
    return claims


def _decided_by(write: Write, claims: Iterable[Claim]) -> int:
    """When the fate of a write was certain: its answer, or that of a successor's take-over."""
    if write.outcome is Outcome.OK and write.ended_at is not None:
        return write.ended_at
    return min(
        (
            claim.ended_at
            for claim in claims
            if claim.owner != write.owner and claim.started_at > (write.commit_started_at or 0)
        ),
        default=FOREVER,
    )


def _possible_tokens(claim: Claim, commits: list[tuple[Write, bool, int]]) -> set[bytes | None]:
    """Tokens of the commits that may be the last one before ``claim`` was answered."""
    possible: set[bytes | None] = set()
    certain_starts = [
        write.commit_started_at or 0
        for write, is_certain, ended_at in commits
        if is_certain and ended_at < claim.started_at
    ]
    last_start = max(certain_starts, default=-1)
    if last_start < 0:
        possible.add(None)
    for write, _, ended_at in commits:
        if (write.commit_started_at or 0) < claim.ended_at and ended_at >= last_start:
            possible.add(write.token)
    return possible


def _offset_commits(history: History) -> dict[Position, list[tuple[Write, int]]]:
    commits: dict[Position, list[tuple[Write, int]]] = defaultdict(list)
    for write in history.writes:
        for position, value in write.offsets.items():
            commits[position].append((write, value))
    return commits


def _outputs(facts: Facts) -> Iterator[SentRecord]:
    """Records that are to be seen and were made from others."""
    for write in facts.history.writes:
        for record in write.records:
            if record.source is not None and facts.final_offset(record) is not None:
                yield record


def _group_of(record: SentRecord) -> str:
    """The group that a copying write belongs to: that of the offsets it commits."""
    return next((group for group, _ in record.write.offsets), record.write.owner)
