"""Where replicas are: partitions move to other brokers, and brokers are emptied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from oncelog.actors.protocol.messages.brokers import (
    DrainBrokerRequest,
    ReassignPartitionRequest,
)
from oncelog.api.admin.calls import AdminCalls, check
from oncelog.api.admin.checks import is_whole
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition

_TOLD_AT_ONCE: Final = frozenset(
    {
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""What passes by itself later than a call lasts, or never."""


async def reassign(calls: AdminCalls, topic: str, partition: int, replicas: object) -> None:
    """Begin to move a partition; see ``AsyncAdmin.reassign_partition``."""
    is_list = isinstance(replicas, Sequence) and not isinstance(replicas, (str, bytes))
    brokers = tuple(cast("Sequence[int]", replicas)) if is_list else ()
    if not brokers or not all(map(is_whole, brokers)):
        raise InvalidReplicaAssignmentError(
            f"replicas={replicas!r}: give broker numbers, the preferred leader first"
        )
    await _reassign(calls, topic, partition, brokers)


async def cancel(calls: AdminCalls, topic: str, partition: int) -> None:
    """Cancel a move; see ``AsyncAdmin.cancel_reassignment``."""
    await _reassign(calls, topic, partition, ())


async def _reassign(
    calls: AdminCalls, topic: str, partition: int, replicas: tuple[int, ...]
) -> None:
    if not is_whole(partition):
        raise UnknownTopicOrPartitionError(f"partition={partition!r}: give a whole number")
    request = ReassignPartitionRequest(
        topic_partition=TopicPartition(topic, partition), replicas=replicas
    )
    reply = await calls.controller(request, told_at_once=_TOLD_AT_ONCE)
    check(reply, f"there is no partition {partition} of a topic {topic!r}")


async def drain(calls: AdminCalls, broker_id: int, *, is_draining: bool) -> None:
    """Empty a broker, or use it again; see ``AsyncAdmin.drain_broker``."""
    if not is_whole(broker_id):
        raise InvalidRequestError(f"broker_id={broker_id!r}: give a whole number")
    request = DrainBrokerRequest(broker_id=broker_id, is_draining=is_draining)
    reply = await calls.controller(request, told_at_once=_TOLD_AT_ONCE)
    check(reply)
