"""Checkers of a finished history: what was read of what was written.

Each looks for one named anomaly, and says what, where and by which writer. They judge only the
finished ``History``, so they can be tried on handmade histories. Cycles of
transactions that read from each other need no search: a value is read only after its writer asked
to commit (``UncommittedReads``), and time has no cycles.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from sim_history import Facts, History, Outcome, ReadRecord, SentRecord

from oncelog.storage.model import IsolationLevel, TopicPartition

COMMITTED = IsolationLevel.READ_COMMITTED
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED


@dataclass(frozen=True, slots=True)
class Violation:
    """One anomaly. ``about`` names the transactional ids and partitions for the story's filter."""

    checker: str
    message: str
    about: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.checker}: {self.message}"


class Checker:
    """One anomaly to look for."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        """Every occurrence in a finished history."""
        raise NotImplementedError

    def found(self, message: str, *about: object) -> Violation:
        """An occurrence, under the name of this checker."""
        names = tuple(str(item) for item in about if item is not None)
        return Violation(type(self).__name__, message, names)


class PhantomReads(Checker):
    """A value that nobody sent to that partition."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        for level in IsolationLevel:
            for read in facts.reads_and_finals(level):
                if (read.topic_partition, read.value) not in facts.senders:
                    yield self.found(f"nobody sent {read}", read.topic_partition)


class AbortedReads(Checker):
    """A value of an aborted write, read as committed (G1a)."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        for read, record in _reads_with_records(facts, COMMITTED):
            if record.write.outcome is Outcome.FAIL:
                yield self.found(
                    f"{read} is of {record.write}",
                    record.write.transactional_id,
                    read.topic_partition,
                )


class UncommittedReads(Checker):
    """A value read as committed before its writer asked to commit, or at all before it was sent."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        for level in IsolationLevel:
            for read, record in _reads_with_records(facts, level):
                write = record.write
                if read.at < record.sent_at:
                    yield self.found(f"{read} was sent only at {record.sent_at} by {write}")
                elif level is not COMMITTED or write.outcome is Outcome.FAIL:
                    continue
                elif write.commit_started_at is None or read.at < write.commit_started_at:
                    yield self.found(
                        f"{read} is of {write}, not yet asked to commit",
                        write.transactional_id,
                        read.topic_partition,
                    )


class LostRecords(Checker):
    """A committed record that is not to be seen, or an acknowledged one that is not in the log."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        for write in facts.history.writes:
            for record in write.records:
                topic_partition = record.topic_partition
                if not facts.was_drained(topic_partition) or facts.may_be_gone(record):
                    continue
                about = (write.transactional_id, topic_partition)
                if write.outcome is Outcome.OK and facts.final_offset(record) is None:
                    yield self.found(f"{record} is not to be seen, of {write}", *about)
                elif (
                    record.is_acknowledged
                    and (topic_partition, UNCOMMITTED) in facts.history.final
                    and facts.final_offset(record, UNCOMMITTED) is None
                ):
                    yield self.found(f"{record} is not in the log, of {write}", *about)


class TornWrites(Checker):
    """Some records of a write to be seen and others not."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        for write in facts.history.writes:
            drained = [
                r
                for r in write.records
                if facts.was_drained(r.topic_partition)
                and (facts.final_offset(r) is not None or not facts.may_be_gone(r))
            ]
            seen = [r for r in drained if facts.final_offset(r) is not None]
            if seen and len(seen) < len(drained):
                missing = next(r for r in drained if facts.final_offset(r) is None)
                yield self.found(
                    f"{write}: {len(seen)} of {len(drained)} records are to be seen; "
                    f"{seen[0]} is, {missing} is not",
                    write.transactional_id,
                    missing.topic_partition,
                    seen[0].topic_partition,
                )


class DuplicateRecords(Checker):
    """One value at two offsets."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        places: dict[tuple[TopicPartition, str], int] = {}
        told: set[tuple[TopicPartition, str]] = set()
        for level in IsolationLevel:
            for read in facts.reads_and_finals(level):
                key = (read.topic_partition, read.value)
                first = places.setdefault(key, read.offset)
                if first != read.offset and key not in told:
                    told.add(key)
                    yield self.found(
                        f"{read} stands at {first} too{_writer(facts, read)}", read.topic_partition
                    )


class InconsistentOffsets(Checker):
    """One offset that holds two values."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        values: dict[tuple[TopicPartition, int], str] = {}
        for level in IsolationLevel:
            for read in facts.reads_and_finals(level):
                first = values.setdefault((read.topic_partition, read.offset), read.value)
                if first != read.value:
                    yield self.found(
                        f"{read}, and {first} was read there{_writer(facts, read)}",
                        read.topic_partition,
                    )


class MismatchedOffsets(Checker):
    """A record read elsewhere than its producer was told."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        for level in IsolationLevel:
            for read, record in _reads_with_records(facts, level):
                if record.offset is not None and record.offset != read.offset:
                    yield self.found(f"{read}, but its producer was told {record}", read)


class ReadsGoBack(Checker):
    """A reader that was given an offset at or below one that it had."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        for reads in facts.sessions.values():
            for earlier, later in itertools.pairwise(reads):
                if later.offset <= earlier.offset:
                    yield self.found(f"{later} came after {earlier}", later.topic_partition)


class SkippedReads(Checker):
    """A reader that was led past a record that is to be seen."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        indexes: dict[tuple[TopicPartition, IsolationLevel], dict[int, int]] = {}
        for reads in facts.sessions.values():
            key = (reads[0].topic_partition, reads[0].isolation)
            placed = facts.history.final.get(key)
            if placed is None:
                continue
            if key not in indexes:
                indexes[key] = {offset: index for index, (offset, _) in enumerate(placed)}
            index_of = indexes[key]
            for earlier, later in itertools.pairwise(reads):
                start, end = index_of.get(earlier.offset), index_of.get(later.offset)
                if start is not None and end is not None and end > start + 1:
                    offset, value = placed[start + 1]
                    yield self.found(
                        f"{later} followed {earlier}; {value} at {offset} was passed over", key[0]
                    )


class VanishedRecords(Checker):
    """A record that was read and is not there at the end."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        for read in facts.history.reads:
            placed = facts.history.final.get((read.topic_partition, read.isolation))
            if placed is None:
                continue
            record = facts.senders.get((read.topic_partition, read.value))
            if record is None or facts.may_be_gone(record, read.offset):
                continue
            if facts.final_offset(record, read.isolation) is None:
                yield self.found(
                    f"{read} is not there at the end, of {record.write}",
                    record.write.transactional_id,
                    read.topic_partition,
                )


class ProducerOrder(Checker):
    """Records of one producer in another order than they were sent.

    Of a plain producer only what was acknowledged counts: a record that it gave up may come late.
    """

    def check(self, facts: Facts) -> Iterator[Violation]:
        sent: dict[tuple[str, TopicPartition], list[SentRecord]] = defaultdict(list)
        for write in facts.history.writes:
            for record in write.records:
                if write.transactional_id is not None or record.is_acknowledged:
                    sent[write.owner + _member(record), record.topic_partition].append(record)
        for (owner, topic_partition), records in sent.items():
            last: tuple[int, SentRecord] | None = None
            for record in sorted(records, key=lambda item: item.sent_at):
                offset = facts.final_offset(record)
                if offset is None:
                    continue
                if last is not None and offset <= last[0]:
                    yield self.found(
                        f"{record.value} stands at {offset} and was sent by {owner} after "
                        f"{last[1].value} at {last[0]}",
                        record.write.transactional_id,
                        topic_partition,
                    )
                last = (offset, record)


class LateOutcomes(Checker):
    """A record has its outcome within ``delivery_timeout_ms``."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        for record in facts.history.overdue:
            yield self.found(f"{record} has no outcome in its time", record.value)


class OpenAtTheEnd(Checker):
    """A partition that read_committed readers cannot read to its end: a hanging transaction."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        for topic_partition, end in facts.history.log_ends.items():
            if not end.last_stable_offset == end.high_watermark == end.log_end_offset:
                yield self.found(f"{topic_partition} ends the run with {end}", topic_partition)


class InheritedPositions(Checker):
    """A group passed over the first records of a topic, as if it had read them in an older one."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        for remake in facts.history.remakes:
            missing = sorted(remake.offsets.keys() - set(remake.read))
            if remake.has_reached_the_end and missing:
                yield self.found(f"{remake.name}: {len(missing)} not read: {missing[0]}")


class FencedMembers(Checker):
    """A static member lost its place to a late call of its own or of an earlier life."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        for name in facts.history.fenced_members:
            yield self.found(f"{name} was fenced, and nobody took its place")


class FencedProducers(Checker):
    """A producer lost its id to nobody."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        for name in facts.history.fenced_producers:
            yield self.found(f"{name} was fenced, and nobody took its id")


class UnreadableRecords(Checker):
    """Records at which every reader stops, in logs that no fault has damaged."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        for topic_partition, offset, next_offset in facts.history.unreadable:
            message = f"{topic_partition} cannot be read from {offset} to {next_offset - 1}"
            yield self.found(message, topic_partition)


RECORD_CHECKERS: tuple[Checker, ...] = (
    InheritedPositions(),
    PhantomReads(),
    AbortedReads(),
    UncommittedReads(),
    LostRecords(),
    TornWrites(),
    DuplicateRecords(),
    InconsistentOffsets(),
    MismatchedOffsets(),
    ReadsGoBack(),
    SkippedReads(),
    VanishedRecords(),
    ProducerOrder(),
    OpenAtTheEnd(),
    UnreadableRecords(),
    LateOutcomes(),
    FencedMembers(),
    FencedProducers(),
)


def check_with(checkers: tuple[Checker, ...], history: History) -> list[Violation]:
    """What ``checkers`` find, in their order; at most a handful of each, as more tells no more."""
    facts = Facts(history)
    found: list[Violation] = []
    for checker in checkers:
        for number, violation in enumerate(checker.check(facts)):
            found.append(violation)
            if number == VIOLATIONS_MAX - 1:
                break
    return found


VIOLATIONS_MAX = 5


def _reads_with_records(
    facts: Facts, isolation: IsolationLevel
) -> Iterator[tuple[ReadRecord, SentRecord]]:
    for read in facts.reads_and_finals(isolation):
        record = facts.senders.get((read.topic_partition, read.value))
        if record is not None:
            yield read, record


def _writer(facts: Facts, read: ReadRecord) -> str:
    record = facts.senders.get((read.topic_partition, read.value))
    return "" if record is None else f", of {record.write}"


def _member(record: SentRecord) -> str:
    """The members of a run are producers of their own; their name begins each of their values."""
    return f" {record.value.partition('/')[0]}" if "/" in record.value else ""
