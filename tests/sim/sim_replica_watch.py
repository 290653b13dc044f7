"""What ``LogWatch`` observes of replication: what is committed, and who has it.

A batch is *committed* once a leader's high watermark has passed it. From then on every later
leader has it, so does every follower that is told a high watermark above it, and at each moment
every member of the ISR that the controller has recorded. To have it is to have it synced, and the
simulated disk says what is: what replicas believe of their syncs counts for nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cluster_worlds import state_of
from disk_image import Directory
from inside import copy_of
from sim_checkers import Violation
from sim_disk import durable_end
from sim_history import is_compacted, is_remade

from oncelog.actors.interfaces import broker_actor
from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.partition.bounds import PartitionBounds, Role
from oncelog.actors.replica.metadata_replica import MetadataLeader
from oncelog.actors.replica.replica import Replica
from oncelog.actors.replica.replica_log import ReplicaLog
from oncelog.storage.model import INTERNAL_TOPICS, TopicPartition
from oncelog.storage.records.batch import BatchHeader, iterate_batches

Method = Callable[..., Any]

REPLICA_CHECKERS = frozenset(
    {
        "ChangedBatches",
        "CutPromises",
        "MissingCopies",
        "StaleSettings",
        "TooFewCopies",
        "UnequalReplicas",
    }
)
"""What this part of the watch may find."""


@dataclass(slots=True)
class Batches:
    """What one replica's machine has applied, in the order of offsets: base offset → CRC.

    Of what it loaded, only what it looked at; and no batch of which compaction has taken something.
    """

    crcs: dict[int, int] = field(default_factory=dict)
    compared_to: int = 0
    """Exclusive: up to here they are known to be those that are committed."""

    def applies(self, header: BatchHeader) -> None:
        """A batch is the last one of the log now: what stood at or behind its place was cut."""
        while self.crcs and next(reversed(self.crcs)) >= header.base_offset:
            self.crcs.popitem()
        if _is_whole(header):
            self.crcs[header.base_offset] = header.crc
        self.compared_to = min(self.compared_to, header.base_offset)

    def between(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Those that begin in [begin, end)."""
        found = []
        for offset in reversed(self.crcs):
            if offset < begin:
                break
            if offset < end:
                found.append((offset, self.crcs[offset]))
        return reversed(found)


class ReplicaWatch:
    """The part of ``LogWatch`` that knows of replicas; mixed into it, never on its own."""

    _found: Callable[..., None]
    committed_to: Callable[[TopicPartition], int]
    """What the leaders of a partition have shown."""

    def __init__(self) -> None:
        self._batches: dict[int, tuple[PartitionBounds, Batches]] = {}
        self._committed: dict[TopicPartition, dict[int, int]] = {}
        self._replicas: dict[int, ReplicaLog] = {}
        """By the id of its machine."""
        self._lives: dict[tuple[TopicPartition, int], ReplicaLog] = {}
        """(partition, broker) → the life that has the directory; if none has, it had it last, or
        has begun since."""
        self._isrs: dict[tuple[str, int], tuple[int, tuple[int, ...]]] = {}
        """(topic id, partition) → version and ISR, as the controller has recorded them."""

    def batches_of(self, machine: PartitionBounds) -> Batches:
        """What a machine, which is kept so that its id stays its own, has applied."""
        return self._batches.setdefault(id(machine), (machine, Batches()))[1]

    def begins(self, replica: ReplicaLog) -> None:
        """A replica begins a life; it waits for its directory while an earlier life has it."""
        place = (replica.topic_partition, replica.config.broker_id)
        self._replicas[id(replica.machine)] = replica
        earlier = self._lives.get(place)
        if earlier is None or not _has_directory(earlier):
            self._lives[place] = replica

    def opens(self, machine: PartitionBounds) -> None:
        """A replica loads its log, so it has the directory: no other life has it any more.

        That need not be the life that began last. Of a process that Ray has replaced and its
        successor, either may begin again, and either may get the lock.
        """
        replica = self._replicas.get(id(machine))
        if replica is not None:
            self._lives[replica.topic_partition, replica.config.broker_id] = replica

    def life_of(self, tp: TopicPartition, broker_id: int) -> ReplicaLog | None:
        """The life of a broker's replica that is looked at: see ``_lives``."""
        return self._lives.get((tp, broker_id))

    def records(
        self, topic_id: str, tp: TopicPartition, version: int, isr: tuple[int, ...]
    ) -> None:
        """The controller has recorded an ISR, whose members have all that is committed.

        A controller that loads repeats older ones.
        """
        key = (topic_id, tp.partition)
        known, earlier = self._isrs.get(key, (-1, ()))
        if version <= known:
            return
        self._isrs[key] = (version, isr)
        for broker_id in set(isr).difference(earlier):
            replica = self.life_of(tp, broker_id)
            if replica is not None and _lacks(replica, self.committed_to(tp)):
                self._found("MissingCopies", f"in sync in {version} is {replica.machine}", tp)

    # --- what is committed ----------------------------------------------------------------------

    def commits(self, machine: PartitionBounds) -> None:
        """A leader shows what is below its high watermark: no other leader shows another batch."""
        tp, batches = machine.topic_partition, self.batches_of(machine)
        if is_remade(tp):
            return
        committed, end = self._committed.setdefault(tp, {}), machine.high_watermark
        for offset, crc in batches.between(batches.compared_to, end):
            if committed.setdefault(offset, crc) != crc:
                self._found("ChangedBatches", f"{tp}@{offset} holds another batch than before", tp)
        batches.compared_to = max(batches.compared_to, end)

    def has_committed(self, machine: PartitionBounds, checker: str, end: int) -> None:
        """What a replica has below ``end`` is what was committed there."""
        tp, crcs = machine.topic_partition, self.batches_of(machine).crcs
        if is_remade(tp):
            return
        for offset, crc in self._committed.get(tp, {}).items():
            is_there = machine.log_start_offset <= offset < end
            if is_there and crcs.get(offset, crc) != crc:
                self._found(checker, f"{machine} has another batch at {offset} than before", tp)
                return

    def follows(self, machine: PartitionBounds) -> None:
        """A follower is told a high watermark: below it, it has what the leader has."""
        tp, batches = machine.topic_partition, self.batches_of(machine)
        if is_remade(tp):
            return
        committed = self._committed.get(tp, {})
        begin = max(batches.compared_to, machine.log_start_offset)
        for offset, crc in batches.between(begin, machine.high_watermark):
            if committed.get(offset, crc) != crc:
                self._found(
                    "UnequalReplicas",
                    f"{machine} has another batch at {offset} than its leader had",
                    tp,
                )
        batches.compared_to = max(batches.compared_to, machine.high_watermark)

    # --- who has it -----------------------------------------------------------------------------

    def isr_of(self, replica: ReplicaLog) -> tuple[int, ...]:
        """The ISR of the replica's partition, as the controller has recorded it."""
        key = (replica.leadership.topic_id, replica.config.partition)
        return self._isrs.get(key, (0, ()))[1]

    def is_everywhere(self, machine: PartitionBounds, committed_to: int) -> None:
        """Whether the whole ISR has what a leader shows."""
        leader = self._replicas.get(id(machine))
        if leader is None:
            return
        tp = machine.topic_partition
        for broker_id in self.isr_of(leader):
            replica = self.life_of(tp, broker_id)
            if replica is not None and _lacks(replica, committed_to):
                self._found(
                    "MissingCopies",
                    f"{machine} shows {committed_to}, and in sync is {broker_id}: "
                    f"{replica.machine}",
                    tp,
                )

    def is_often_enough(self, machine: PartitionBounds) -> None:
        """Whether what a leader shows is synced on as many brokers as an acknowledgement asks."""
        leader = self._replicas.get(id(machine))
        if leader is None or not isinstance(leader, Replica):
            return
        tp, end = machine.topic_partition, machine.high_watermark
        wanted, counted = leader._min_insync_replicas, None
        if isinstance(leader.role, MetadataLeader):
            counted = leader.role.voters or (leader.config.broker_id,)
            wanted = len(counted) // 2 + 1
        copies = [
            broker_id
            for (of, broker_id), replica in self._lives.items()
            if of == tp and (counted is None or broker_id in counted) and _may_have(replica, end)
        ]
        if len(copies) < wanted:
            self._found(
                "TooFewCopies",
                f"{machine} shows {end}, which {wanted} are to have, and synced on: {copies}",
                tp,
            )

    def cuts(self, replica: ReplicaLog, high_watermark: int) -> None:
        """A follower has cut its log, and was told that ``high_watermark`` is committed."""
        tp, end = replica.topic_partition, replica.machine.log_end_offset
        committed_to = self.committed_to(tp)
        if end < high_watermark:
            self._found(
                "CutPromises", f"{replica.machine} is cut below {high_watermark}, its promise", tp
            )
        is_in_sync = replica.config.broker_id in self.isr_of(replica)
        if is_in_sync and _lacks(replica, committed_to):
            self._found(
                "MissingCopies",
                f"{replica.machine} is in sync and cut; committed is up to {committed_to}",
                tp,
            )


def _is_compacted(topic_partition: TopicPartition) -> bool:
    return is_compacted(topic_partition) or topic_partition.topic in INTERNAL_TOPICS


def _is_whole(header: BatchHeader) -> bool:
    """Whether it is as it was written: compaction has taken no record, and marked nothing."""
    is_full = header.record_count == header.last_offset_delta + 1
    return is_full and not header.has_delete_horizon


def _lacks(replica: ReplicaLog, offset: int) -> bool:
    """Whether of a log that is open less is synced; while it is loaded its end is not known."""
    is_known = replica.machine.role is not Role.LOADING and replica.failure is None
    return is_known and _synced_end(replica) < offset


def _may_have(replica: ReplicaLog, offset: int) -> bool:
    """Whether a log is synced so far; of one that is loaded it is known only that it is there."""
    if replica.machine.role is Role.LOADING:
        return _directory_of(replica) is not None
    return _synced_end(replica) >= offset


def _synced_end(replica: ReplicaLog) -> int:
    """Up to where a power loss would leave the log (exclusive), in a life that may have ended."""
    end, directory = replica.machine.log_end_offset, _directory_of(replica)
    durable = None if directory is None else durable_end(directory)
    return end if durable is None else min(end, durable)


def _has_directory(replica: ReplicaLog) -> bool:
    """Whether its process lives and holds the lock."""
    disk: Any = replica.directory._filesystem
    return replica.directory._lock is not None and not disk.is_dead


def _directory_of(replica: ReplicaLog) -> Directory | None:
    disk: Any = replica.directory._filesystem
    node: Any = disk.root
    for name in replica.directory.path.parts[1:]:
        node = node.entries.get(name) if node is not None else None
    return node if isinstance(node, Directory) else None


def unequal_logs(world: Any) -> list[Violation]:
    """At peace all replicas of a partition have the same bytes, but for what each has compacted."""
    logs: dict[TopicPartition, list[ReplicaLog]] = {}
    known = {one.topic_partition for one in world.placements()}
    for replica in world.replicas().values():
        if replica.topic_partition not in known:
            continue
        logs.setdefault(replica.topic_partition, []).append(replica)
    found = []
    for tp, replicas in logs.items():
        begin = max(replica.machine.log_start_offset for replica in replicas)
        if _is_compacted(tp):
            found += _unequal_batches(tp, [bytes_from(replica, begin) for replica in replicas])
            continue
        copies = {replica.config.broker_id: bytes_from(replica, begin) for replica in replicas}
        if len(set(copies.values())) > 1:
            sizes = {broker_id: len(copy) for broker_id, copy in copies.items()}
            found.append(Violation("UnequalReplicas", f"{tp} from {begin} on: {sizes}", (str(tp),)))
    return found


def _unequal_batches(tp: TopicPartition, logs: list[bytes]) -> list[Violation]:
    """Batches of which no log has compacted anything are the same in all that have them."""
    crcs: dict[int, set[int]] = {}
    for log in logs:
        for _, header in iterate_batches(log):
            if _is_whole(header):
                crcs.setdefault(header.base_offset, set()).add(header.crc)
    differing = [offset for offset, found in crcs.items() if len(found) > 1]
    text = f"{tp}: other batches at {differing}"
    return [Violation("UnequalReplicas", text, (str(tp),))] if differing else []


def stale_settings(world: Any) -> list[Violation]:
    """At peace every leader follows the settings that the controller has recorded last."""
    machine, found = world.server("controller").shell.machine, []
    for replica in world.replicas().values():
        tp, told = replica.topic_partition, machine.leadership(replica.topic_partition)
        if told is None or replica.leadership.topic_id != told.topic_id:
            continue
        described = replica.describe(1)
        wanted, recorded = described.min_insync_replicas, told.min_insync_replicas
        if described.is_leader and wanted != recorded:
            text = f"{replica.machine} wants {wanted} in sync, and {recorded} are asked for"
            found.append(Violation("StaleSettings", text, (str(tp),)))
    return found


def unequal_metadata(world: Any) -> list[Violation]:
    """At peace every voter's log gives what the controller knows, wherever the log begins."""
    found, controller = [], world.server("controller")
    expected = state_of(controller.shell.machine)
    for replica in (controller.replica, *_metadata_copies(world)):
        loaded = ClusterMachine()
        for batch in replica.replay():
            for record in batch.records:
                loaded.apply(LogRecord(record.key, record.value))
        differing = [name for name, value in state_of(loaded).items() if value != expected[name]]
        if differing:
            log = f"log of {replica.config.broker_id} from {replica.machine.log_start_offset} on"
            found.append(Violation("UnequalStates", f"the metadata {log}: other {differing}"))
    return found


def is_metadata_copied(world: Any) -> bool:
    """Whether every copy of the metadata log has all of it."""
    controller = world.server("controller")
    return controller is not None and all(
        copy.machine.log_end_offset == controller.replica.machine.log_end_offset
        for copy in _metadata_copies(world)
    )


def _metadata_copies(world: Any) -> list[ReplicaLog]:
    brokers = [world.server(broker_actor(number)) for number in world.node_numbers()]
    copies = [None if broker is None else copy_of(broker) for broker in brokers]
    # One beside the controller waits for its directory, in vain.
    return [copy.replica for copy in copies if copy is not None and copy.replica.is_following]


def bytes_from(replica: ReplicaLog, begin: int) -> bytes:
    """What a log holds from an offset on."""
    log, found = replica.log, bytearray()
    while begin < log.log_end_offset:
        part = log.fetch(begin, max_bytes=10_000_000, upper_offset=log.log_end_offset)
        if part.next_offset <= begin:
            break
        found += part.records
        begin = part.next_offset
    return bytes(found)


# --- what is observed -----------------------------------------------------------------------------


def recording(watch: Any, method: Method) -> Method:
    """Around ``ClusterMachine._apply_to_partition``."""

    def apply_to_partition(self: ClusterMachine, record: Any) -> None:
        method(self, record)
        for topic in self.topics.values():
            if topic.topic_id == record.topic_id:
                partition = topic.partitions[record.partition]
                tp = TopicPartition(topic.name, record.partition)
                watch.records(topic.topic_id, tp, partition.version, partition.isr)

    return apply_to_partition


def beginning(watch: Any, method: Method) -> Method:
    """Around ``ReplicaLog.__init__``."""

    def init(self: ReplicaLog, **arguments: Any) -> None:
        method(self, **arguments)
        watch.begins(self)

    return init


def cutting(watch: Any, method: Method) -> Method:
    """Around ``ReplicaLog.cut``."""

    async def cut(self: Any, verdict: Any) -> None:
        high_watermark = self.machine.high_watermark
        await method(self, verdict)
        watch.cuts(self, high_watermark)

    return cut
