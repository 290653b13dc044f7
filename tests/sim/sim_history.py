"""What the clients of a simulation did and saw, in one total order.

A simulation is one process, so one counter orders every call and every answer exactly: ``at``
numbers are its values. The outcome of a write is *unknown* unless it is certain. Every value is
written once, so a value names its writer.
"""

from __future__ import annotations

import enum
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from oncelog.storage.model import IsolationLevel, TopicPartition

FOREVER = 1 << 62
"""Later than every event of a history."""

COMPACTED_PREFIX = "compact-"
"""How the names of topics begin whose records have keys, and of each key the newest is kept."""

REMADE_PREFIX = "remade-"
"""How the names of topics begin that are deleted and created again: offsets begin anew as well."""

KEY_COUNT = 40
"""How many keys a partition of such a topic has."""

Position = tuple[str, TopicPartition]
"""A consumer group and one of the partitions that it reads."""


def is_compacted(topic_partition: TopicPartition) -> bool:
    """Whether superseded records may be gone from the partition."""
    return topic_partition.topic.startswith(COMPACTED_PREFIX)


def is_remade(topic_partition: TopicPartition) -> bool:
    """Whether there may be several topics of this name, one after the other."""
    return topic_partition.topic.startswith(REMADE_PREFIX)


def key_of(topic_partition: TopicPartition, value: str) -> str | None:
    """The key that a value is sent with; few, so that records supersede each other."""
    return f"k{zlib.crc32(value.encode()) % KEY_COUNT}" if is_compacted(topic_partition) else None


class Outcome(enum.Enum):
    """What is known of a write when its client is done with it."""

    OK = "ok"
    FAIL = "fail"
    """It did not take effect and never will."""
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class SentRecord:
    """One record as its writer sent it. ``offset`` is what the log answered, if it did."""

    write: Write
    topic_partition: TopicPartition
    value: str
    sent_at: int
    source: tuple[TopicPartition, int] | None = None
    """Partition and offset of the record that this one was made from."""
    is_acknowledged: bool = False
    offset: int | None = None

    def __str__(self) -> str:
        place = "" if self.offset is None else f" (acknowledged at {self.offset})"
        return f"{self.value} to {self.topic_partition}{place}"


@dataclass(slots=True, eq=False)
class Remake:
    """One topic of a name that others had before: what was acknowledged, and what a group read."""

    topic: str
    name: str
    offsets: dict[str, int] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)

    @property
    def has_reached_the_end(self) -> bool:
        """Whether the record with the greatest offset was read."""
        return max(self.offsets, key=self.offsets.__getitem__) in self.read


@dataclass(slots=True, eq=False)
class Write:
    """What becomes visible as a whole: one transaction, the winners of a run, or one plain record.

    ``owner`` is the producer object, or the run: what a fence stops. ``commit_started_at`` is
    when it was first asked to commit; a plain record asks when it is sent. ``is_visible`` is
    what the commit answered.
    """

    name: str
    owner: str
    started_at: int
    transactional_id: str | None = None
    records: list[SentRecord] = field(default_factory=list)
    offsets: dict[Position, int] = field(default_factory=dict)
    token: bytes | None = None
    commit_started_at: int | None = None
    ended_at: int | None = None
    outcome: Outcome = Outcome.UNKNOWN
    is_visible: bool = False

    def __str__(self) -> str:
        return (
            f"{self.name} by {self.owner} ({self.outcome.value}, commit asked at "
            f"{self.commit_started_at}, ended at {self.ended_at})"
        )


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """One record as a reader got it. ``session`` changes with every seek and every rebalance."""

    reader: str
    session: int
    isolation: IsolationLevel
    topic_partition: TopicPartition
    offset: int
    value: str
    at: int

    def __str__(self) -> str:
        return f"{self.value} at {self.topic_partition}@{self.offset} by {self.reader} ({self.at})"


@dataclass(frozen=True, slots=True)
class Claim:
    """A transactional id taken over, by ``init_transactions`` or by enlisting; it succeeded.

    ``token`` is that of the last committed transaction; ``tells_token`` whether it was told.
    Of the others only those that are ``is_of_kafka`` are of producers; the rest is of runs.
    """

    transactional_id: str
    owner: str
    started_at: int
    ended_at: int
    producer_id: int
    producer_epoch: int
    tells_token: bool = False
    token: bytes | None = None
    is_of_kafka: bool = False

    def __str__(self) -> str:
        return (
            f"{self.owner} took {self.transactional_id} as producer {self.producer_id} epoch "
            f"{self.producer_epoch} ({self.started_at} to {self.ended_at})"
        )


@dataclass(frozen=True, slots=True)
class EndOffset:
    """The end of a partition as ``list_offsets`` told it (exclusive)."""

    topic_partition: TopicPartition
    isolation: IsolationLevel
    offset: int
    started_at: int
    ended_at: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's position as it was fetched, after undecided transactions were waited for."""

    group: str
    topic_partition: TopicPartition
    offset: int | None
    started_at: int
    ended_at: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a partition stood when every fault was healed and every writer had stopped."""

    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    log_start_offset: int = 0


Placed = list[tuple[int, str]]
"""(offset, value) in offset order."""


class History:
    """One run. Clients add to it while it goes on; the last reads come after the quiet."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.reads: list[ReadRecord] = []
        self.claims: list[Claim] = []
        self.remakes: list[Remake] = []
        self.end_offsets: list[EndOffset] = []
        self.committed_offsets: list[CommittedOffset] = []
        self.final: dict[tuple[TopicPartition, IsolationLevel], Placed] = {}
        self.final_positions: dict[Position, int | None] = {}
        self.log_ends: dict[TopicPartition, LogEnd] = {}
        self.shut_out: list[str] = []
        self.fenced_members: list[str] = []
        """Static members that were fenced, though nobody else has come under their name."""
        self.fenced_producers: list[str] = []
        """Producers that were fenced, though nobody can have taken their id, and in their time."""
        self.unreadable: list[tuple[TopicPartition, int, int]] = []
        """Partition, offset and next offset (exclusive) of what the last reads had to pass over."""
        self.overdue: list[SentRecord] = []
        self.refused_inputs: set[tuple[TopicPartition, int]] = set()
        """Inputs that a function always fails for, and that its job skips."""
        self._now = 0

    def tick(self) -> int:
        """The next point in the total order."""
        self._now += 1
        return self._now

    # --- writing ----------------------------------------------------------------------------

    def begin(
        self,
        owner: str,
        transactional_id: str | None = None,
        *,
        token: bytes | None = None,
    ) -> Write:
        """A transaction, or what a run is going to write, begins."""
        number = len(self.writes)
        write = Write(
            name=f"write {number}",
            owner=owner,
            started_at=self.tick(),
            transactional_id=transactional_id,
            token=token,
        )
        self.writes.append(write)
        return write

    def send(
        self,
        write: Write,
        topic_partition: TopicPartition,
        value: str,
        source: tuple[TopicPartition, int] | None = None,
    ) -> SentRecord:
        """A record is about to be sent as a part of ``write``."""
        record = SentRecord(write, topic_partition, value, self.tick(), source)
        write.records.append(record)
        return record

    def send_plain(self, owner: str, topic_partition: TopicPartition, value: str) -> SentRecord:
        """A record outside of any transaction is about to be sent."""
        write = self.begin(owner)
        record = self.send(write, topic_partition, value)
        write.commit_started_at = record.sent_at
        return record

    def acknowledge(self, record: SentRecord, offset: int) -> None:
        """The log answered for a record; a negative offset tells only that it is there."""
        record.is_acknowledged = True
        record.offset = offset if offset >= 0 else None
        if record.write.transactional_id is None:
            self.end(record.write, Outcome.OK)

    def start_commit(self, write: Write) -> None:
        """The commit is about to be asked for, for the first time or again."""
        at = self.tick()
        if write.commit_started_at is None:
            write.commit_started_at = at

    def end(self, write: Write, outcome: Outcome, *, is_visible: bool = False) -> None:
        """The client is done with a write. One never asked to commit cannot take effect."""
        if write.commit_started_at is None and outcome is Outcome.UNKNOWN:
            outcome = Outcome.FAIL
        write.outcome = outcome
        write.is_visible = is_visible
        write.ended_at = self.tick()

    def merge(self, part: Write, whole: Write) -> None:
        """The records of ``part`` become those of ``whole``: they share its fate from now on."""
        for record in part.records:
            record.write = whole
        whole.records += part.records
        part.records = []

    def settle(self) -> None:
        """Every client is gone: what was never asked to commit has failed."""
        for write in self.writes:
            if write.ended_at is None and write.commit_started_at is None:
                write.outcome = Outcome.FAIL

    # --- reading ----------------------------------------------------------------------------

    def read(
        self,
        reader: str,
        session: int,
        isolation: IsolationLevel,
        topic_partition: TopicPartition,
        offset: int,
        value: str,
    ) -> None:
        """A reader got a record."""
        self.reads.append(
            ReadRecord(reader, session, isolation, topic_partition, offset, value, self.tick())
        )

    @property
    def now(self) -> int:
        """The last point of the order that was given out."""
        return self._now


class Facts:
    """What all checkers ask of a finished history, found once."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.senders: dict[tuple[TopicPartition, str], SentRecord] = {}
        for write in history.writes:
            for record in write.records:
                self.senders[record.topic_partition, record.value] = record
        self._final: dict[IsolationLevel, dict[tuple[TopicPartition, str], int]] = {
            level: {} for level in IsolationLevel
        }
        for (topic_partition, isolation), placed in history.final.items():
            for offset, value in placed:
                self._final[isolation].setdefault((topic_partition, value), offset)
        self._newest_of_keys = {
            (topic_partition, key_of(topic_partition, value)): offset
            for (topic_partition, isolation), placed in history.final.items()
            if isolation is IsolationLevel.READ_COMMITTED
            for offset, value in placed
        }
        self.sessions: dict[tuple[str, int, TopicPartition], list[ReadRecord]] = defaultdict(list)
        for read in history.reads:
            self.sessions[read.reader, read.session, read.topic_partition].append(read)

    def was_drained(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition was read from beginning to end after the quiet."""
        return (topic_partition, IsolationLevel.READ_COMMITTED) in self.history.final

    def final_offset(
        self,
        record: SentRecord,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> int | None:
        """Where a record stands at the end, ``None`` if it is not to be seen."""
        return self._final[isolation].get((record.topic_partition, record.value))

    def may_be_gone(self, record: SentRecord, offset: int | None = None) -> bool:
        """Whether retention, ``delete_records`` or compaction may have removed a record.

        ``offset`` is where it was read, else it is where its producer was told. Of each key the
        newest committed record stays, so one that is gone has a newer one there in its stead.
        """
        topic_partition = record.topic_partition
        place = record.offset if offset is None else offset
        end = self.history.log_ends.get(topic_partition)
        start = 0 if end is None else end.log_start_offset
        if start > (0 if place is None else place):
            return True
        if not is_compacted(topic_partition):
            return False
        if record.write.outcome is not Outcome.OK:
            return True
        newest = self._newest_of_keys.get((topic_partition, key_of(topic_partition, record.value)))
        return newest is not None and (place is None or newest > place)

    def is_removed_from(self, topic_partition: TopicPartition) -> bool:
        """Whether any record of the partition may be gone."""
        end = self.history.log_ends.get(topic_partition)
        return is_compacted(topic_partition) or (end is not None and end.log_start_offset > 0)

    def is_committed(self, write: Write) -> bool | None:
        """Whether a write took effect; ``None`` if neither its client nor the log tells."""
        if write.outcome is not Outcome.UNKNOWN:
            return write.outcome is Outcome.OK
        drained = [record for record in write.records if self.was_drained(record.topic_partition)]
        if any(self.final_offset(record) is not None for record in drained):
            return True
        is_told = any(not self.is_removed_from(record.topic_partition) for record in drained)
        return False if is_told else None

    def reads_and_finals(self, isolation: IsolationLevel) -> Iterator[ReadRecord]:
        """Every read at ``isolation``, those after the quiet last."""
        for read in self.history.reads:
            if read.isolation is isolation:
                yield read
        for (topic_partition, level), placed in self.history.final.items():
            if level is isolation:
                for offset, value in placed:
                    yield ReadRecord(
                        "the last reader", 0, level, topic_partition, offset, value, FOREVER
                    )
