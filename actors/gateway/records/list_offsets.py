"""ListOffsets: the offsets that belong to times, and the ends of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from oncelog.actors.gateway.calls import CALL_TIMEOUT_MS, Call
from oncelog.actors.gateway.errors import of_leader
from oncelog.actors.gateway.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from oncelog.actors.protocol.messages import partition as leader_messages
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    IsolationLevel,
    TopicPartition,
)

if TYPE_CHECKING:
    from oncelog.actors.gateway.records.handlers import Found, Leaders

LEADER_NOT_AVAILABLE: Final = 5
UNSUPPORTED_VERSION: Final = 35

EARLIEST_LOCAL_TIMESTAMP: Final = -4
"""The first offset that is not only in remote storage: here the first one (KIP-405)."""

LATEST_TIERED_TIMESTAMP: Final = -5
"""The last offset in remote storage: here there is none (KIP-1005)."""

_FIRST_VERSIONS: Final = {
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
}
"""Negative times and the version from which on they may be asked for."""

_OFFSET_NOT_AVAILABLE_VERSION: Final = 5
_EPOCH_VERSION: Final = 4


class OffsetLists:
    """Answers ListOffsets."""

    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders

    async def handle(self, call: Call, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Ask all leaders at the same time."""
        wanted = [(topic.name, one) for topic in request.topics for one in topic.partitions]
        level = (
            IsolationLevel.READ_COMMITTED
            if request.isolation_level
            else IsolationLevel.READ_UNCOMMITTED
        )
        found = await self._leaders.find_all([(name, one.partition_index) for name, one in wanted])
        throttle_ms = 0

        async def ask(
            one: tuple[Found, tuple[str, ListOffsetsPartition]],
        ) -> ListOffsetsPartitionResponse:
            nonlocal throttle_ms
            place, (name, partition) = one
            answer, waits_ms = await self._ask(call, place, name, partition, level)
            throttle_ms = max(throttle_ms, waits_ms)
            return answer

        answers = iter(await self._leaders.ask_each(list(zip(found, wanted, strict=True)), ask))
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(topic.name, [next(answers) for _ in topic.partitions])
                for topic in request.topics
            ],
            throttle_time_ms=throttle_ms,
        )

    async def _ask(
        self,
        call: Call,
        place: Found,
        name: str,
        wanted: ListOffsetsPartition,
        level: IsolationLevel,
    ) -> tuple[ListOffsetsPartitionResponse, int]:
        """The answer for one partition, and for how long its leader wants the client to wait."""
        time = wanted.timestamp
        if time < 0 and call.version < _FIRST_VERSIONS.get(time, call.version + 1):
            return _refused(wanted, UNSUPPORTED_VERSION), 0
        asked = leader_messages.ListOffsetsRequest(
            topic_partition=TopicPartition(name, wanted.partition_index),
            timestamp_ms=_OURS.get(time, time),
            isolation_level=level,
            leader_epoch=wanted.current_leader_epoch,
        )
        reply = await self._leaders.ask(call, place, asked, timeout_ms=CALL_TIMEOUT_MS)
        throttle_ms = 0 if reply.throttle_ms is UNSET else reply.throttle_ms
        if reply.error is not ErrorCode.NONE:
            code = of_leader(reply.error)
            if code == ErrorCode.OFFSET_NOT_AVAILABLE and (
                call.version < _OFFSET_NOT_AVAILABLE_VERSION
            ):
                code = LEADER_NOT_AVAILABLE
            return _refused(wanted, code), throttle_ms
        if time == LATEST_TIERED_TIMESTAMP or reply.offset == NO_OFFSET:
            return ListOffsetsPartitionResponse(wanted.partition_index), throttle_ms
        epoch = NO_LEADER_EPOCH
        if call.version >= _EPOCH_VERSION:
            newest = self._leaders.find(name, wanted.partition_index)
            epoch = NO_LEADER_EPOCH if newest is None else newest.partition.leader_epoch
        answer = ListOffsetsPartitionResponse(
            wanted.partition_index, 0, reply.timestamp_ms, reply.offset, epoch
        )
        return answer, throttle_ms


_OURS: Final = {
    EARLIEST_LOCAL_TIMESTAMP: EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP: EARLIEST_TIMESTAMP,
}
"""What a leader is asked for instead. Of the last one only whether it may be asked counts."""


def _refused(wanted: ListOffsetsPartition, code: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(wanted.partition_index, code)
