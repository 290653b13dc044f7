"""What the controller's machine knows of brokers, topics and their partitions.

The methods that take a record are its application, the same live and on replay. Each record of a
partition raises its version by one, those of earlier releases too, which do not name it.
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
"""The leader of a partition that nobody can lead now."""


@dataclass(slots=True, kw_only=True)
class BrokerState:
    """One broker as registered. *Fenced*: it leads nothing and is in sync with nothing.

    ``is_refusing``: a disk of it takes no appends, as it has told last. That is never recorded, and
    only says whom to prefer: whoever asks ``elections`` fills it in.
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
        """Its data directory, and how new a copy that must be."""
        return Disk(directory_id=self.directory_id, broker_epoch=self.disk_epoch)

    def changed(self, record: BrokerChanged) -> None:
        """Apply ``record``, unless the broker has registered again since it was decided."""
        if record.broker_epoch == self.broker_epoch:
            self.is_fenced = record.is_fenced
            self.is_draining = record.is_draining
            self.disk_epoch = max(self.disk_epoch, record.disk_epoch)


def registered(record: BrokerRegistered, earlier: BrokerState | None) -> BrokerState:
    """The broker as ``record`` has it; a drain outlasts a start of the broker."""
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
    """The records that give the broker as it is."""
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
    as they begin empty. ``unstarted`` are those in sync that have never asked for their role: they
    have no log yet, and what they have not acknowledged is not committed. ``replication_factor`` is
    how many replicas there are to be, as soon as there are brokers for them.

    ``elr``: who has left an ISR that has fewer than ``held_minimum`` members since. The leader
    commits nothing meanwhile, so they have all that is committed, and may lead if nobody in sync
    can. ``held_minimum`` is the least ``min_insync_replicas`` that the leader may go by: a higher
    one it has to have taken.
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
        """Whether the replica there is in sync and must have its log: one that is gone is lost."""
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
        """How many replicas it has without those that a reassignment is adding."""
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
        """Apply what ``min_insync_replicas`` is now; the leader hears of it later."""
        self.held_minimum = min(self.held_minimum, minimum)
        self._keep_eligible(self.elr)

    def minimum_followed(self, minimum: int) -> None:
        """Apply that the leader goes by what ``min_insync_replicas`` is now, and nothing lower."""
        self.held_minimum = minimum

    def _keep_eligible(self, possible: Collection[int], lost: int = NO_LEADER) -> None:
        """Of these, the replicas that have all that is committed stay eligible."""
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
        """I-22: replicas differ, the ISR is among them, and the leader in the ISR."""
        had_all = {*self.elr, *self.isr} - set(self.unstarted)
        self.isr = isr
        self._keep_eligible(had_all, lost)
        follows = version == self.version + 1
        is_distinct = len(set(self.replicas)) == len(self.replicas)
        is_led = self.leader == NO_LEADER or self.leader in self.isr
        if not (follows and is_distinct and is_led and set(self.isr) <= set(self.replicas)):
            invariant(False, "I-22", f"version {version} of {self}")
        self.version = version
        # Whoever has left the ISR comes back by acknowledging, for which it has to start.
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
        """Whether replicas acknowledge what a boot of their host may take."""
        return ("flush", "os") in self.settings


def partitions_of(record: TopicCreated | PartitionsCreated) -> list[PartitionState]:
    """New partitions; a record without hosts is of replicas that are alone."""
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
    """The record that gives the topic as it is."""
    return TopicSnapshot(
        name=topic.name,
        topic_id=topic.topic_id,
        settings=topic.settings,
        settings_version=topic.settings_version,
        fields=_PARTITION_FIELDS,
        partitions=tuple(map(_partition_values, topic.partitions)),
    )


def topic_in(record: TopicSnapshot) -> TopicState:
    """The topic as ``record`` has it; what its release did not know is as by default."""
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
    """The topic as metadata tells it; its replicas are too few only if there are more brokers."""
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
