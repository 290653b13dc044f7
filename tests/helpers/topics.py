"""What clients are told of topics, and a cluster whose commands are only noted."""

from __future__ import annotations

from typing import Any

from oncelog.actors.protocol.messages.cluster import MetadataReply, PartitionMetadata, TopicMetadata


def topic_of(
    name: str, *leaders: int, topic_id: str = "0" * 32, leader_epoch: int = 0, **fields: Any
) -> TopicMetadata:
    """A topic with a partition per leader, which has the only replica; -1 if it leads no more."""
    return TopicMetadata(
        name=name,
        topic_id=topic_id,
        partitions=tuple(
            PartitionMetadata(
                partition=number,
                leader=leader,
                leader_epoch=leader_epoch,
                replicas=(abs(leader),),
                isr=(abs(leader),),
            )
            for number, leader in enumerate(leaders)
        ),
        **fields,
    )


class AdminCluster:
    """What a command connects to, and its own admin: notes calls, or raises ``failure``."""

    def __init__(self, *topics: TopicMetadata) -> None:
        self.topics = topics
        self.calls: list[tuple[Any, ...]] = []
        self.failure: Exception | None = None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def admin(self) -> Any:
        return self

    def describe_cluster(self) -> MetadataReply:
        return MetadataReply(topics=self.topics)

    def note(self, *call: Any) -> None:
        if self.failure is not None:
            raise self.failure
        self.calls.append(call)
