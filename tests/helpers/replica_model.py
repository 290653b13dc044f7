"""One replica of a partition without a shell: a log with what of it is synced, and its machines."""

from __future__ import annotations

from cluster_worlds import TOPIC_ID

from oncelog.actors.protocol.messages.replication import ReplicateRequest
from oncelog.actors.protocol.partition.bounds import Role
from oncelog.actors.protocol.partition.followers import Push
from oncelog.actors.protocol.partition.following import FollowerReplication, ReplicateVerdict
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.actors.protocol.partition.replication import (
    LeaderReplication,
    PartitionAssignment,
    ReplicationSettings,
)
from oncelog.actors.protocol.tickets import NO_KEYS
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_OFFSET, TopicPartition
from oncelog.storage.records.batch import BatchHeader, iterate_batches, parse_header, seal

PARTITION = TopicPartition("t", 0)
PRODUCER_COUNT = 3


def batch_at(base_offset: int, leader_epoch: int, *, count: int = 1, content: int = 0) -> bytes:
    """A batch whose bytes tell ``content`` from any other."""
    return bytes(
        seal(
            content.to_bytes(8, "big"),
            record_count=count,
            base_timestamp_ms=0,
            max_timestamp_ms=0,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            producer_id=content % PRODUCER_COUNT,
            producer_epoch=0,
            base_sequence=content,
        )
    )


class Replica:
    """A log with what of it is synced, its machine, and either side of replication."""

    leading = LeaderReplication
    following = FollowerReplication

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.synced_end_offset = 0
        self.durable_start_offset = 0
        self.is_up = True
        self.machine = PartitionMachine(PARTITION)
        self.leader: LeaderReplication | None = None
        self.machine.become_follower(-1)
        self.follower = self.following(self.machine, TOPIC_ID)

    @property
    def end_offset(self) -> int:
        return self.machine.log_end_offset

    def bytes_from(self, offset: int, bytes_max: int) -> bytes:
        """Whole batches from the one that holds ``offset`` on, at least one unless told none."""
        found = b""
        for header, batch in self.batches:
            if header.next_offset > offset and (not found or len(found) + len(batch) <= bytes_max):
                found += batch
        return found if bytes_max else b""

    def request_of(self, push: Push) -> ReplicateRequest:
        """What a push of its leader sends."""
        return ReplicateRequest(
            topic_partition=PARTITION,
            topic_id=TOPIC_ID,
            leader=self.broker_id,
            leader_epoch=push.leader_epoch,
            epoch_start_offset=push.epoch_start_offset,
            previous_end_offset=push.previous_end_offset,
            previous_leader_epoch=push.previous_leader_epoch,
            high_watermark=push.bounds.high_watermark,
            log_start_offset=push.bounds.log_start_offset,
            batches=self.bytes_from(push.previous_end_offset, push.bytes_max),
        )

    def content(self, from_offset: int, to_offset: int) -> list[tuple[int, bytes]]:
        """Batches that reach into a range of offsets."""
        return [
            (header.base_offset, batch)
            for header, batch in self.batches
            if header.next_offset > from_offset and header.base_offset < to_offset
        ]

    def append(self, batch: bytes) -> None:
        header = parse_header(batch)
        self.batches.append((header, batch))
        self.machine.apply(header, None)

    def sync(self) -> None:
        self.synced_end_offset = self.end_offset
        self.durable_start_offset = self.machine.log_start_offset

    def sync_for_answer(self) -> None:
        self.sync()

    def rebuild(self, start_offset: int) -> None:
        """The machine from the log, as after a cut or a start; it takes its role afterwards."""
        epochs = self.machine.leader_epochs
        end_offset = self.batches[-1][0].next_offset if self.batches else start_offset
        epochs.truncate_end(max(end_offset, start_offset))
        begin = min(self.batches[0][0].base_offset, start_offset) if self.batches else start_offset
        high_watermark = self.machine.high_watermark
        self.machine.load(begin, begin, (), leader_epochs=epochs.entries)
        for header, _ in self.batches:
            self.machine.apply(header, None)
        self.machine.advance_log_start(start_offset)
        self.machine.advance_high_watermark(min(high_watermark, self.end_offset))

    def restart_at(self, offset: int) -> None:
        self.batches = []
        self.machine.load(offset, offset, ())
        self.synced_end_offset = self.durable_start_offset = offset

    def truncate(self, offset: int) -> None:
        self.batches = [held for held in self.batches if held[0].next_offset <= offset]
        self.rebuild(self.machine.log_start_offset)
        self.synced_end_offset = min(self.synced_end_offset, self.end_offset)

    def crash(self) -> None:
        """Lose what is not synced, and begin again with what is."""
        self.batches = [
            held for held in self.batches if held[0].next_offset <= self.synced_end_offset
        ]
        end_offset = self.batches[-1][0].next_offset if self.batches else 0
        if end_offset < self.durable_start_offset:
            self.batches = []
        self.machine = PartitionMachine(PARTITION)
        self.rebuild(self.durable_start_offset)
        self.synced_end_offset = self.end_offset
        self.leader = None
        self.follower = self.following(self.machine, TOPIC_ID)

    @property
    def has_asked(self) -> bool:
        """Whether it has a role; until then its machine is LOADING, and takes no push."""
        return self.machine.role is not Role.LOADING

    def follow(self, leader_epoch: int) -> None:
        """The controller has told who leads; nothing older is taken from now on."""
        self.machine.become_follower(max(leader_epoch, self.machine.leader_epoch))

    def lead(
        self, assignment: PartitionAssignment, settings: ReplicationSettings, now_ms: int
    ) -> None:
        self.machine.become_leader(assignment.leader_epoch, TOPIC_ID, NO_KEYS)
        self.leader = self.leading(
            self.machine,
            assignment,
            broker_id=self.broker_id,
            synced_end_offset=self.synced_end_offset,
            settings=settings,
            now_ms=now_ms,
        )

    def take(self, request: ReplicateRequest) -> ReplicateVerdict:
        """One turn of a follower's shell; the sync and the answer come later."""
        verdict = self.follower.decide(request)
        if not self.has_asked:
            return verdict
        if verdict.adopts_epoch:
            if self.leader is not None:
                self.leader.step_down()
            self.leader = None
            self.machine.become_follower(request.leader_epoch)
        if verdict.restart_offset != NO_OFFSET:
            self.restart_at(verdict.restart_offset)
        if verdict.truncate_offset != NO_OFFSET:
            self.truncate(verdict.truncate_offset)
        if self.machine.role is Role.LOADING:
            self.machine.become_follower(self.machine.leader_epoch)
        if verdict.error is ErrorCode.NONE:
            appended = memoryview(request.batches)[verdict.append_position :]
            for position, header in iterate_batches(appended):
                self.append(bytes(appended[position : position + header.size_bytes]))
        self.follower.done(request, verdict)
        return verdict
