"""What the controller's machine knows of topics and their partitions."""

from __future__ import annotations

from dataclasses import dataclass, field

from oncelog.actors.protocol.cluster.hosts import OWN_ACTOR
from oncelog.actors.protocol.cluster.log import PartitionsCreated, TopicCreated
from oncelog.actors.protocol.messages.cluster import PartitionMetadata, TopicMetadata


@dataclass(slots=True, kw_only=True)
class PartitionState:
    """One partition: its replicas with their hosts, and who leads in which epoch."""

    replicas: tuple[int, ...]
    hosts: tuple[int, ...] = ()
    leader: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    incarnation: str = ""


@dataclass(slots=True, kw_only=True)
class TopicState:
    """One topic, with its settings and partitions."""

    name: str
    topic_id: str
    settings: tuple[tuple[str, str], ...]
    settings_version: int = 0
    partitions: list[PartitionState] = field(default_factory=list)


def partitions_of(record: TopicCreated | PartitionsCreated) -> list[PartitionState]:
    """New partitions; a record without hosts is of replicas that are alone."""
    hosts = record.hosts or tuple((OWN_ACTOR,) * len(ids) for ids in record.replicas)
    return [
        PartitionState(replicas=ids, hosts=numbers)
        for ids, numbers in zip(record.replicas, hosts, strict=True)
    ]


def described(topic: TopicState) -> TopicMetadata:
    """The topic as metadata tells it."""
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
            )
            for number, partition in enumerate(topic.partitions)
        ),
    )
