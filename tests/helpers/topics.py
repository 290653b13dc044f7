"""What clients are told of topics, and a cluster whose commands are only noted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from oncelog.actors.protocol.messages.cluster import MetadataReply, PartitionMetadata, TopicMetadata
from oncelog.api.admin.admin import AsyncAdmin


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
    """What a command connects to, and its own admin: notes calls, which must fit ``AsyncAdmin``.

    ``answers`` has by method a function that answers, the answer, or an error. ``failure`` is what
    each call raises that does not describe.
    """

    def __init__(self, *topics: TopicMetadata, **answers: Any) -> None:
        self.answers = {"describe_cluster": MetadataReply(topics=topics), **answers}
        self.calls: list[tuple[Any, ...]] = []
        self.failure: Exception | None = None
        self.timeout_ms = 0

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def admin(self, timeout_ms: int = 0) -> Any:
        self.timeout_ms = timeout_ms
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        signature = inspect.signature(getattr(AsyncAdmin, name))

        def call(*arguments: Any, **options: Any) -> Any:
            signature.bind(self, *arguments, **options)
            self.calls.append((name, *arguments, *([options] if options else [])))
            answer = self.answers.get(name)
            if self.failure is not None and not name.startswith("describe"):
                answer = self.failure
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments, **options) if callable(answer) else answer

        return call

    @property
    def changes(self) -> list[tuple[Any, ...]]:
        """The calls that do not only look."""
        return [call for call in self.calls if not call[0].startswith(("describe", "list", "find"))]
