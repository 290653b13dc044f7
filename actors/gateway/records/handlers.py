"""How the leaders of partitions are found and asked, and the handlers that do so.

Records do not wait for the controller: what it once said of a topic is used until a leader says
that it does not lead, or a partition is not known. Then the controller is asked, and the leader
that it names gets the question, once. A client that hears NOT_LEADER_OR_FOLLOWER asks again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from oncelog.actors.coordination.cluster_view import ANY_AGE_MS
from oncelog.actors.gateway.calls import CALL_TIMEOUT_MS, Call, Cluster
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.records.fetch import Fetches
from oncelog.actors.gateway.records.list_offsets import OffsetLists
from oncelog.actors.gateway.records.produce import Produces
from oncelog.actors.gateway.records.producer_ids import Handler, PlainTickets, ProducerIds
from oncelog.actors.gateway.transactions.enrolments import Enrolments
from oncelog.actors.interfaces import CONTROLLER_ACTOR, follower_address, leader_address
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.messages.cluster import (
    MetadataRequest,
    PartitionMetadata,
    TopicMetadata,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition, is_valid_topic_name

_logger = logging.getLogger(__name__)

PLACES_MAX: Final = 50_000
"""Partitions whose leader's address is remembered; beyond that all are made anew."""

UNKNOWN_TOPICS_MAX: Final = 1_000
"""Topics that the controller is asked about for one request; those beyond it are unknown."""

ASKED_AT_ONCE_MAX: Final = 500
"""Partitions of one request whose leaders are asked at the same time; the others come after."""

IDS_AGAIN_MS: Final = 1_000
"""Time between questions for all topics, for an id that none of the known ones has."""

_WRONG_LEADER: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""What an actor answers that is not, or no longer, or not yet the leader."""

_TOPIC_ID = re.compile("[0-9a-f]{32}")
"""Any other, which a program may have given its topic, cannot be told to a client of Kafka."""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Place:
    """A partition, as the controller described it, and the address of its leader, if any."""

    tp: TopicPartition
    topic: TopicMetadata
    partition: PartitionMetadata
    actor: str | None

    def follower(self, broker_id: int) -> str | None:
        """The address of an in-sync follower on a broker."""
        return follower_address(self.topic, self.partition, broker_id)


Found: TypeAlias = "Place | ErrorCode"
"""A place, or why there is none: no such partition, or the controller does not answer."""


class Leaders:
    """Finds the leaders of partitions, and asks them in the name of clients. One per gateway."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._view = cluster.view
        self._places: dict[tuple[str, int], Place] = {}
        self._names: dict[bytes, str] = {}
        """By topic id; bounded by the topics that are known."""
        self._asking_ids = asyncio.Lock()
        self._ids_asked_ms = -IDS_AGAIN_MS

    # --- where ----------------------------------------------------------------------------

    def find(self, topic: str, partition: int) -> Place | None:
        """The place of a partition, if it is known without asking."""
        found = self._view.find(topic, as_of_ms=ANY_AGE_MS)
        return None if found is None else self._place(found, partition)

    async def find_all(self, wanted: Sequence[tuple[str, int]]) -> list[Found]:
        """The places of partitions, by topic and number: one question for all unknown ones."""
        found: list[Found | None] = [self.find(*one) for one in wanted]
        unknown = {topic for (topic, _), place in zip(wanted, found, strict=True) if place is None}
        if not unknown:
            return [place for place in found if place is not None]
        error = await self._look_up(unknown)
        return [
            self._newest(*one, error) if place is None else place
            for one, place in zip(wanted, found, strict=True)
        ]

    async def _again(self, tp: TopicPartition) -> Found:
        """The place of a partition as the controller says from now on."""
        return self._newest(tp.topic, tp.partition, await self._look_up((tp.topic,)))

    async def _look_up(self, topics: Collection[str]) -> ErrorCode:
        """Ask the controller; an error if it does not answer."""
        names = [name for name in topics if is_valid_topic_name(name)][:UNKNOWN_TOPICS_MAX]
        if not names:
            return ErrorCode.NONE
        error, _ = await self._view.topics(names, as_of_ms=loop_ms())
        return error

    def _newest(self, topic: str, partition: int, error: ErrorCode) -> Found:
        """What is known after a question that ended with ``error``."""
        found = self._view.known.get(topic)
        place = None if found is None else self._place(found, partition)
        if place is not None:
            return place
        is_gone = error is ErrorCode.NONE
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_gone else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _place(self, topic: TopicMetadata, number: int) -> Place | None:
        key = (topic.name, number)
        place = self._places.get(key)
        if place is not None and place.topic is topic:
            return place
        partition = topic.find(number)
        if partition is None:
            return None
        if len(self._places) >= PLACES_MAX:
            self._places.clear()
        tp = TopicPartition(topic.name, number)
        place = self._places[key] = Place(tp, topic, partition, leader_address(topic, partition))
        return place

    # --- topic ids ------------------------------------------------------------------------

    async def names_of(self, topic_ids: Collection[bytes]) -> Mapping[bytes, str]:
        """The names of topics by their ids of 16 bytes; an id that no topic has is left out."""
        named = self._named(topic_ids)
        if len(named) < len(topic_ids):
            self._learn_names()
            named = self._named(topic_ids)
        if len(named) < len(topic_ids):
            await self._ask_for_all()
            named = self._named(topic_ids)
        return named

    def _named(self, topic_ids: Collection[bytes]) -> dict[bytes, str]:
        known, named = self._view.known, {}
        for topic_id in topic_ids:
            name = self._names.get(topic_id)
            topic = None if name is None else known.get(name)
            if name is not None and topic is not None and topic.topic_id == topic_id.hex():
                named[topic_id] = name
        return named

    def _learn_names(self) -> None:
        """The ids of all topics that are known, and of no others."""
        self._names = {
            bytes.fromhex(topic.topic_id): name
            for name, topic in self._view.known.items()
            if _TOPIC_ID.fullmatch(topic.topic_id)
        }

    async def _ask_for_all(self) -> None:
        """Ask for all topics, unless that was done a moment ago: nobody can be asked for an id."""
        async with self._asking_ids:
            if loop_ms() - self._ids_asked_ms < IDS_AGAIN_MS:
                return
            self._ids_asked_ms = asked_ms = loop_ms()
            known = tuple(self._view.known)
            reply = await self._cluster.transport.call(
                CONTROLLER_ACTOR, MetadataRequest(), timeout_ms=CALL_TIMEOUT_MS
            )
            if reply.error is ErrorCode.NONE:
                self._view.remember(reply, known, asked_ms=asked_ms)
                self._learn_names()

    # --- asking ---------------------------------------------------------------------------

    async def ask(
        self,
        call: Call,
        place: Found,
        request: Request[ReplyT],
        *,
        timeout_ms: int,
        may_repeat: bool = True,
    ) -> ReplyT:
        """Ask the leader; if it is none, whom the controller names now.

        Not if ``may_repeat`` is false: a batch without sequence numbers may have been written.
        """
        if not isinstance(place, Place):
            return await self._unplaced(call, place, request)
        if place.actor is not None:
            reply = await call.ask(place.actor, request, timeout_ms=timeout_ms)
            if reply.error not in _WRONG_LEADER:
                return reply
        found = await self._again(place.tp)
        if not isinstance(found, Place):
            return await self._unplaced(call, found, request)
        if place.actor is not None and not may_repeat:
            return reply
        return await call.ask(found.actor, request, timeout_ms=timeout_ms)

    async def ask_for_itself(self, tp: TopicPartition, request: Request[ReplyT]) -> ReplyT:
        """Ask the leader what the gateway needs to know, whatever the client may."""
        place = self.find(tp.topic, tp.partition)
        if place is None or place.actor is None:
            return request.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return await self._cluster.transport.call(place.actor, request, timeout_ms=CALL_TIMEOUT_MS)

    async def _unplaced(self, call: Call, error: ErrorCode, request: Request[ReplyT]) -> ReplyT:
        """``error``, but who may not ask about the topic hears that."""
        reply = await call.ask(None, request)
        is_allowed = reply.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        return request.failed(error) if is_allowed else reply

    @staticmethod
    async def ask_each(
        items: Sequence[ItemT], ask: Callable[[ItemT], Coroutine[Any, Any, ResultT]]
    ) -> list[ResultT]:
        """What ``ask`` gives for each item, in order; they are asked at the same time.

        For one alone there is no task; of very many a part is asked at a time.
        """
        if len(items) == 1:
            return [await ask(items[0])]
        results: list[ResultT] = []
        for first in range(0, len(items), ASKED_AT_ONCE_MAX):
            some = items[first : first + ASKED_AT_ONCE_MAX]
            results += await asyncio.gather(*map(ask, some))
        return results


class RecordHandlers:
    """Produce, Fetch, ListOffsets and InitProducerId of one gateway.

    ``enrolments`` gives the tickets of transactional batches, and ``init_transactional`` answers
    InitProducerId with a transactional id; without them both are refused. ``on_bug`` is called with
    what a task of its own raises.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        enrolments: Enrolments | None = None,
        init_transactional: Handler | None = None,
        on_bug: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._tasks = OwnTasks(on_bug or _log_bug)
        leaders = Leaders(cluster)
        plain = PlainTickets(cluster, self._tasks.spawn)
        self.leaders: Final = leaders
        self._fetches = Fetches(leaders, self._tasks.spawn, broker_id=cluster.broker_id)
        self._produces = Produces(leaders, plain, enrolments)
        producer_ids = ProducerIds(cluster, self._tasks.spawn, init_transactional)
        self.handlers: Final[Mapping[ApiKey, Handler]] = {
            ApiKey.PRODUCE: self._produces.handle,
            ApiKey.FETCH: self._fetches.handle,
            ApiKey.LIST_OFFSETS: OffsetLists(leaders).handle,
            ApiKey.INIT_PRODUCER_ID: producer_ids.handle,
        }

    async def close(self) -> None:
        """End what is on its way to leaders, and drop what is kept for clients."""
        self._fetches.close()
        tasks = self._tasks.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _log_bug(bug: BaseException) -> None:
    _logger.error(
        "a task of the gateway failed — this is a bug: report it with this log", exc_info=bug
    )
