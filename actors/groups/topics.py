"""Which topics the offsets of groups are in: names can be reused, ids never are.

A topic that is deleted and created again begins at offset 0, with new records. An offset
in the old one must neither be taken for one in the new topic, nor replace one.
"""

from __future__ import annotations

from collections.abc import Mapping

from oncelog.actors.coordination.cluster_view import ClusterView
from oncelog.actors.interfaces import Transport
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.group import OffsetCommitRequest, TxnOffsetCommitRequest
from oncelog.storage.errors import ErrorCode


class GroupTopics:
    """The topics that exist, as far as a group coordinator needs to know."""

    def __init__(self, *, transport: Transport, call_timeout_ms: int) -> None:
        self._cluster = ClusterView(transport=transport, call_timeout_ms=call_timeout_ms)

    async def ids_named_by(
        self, request: OffsetCommitRequest | TxnOffsetCommitRequest
    ) -> tuple[ErrorCode, dict[str, str]]:
        """The ids of those topics of a commit that exist, by name.

        What is known is used if it agrees with the caller; otherwise one of the two is out of date,
        and the controller decides. So once an offset in a topic was accepted, none in an earlier
        topic of that name is. ``COORDINATOR_NOT_AVAILABLE`` if the controller does not answer.
        """
        names = {tp.topic for tp, _ in request.offsets}
        known = self._cluster.cached(names)
        is_agreed = all(
            tp.topic in known and position.topic_id == known[tp.topic].topic_id
            for tp, position in request.offsets
        )
        if not is_agreed:
            error, known = await self._cluster.topics(names, as_of_ms=_after_now_ms())
            if error is not ErrorCode.NONE:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE, {}
        return ErrorCode.NONE, {name: topic.topic_id for name, topic in known.items()}

    async def gone(self, named: Mapping[str, frozenset[str]]) -> frozenset[str]:
        """Those of the ids in ``named``, by topic, whose topic is deleted; none if in doubt.

        ``named`` is older than the question, so the controller knows of every topic in it.
        """
        if not named:
            return frozenset()
        error, topics = await self._cluster.topics(named, as_of_ms=_after_now_ms())
        if error is not ErrorCode.NONE:
            return frozenset()
        current = {topic.topic_id for topic in topics.values()}
        return frozenset(topic_id for ids in named.values() for topic_id in ids - current)


def _after_now_ms() -> int:
    """A reply from this very millisecond may be older than the question."""
    return loop_ms() + 1
