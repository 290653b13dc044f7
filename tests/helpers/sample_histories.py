"""Handmade histories, and clean ones from a log that is obviously correct: a single list."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random

from sim_history import Claim, EndOffset, History, LogEnd, Outcome, Placed, SentRecord, Write

from oncelog.storage.model import IsolationLevel, TopicPartition

A = TopicPartition("input", 0)
B = TopicPartition("output", 0)
COMMITTED = IsolationLevel.READ_COMMITTED
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED


def transaction(
    history: History,
    records: Mapping[TopicPartition, Sequence[str]],
    outcome: Outcome = Outcome.OK,
    *,
    owner: str = "p1",
    token: bytes | None = None,
) -> Write:
    """One whole transaction of the id "loader"; a failed one was never asked to commit."""
    write = history.begin(owner, "loader", token=token)
    for topic_partition, values in records.items():
        for value in values:
            history.send(write, topic_partition, value)
    if outcome is not Outcome.FAIL:
        history.start_commit(write)
    history.end(write, outcome)
    return write


def read(
    history: History,
    topic_partition: TopicPartition,
    offset: int,
    value: str,
    *,
    isolation: IsolationLevel = COMMITTED,
    session: int = 0,
) -> None:
    """One record read by one reader."""
    history.read("reader", session, isolation, topic_partition, offset, value)


def final(
    history: History,
    topic_partition: TopicPartition,
    committed: Placed,
    uncommitted: Placed | None = None,
) -> None:
    """What a partition holds at the end; uncommitted readers see at least the same."""
    history.final[topic_partition, COMMITTED] = committed
    history.final[topic_partition, UNCOMMITTED] = (
        list(committed) if uncommitted is None else uncommitted
    )


class PlainLog:
    """Two partitions, one writer at a time, no faults: a transaction is applied as a whole."""

    def __init__(self, seed: int) -> None:
        self.history = History()
        self.random = Random(seed)
        self.placed: dict[TopicPartition, Placed] = defaultdict(list)
        self.visible: dict[TopicPartition, Placed] = defaultdict(list)
        self.next_offset: dict[TopicPartition, int] = defaultdict(int)
        self.read_to = 0
        self.position = 0
        self.epoch = 0
        self.token: bytes | None = None
        self.owner = ""
        self.sent = 0

    def claim(self) -> None:
        """A new producer object takes the id over."""
        self.owner, started_at = f"p{self.epoch}", self.history.tick()
        self.history.claims.append(
            Claim(
                "loader",
                self.owner,
                started_at,
                self.history.tick(),
                producer_id=3,
                producer_epoch=self.epoch,
                tells_token=True,
                token=self.token,
            )
        )
        self.epoch += 1

    def write(self) -> None:
        """One transaction of the present owner; some abort, of some the answer is lost."""
        history, chance = self.history, self.random
        write = history.begin(self.owner, "loader", token=chance.choice([None, b"t%d" % self.sent]))
        for _ in range(chance.randint(1, 4)):
            self.sent += 1
            self._append(history.send(write, chance.choice((A, B)), f"{self.owner}/{self.sent}"))
        self._finish(write)
        self._move_on()

    def copy(self) -> None:
        """The next record of A becomes one in B, together with the group's position."""
        todo = [item for item in self.visible[A] if item[0] >= self.position]
        if not todo:
            return
        offset, _ = todo[0]
        write = self.history.begin("copier", "copier")
        self.sent += 1
        record = self.history.send(write, B, f"copier/{self.sent}", (A, offset))
        self._append(record)
        write.offsets["copiers", A] = offset + 1
        if self._finish(write):
            self.position = offset + 1
        self._move_on()

    def read(self) -> None:
        """A reader goes on in A, and asks for the end."""
        for offset, value in self.visible[A]:
            if offset >= self.read_to:
                read(self.history, A, offset, value)
                self.read_to = offset + 1
        started_at = self.history.tick()
        self.history.end_offsets.append(
            EndOffset(A, COMMITTED, self.next_offset[A], started_at, self.history.tick())
        )

    def close(self) -> History:
        """The last read of everything."""
        for topic_partition in (A, B):
            end = self.next_offset[topic_partition]
            final(
                self.history,
                topic_partition,
                sorted(self.visible[topic_partition]),
                list(self.placed[topic_partition]),
            )
            self.history.log_ends[topic_partition] = LogEnd(end, end, end)
        self.history.final_positions["copiers", A] = self.position or None
        return self.history

    def _append(self, record: SentRecord) -> None:
        offset = self.next_offset[record.topic_partition]
        self.next_offset[record.topic_partition] += 1
        self.placed[record.topic_partition].append((offset, record.value))
        self.history.acknowledge(record, offset)

    def _finish(self, write: Write) -> bool:
        is_aborted = self.random.random() < 0.25
        if is_aborted:
            self.history.end(write, Outcome.FAIL)
            return False
        self.history.start_commit(write)
        for record in write.records:
            assert record.offset is not None
            self.visible[record.topic_partition].append((record.offset, record.value))
        if write.transactional_id == "loader":
            self.token = write.token
        is_answered = self.random.random() < 0.8
        self.history.end(
            write, Outcome.OK if is_answered else Outcome.UNKNOWN, is_visible=is_answered
        )
        return True

    def _move_on(self) -> None:
        # The marker takes an offset too.
        for topic_partition in (A, B):
            self.next_offset[topic_partition] += 1


def clean_history(seed: int) -> History:
    """A history with nothing wrong in it."""
    log = PlainLog(seed)
    log.claim()
    log.write()
    steps = (log.claim, log.write, log.write, log.write, log.copy, log.copy, log.read)
    for _ in range(40):
        log.random.choice(steps)()
    log.read()
    return log.close()
