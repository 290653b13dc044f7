"""The controller's state: brokers, topics and their partitions.

A method that takes a record applies it, the same live and on replay. Each record of a partition
raises its version by one; records of earlier releases do too, although they do not name it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from oncelog.actors.protocol.cluster.cluster_records import (
    BrokerChanged,
    BrokerRegistered,
    IsrChanged,
    LeaderElected,
    PartitionsCreated,
    ReplicasChanged,
    TopicCreated,
    TopicSnapshot,
)
from oncelog.actors.protocol.cluster.hosts import OWN_ACTOR
from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.messages.brokers import Disk
from oncelog.actors.protocol.messages.cluster import PartitionMetadata, TopicMetadata
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_LEADER_EPOCH

NO_LEADER: Final = -1
"""``leader`` of a partition that has none."""


@dataclass(slots=True, kw_only=True)
class BrokerState:
    """One registered broker. *Fenced*: it leads no partition and joins no ISR.

    ``is_refusing``: one of its disks refuses appends, by its last heartbeat. That is never logged;
    elections only prefer others.
    """

    broker_id: int
    data_dir: str
    directory_id: str = ""
    rack: str = ""
    broker_epoch: int = 0
    is_fenced: bool = False
    is_draining: bool = False
    disk_epoch: int = -1
    boot_id: str = ""
    is_refusing: bool = False

    @property
    def disk(self) -> Disk:
        """Its data directory, and the newest broker epoch written there."""
        return Disk(directory_id=self.directory_id, broker_epoch=self.disk_epoch)

    def changed(self, record: BrokerChanged) -> None:
        """Apply ``record``, unless the broker has registered again since it was decided."""
        if record.broker_epoch == self.broker_epoch:
            self.is_fenced = record.is_fenced
            self.is_draining = record.is_draining
            self.disk_epoch = max(self.disk_epoch, record.disk_epoch)


def registered(record: BrokerRegistered, earlier: BrokerState | None) -> BrokerState:
    """The broker of ``record``; a drain continues after a restart of the broker."""
    return BrokerState(
        broker_id=record.broker_id,
        data_dir=record.data_dir,
        directory_id=record.directory_id,
        rack=record.rack,
        broker_epoch=record.broker_epoch,
        is_fenced=record.is_fenced,
        is_draining=earlier is not None and earlier.is_draining,
        disk_epoch=record.disk_epoch,
        boot_id=record.boot_id,
    )


def registrations_of(broker: BrokerState) -> tuple[BrokerRegistered, BrokerChanged]:
    """The records that restore this broker."""
    return (
        BrokerRegistered(
            broker_id=broker.broker_id,
            data_dir=broker.data_dir,
            directory_id=broker.directory_id,
            rack=broker.rack,
            broker_epoch=broker.broker_epoch,
            is_fenced=broker.is_fenced,
            disk_epoch=broker.disk_epoch,
            boot_id=broker.boot_id,
        ),
        BrokerChanged(
            broker_id=broker.broker_id,
            broker_epoch=broker.broker_epoch,
            is_fenced=broker.is_fenced,
            is_draining=broker.is_draining,
        ),
    )


@dataclass(slots=True, kw_only=True)
class PartitionState:
    """One partition: its replicas with their hosts, and who leads in which epoch.

    ``adding`` and ``removing`` are those of a reassignment in progress. All replicas begin in sync,
    as they begin empty. ``unstarted`` are members of the ISR that have never started: they have no
    log yet, and nothing is committed before they have acknowledged. ``replication_factor`` is the
    number of replicas once there are brokers for them.

    ``elr``: the eligible leader replicas, which left the ISR when it fell below ``held_minimum``.
    The leader has committed nothing since, so they have all that is committed, and may lead if
    nobody in sync can. ``held_minimum`` is the lowest ``min_insync_replicas`` that the leader may
    be using: a higher value counts once the leader has confirmed it.
    """

    replicas: tuple[int, ...]
    hosts: tuple[int, ...] = ()
    leader: int = NO_LEADER
    leader_epoch: int = NO_LEADER_EPOCH
    isr: tuple[int, ...] = ()
    incarnation: str = ""
    version: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    unstarted: tuple[int, ...] = ()
    replication_factor: int = 0
    elr: tuple[int, ...] = ()
    held_minimum: int = 1

    def has_log(self, broker_id: int) -> bool:
        """Whether the replica there is in sync and must have a log: without one it lost data."""
        has_started = broker_id in self.isr and broker_id not in self.unstarted
        return has_started and self.has_been_led

    @property
    def has_been_led(self) -> bool:
        """Whether anybody was ever elected."""
        return self.leader_epoch != NO_LEADER_EPOCH

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas once the reassignment in progress, if there is one, is complete."""
        return tuple(broker_id for broker_id in self.replicas if broker_id not in self.removing)

    @property
    def original_replica_count(self) -> int:
        """Number of replicas without those that a reassignment is adding."""
        return len(self.replicas) - len(self.adding)

    @property
    def is_moving(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.adding or self.removing)

    def elected(self, record: LeaderElected, minimum: int) -> None:
        """Apply an election: the epoch rises, and the leader is one of the ISR or of the ELR.

        ``minimum``: the topic's ``min_insync_replicas``, which the leader is told.
        """
        may_lead = {NO_LEADER, *(self.isr if self.has_been_led else self.replicas), *self.elr}
        if record.leader not in may_lead:
            invariant(False, "I-22", f"{record.leader} is to lead {self}")
        invariant(
            record.leader_epoch > self.leader_epoch,
            "I-22",
            f"leader epoch {record.leader_epoch} does not rise above that of {self}",
        )
        self.leader = record.leader
        self.leader_epoch = record.leader_epoch
        self.incarnation = record.incarnation
        self.held_minimum = minimum
        started = record.leader if record.incarnation else NO_LEADER
        self._changed(self.version + 1, record.isr, started=started, lost=record.lost)

    def isr_changed(self, record: IsrChanged) -> None:
        """Apply a change of the ISR under the same leader, or the first start of a replica."""
        version, isr = record.partition_version, record.isr
        self._changed(version, isr, started=record.started, lost=record.lost)

    def replicas_changed(self, record: ReplicasChanged) -> None:
        """Apply a step of a reassignment."""
        self.replicas = record.replicas
        self.hosts = record.hosts
        self.adding = record.adding
        self.removing = record.removing
        self.replication_factor = record.replication_factor or len(self.target)
        self._changed(record.partition_version, record.isr)

    def minimum_changed(self, minimum: int) -> None:
        """Apply a new ``min_insync_replicas``, which the leader does not know yet."""
        self.held_minimum = min(self.held_minimum, minimum)
        self._keep_eligible(self.elr)

    def minimum_followed(self, minimum: int) -> None:
        """Apply that the leader uses the current ``min_insync_replicas``."""
        self.held_minimum = minimum

    def _keep_eligible(self, possible: Collection[int], lost: int = NO_LEADER) -> None:
        """Recompute the ELR: of ``possible``, those that have all that is committed."""
        is_held = len(self.isr) < self.held_minimum
        outside = set(possible) - {*self.isr, lost} if is_held else ()
        self.elr = tuple(n for n in self.replicas if n in outside)

    def _changed(
        self,
        version: int,
        isr: tuple[int, ...],
        *,
        started: int = NO_LEADER,
        lost: int = NO_LEADER,
    ) -> None:
        """Set version and ISR; check I-22: distinct replicas, ISR among them, leader in the ISR."""
        had_all = {*self.elr, *self.isr} - set(self.unstarted)
        self.isr = isr
        self._keep_eligible(had_all, lost)
        follows = version == self.version + 1
        is_distinct = len(set(self.replicas)) == len(self.replicas)
        is_led = self.leader == NO_LEADER or self.leader in self.isr
        if not (follows and is_distinct and is_led and set(self.isr) <= set(self.replicas)):
            invariant(False, "I-22", f"version {version} of {self}")
        self.version = version
        # A replica outside the ISR rejoins by acknowledging, so it must have started by then.
        self.unstarted = tuple(n for n in self.unstarted if n in self.isr and n != started)


@dataclass(slots=True, kw_only=True)
class TopicState:
    """One topic, with its settings and partitions."""

    name: str
    topic_id: str
    settings: tuple[tuple[str, str], ...]
    settings_version: int = 0
    partitions: list[PartitionState] = field(default_factory=list)

    @property
    def is_unsynced(self) -> bool:
        """Whether replicas acknowledge data that a reboot of their host may lose."""
        return ("flush", "os") in self.settings


def partitions_of(record: TopicCreated | PartitionsCreated) -> list[PartitionState]:
    """New partitions; without hosts in the record every replica has its own actor."""
    hosts = record.hosts or tuple((OWN_ACTOR,) * len(ids) for ids in record.replicas)
    return [
        PartitionState(
            replicas=ids,
            hosts=numbers,
            isr=ids,
            unstarted=ids,
            replication_factor=record.replication_factor or len(ids),
        )
        for ids, numbers in zip(record.replicas, hosts, strict=True)
    ]


_PARTITION_FIELDS: Final = tuple(one.name for one in fields(PartitionState))
_partition_values = operator.attrgetter(*_PARTITION_FIELDS)


def snapshot_of(topic: TopicState) -> TopicSnapshot:
    """The record that restores the topic."""
    return TopicSnapshot(
        name=topic.name,
        topic_id=topic.topic_id,
        settings=topic.settings,
        settings_version=topic.settings_version,
        fields=_PARTITION_FIELDS,
        partitions=tuple(map(_partition_values, topic.partitions)),
    )


def topic_in(record: TopicSnapshot) -> TopicState:
    """The topic of ``record``; fields that its release did not know get defaults."""
    names = record.fields
    if not set(names) <= set(_PARTITION_FIELDS):
        raise CorruptDataError(f"not all fields of {record.name} are known: {names}")
    return TopicState(
        name=record.name,
        topic_id=record.topic_id,
        settings=record.settings,
        settings_version=record.settings_version,
        partitions=[
            PartitionState(**dict(zip(names, row, strict=True))) for row in record.partitions
        ],
    )


def described(topic: TopicState, brokers: Mapping[int, BrokerState]) -> TopicMetadata:
    """The topic's metadata; the replication factor is at most the number of brokers."""
    broker_count = sum(not broker.is_draining for broker in brokers.values())
    return TopicMetadata(
        name=topic.name,
        topic_id=topic.topic_id,
        settings=topic.settings,
        settings_version=topic.settings_version,
        partitions=tuple(
            PartitionMetadata(
                partition=number,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                replicas=partition.replicas,
                isr=partition.isr,
                hosts=partition.hosts,
                adding=partition.adding,
                removing=partition.removing,
                unstarted=partition.unstarted,
                replication_factor=min(partition.replication_factor, broker_count),
                elr=partition.elr,
            )
            for number, partition in enumerate(topic.partitions)
        ),
    )
