"""A cluster that administrators among Kafka's clients ask, through a gateway's handlers.

The controller is real, on a directory. Leaders, replicas and coordinators are told what to answer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from actor_environment import InlineBackground
from controller_world import ACTORS_ALONE, ControllerWorld
from virtual_time import ManualClock, run_virtually

from oncelog.actors.config import ClusterConfig
from oncelog.actors.coordination.cluster_view import ClusterView
from oncelog.actors.gateway.administration import acls, brokers, configs, topics, transactions
from oncelog.actors.gateway.calls import Call, Client, Cluster
from oncelog.actors.gateway.messages.apis import APIS, ApiKey
from oncelog.actors.interfaces import CONTROLLER_ACTOR, actor_of
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.messages.access import Access, Acl, Rules
from oncelog.actors.protocol.messages.cluster import (
    BecomeLeaderRequest,
    MetadataReply,
    MetadataRequest,
    TopicMetadata,
)
from oncelog.actors.rpc.door import Door
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import INTERNAL_TOPICS, TopicPartition

HANDLERS = {
    **topics.HANDLERS,
    **configs.HANDLERS,
    **brokers.HANDLERS,
    **acls.HANDLERS,
    **transactions.HANDLERS,
}

Story = Callable[["AdminCluster"], Awaitable[None]]


class AdminCluster(ControllerWorld):
    """``Transport`` of a gateway on broker 1, and the controller that answers it.

    ``failing[method]`` are errors that the next calls of a method get, unseen by any actor;
    ``losing[method]`` says how many replies are lost, of calls that have had their effect.
    ``answers[actor, method]`` is the reply of another actor, or the controller's instead of its
    own; or a function that makes it of the request. A partition of a user's topic is led, by its
    first replica, ``lead_after_ms`` after it was created; ``None``: never.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, InlineBackground)
        self.asked: list[tuple[str, Any]] = []
        self.timeouts_ms: list[tuple[str, int]] = []
        self.failing: defaultdict[str, list[ErrorCode]] = defaultdict(list)
        self.losing: defaultdict[str, int] = defaultdict(int)
        self.answers: dict[tuple[str, str], Any] = {}
        self.lead_after_ms: int | None = 0
        self.acls: tuple[Acl, ...] | None = None
        """``None`` until the rules are switched on."""
        self.busiest: defaultdict[str, int] = defaultdict(int)
        """The most calls of a method that were open at one time."""
        self._open: defaultdict[str, int] = defaultdict(int)
        self._tasks: list[asyncio.Task[Any]] = []
        self.gateway = _Gateway(self)
        self.cluster = self.new_cluster()

    def new_cluster(self) -> Cluster:
        """What a gateway that starts anew knows."""
        rules = Rules(version=1, is_on=self.acls is not None, acls=self.acls or ())
        return Cluster(
            transport=self.gateway,
            door=Door(Access(rules=rules)),
            view=ClusterView(self._metadata, self.spawn),
            clock=ManualClock(),
            random=Random(1),
            broker_id=1,
        )

    def allow(self, *allowed: Acl) -> None:
        """Switch the rules on: clients may do this and no more."""
        self.acls = allowed
        self.cluster = self.new_cluster()

    async def ask(self, key: ApiKey, request: Any, *, name: str = "User:ann") -> Any:
        """The handler's answer, which must have a form in bytes in every version."""
        client = Client(principal=Principal(name), host="10.0.0.9")
        version = APIS[key].versions[-1]
        call = Call(cluster=self.cluster, client=client, version=version, client_id="app")
        response = await HANDLERS[key](call, request)
        for each in APIS[key].versions:
            assert APIS[key].encode[each](response)
        return response

    def requests(self, method: str) -> list[Any]:
        """What actors were asked, by the gateway."""
        return [request for _, request in self.asked if request.method == method]

    def topic(self, name: str) -> TopicMetadata:
        (found,) = self.controller.machine.metadata([name])
        return found

    async def lead(self, tp: TopicPartition, broker_id: int) -> None:
        """A replica starts, and leads if nobody does."""
        request = BecomeLeaderRequest(
            topic_partition=tp,
            topic_id=self.topic(tp.topic).topic_id,
            broker_id=broker_id,
            incarnation=f"{tp}@{broker_id}",
            expected_epoch=self.partition(tp).leader_epoch,
        )
        reply = await self.controller.become_leader(request)
        assert reply.error is ErrorCode.NONE, reply

    def move(self, tp: TopicPartition, broker_id: int) -> None:
        """The controller says from now on that another broker leads a partition."""
        self.controller.machine.topics[tp.topic].partitions[tp.partition].leader = broker_id

    def answer(self, tp: TopicPartition, method: str, reply: Any, broker_id: int = 1) -> None:
        """What the replica of a partition on a broker answers."""
        self.answers[actor_of(tp, broker_id), method] = reply

    # --- transport of the gateway -------------------------------------------------------------

    async def gateway_call(self, actor: str, request: Any) -> Any:
        method = request.method
        self.asked.append((actor, request))
        self._open[method] += 1
        self.busiest[method] = max(self.busiest[method], self._open[method])
        try:
            await asyncio.sleep(0)
            return await self._answer(actor, request)
        finally:
            self._open[method] -= 1

    async def _answer(self, actor: str, request: Any) -> Any:
        method = request.method
        if self.failing[method]:
            return request.failed(self.failing[method].pop(0))
        found = self.answers.get((actor, method), request.failed(ErrorCode.NETWORK_EXCEPTION))
        if actor == CONTROLLER_ACTOR and (actor, method) not in self.answers:
            reply = await getattr(self.controller, method)(request)
        else:
            reply = found(request) if callable(found) else found
        if self.losing[method]:
            self.losing[method] -= 1
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        return reply

    async def _metadata(self, request: MetadataRequest) -> MetadataReply:
        return await self.controller.metadata(request)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    async def end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert not isinstance(ended, Exception), ended

    # --- launcher -----------------------------------------------------------------------------

    async def start(self, placements: Sequence[Placement]) -> None:
        await super().start(placements)
        owned = [one for one in placements if one.topic_partition.topic not in INTERNAL_TOPICS]
        if self.lead_after_ms is not None:
            self.spawn(self._lead_all(owned, self.lead_after_ms))

    async def _lead_all(self, placements: Sequence[Placement], after_ms: int) -> None:
        await asyncio.sleep(after_ms / 1_000)
        for placement in placements:
            partition = self.partition(placement.topic_partition)
            if partition.leader < 0 and partition.replicas[0] == placement.broker_id:
                await self.lead(placement.topic_partition, placement.broker_id)


class _Gateway:
    """``Transport``, so that calls of the controller are not taken for those of the gateway."""

    def __init__(self, world: AdminCluster) -> None:
        self._world = world

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        assert timeout_ms > 0
        self._world.timeouts_ms.append((request.method, timeout_ms))
        return await self._world.gateway_call(actor, request)


def play(directory: Path, story: Story, config: ClusterConfig = ACTORS_ALONE) -> None:
    """Run a story in virtual time, with a controller of one broker, which is 1."""

    async def body() -> None:
        world = AdminCluster(directory)
        await world.begin(config)
        try:
            await story(world)
        finally:
            await world.end_tasks()
            await world.stop()

    run_virtually(body())
