"""The vocabulary of directed schedules.

A schedule names each step. ``Play`` is one small world with the one-partition topics ``a`` and
``b``; its actors are A and B (leaders), C (transaction coordinator) and G (group coordinator).
At the end of ``with Play() as play`` the world is healed, everything is read, and all checkers
judge the history, so a schedule asserts only what is specific to it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from crash_disk import DataLoss, NameLoss
from inside import core_of
from sim_history import Outcome, Write
from sim_launcher import founded_disks
from sim_log_watch import LogWatch, watching
from sim_network import Exchange, Gate
from sim_stage import Player, Stage, WorkloadPlan
from sim_swarm import CLUSTER, _read_everything
from sim_txn_checkers import check_history
from sim_world import World, WorldSettings

from oncelog.actors.protocol.access import SERVER
from oncelog.actors.replica.replica import Replica
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.api.producing.producer import AsyncProducer
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import IsolationLevel, TopicPartition

A = "partition:a-0@1"
B = "partition:b-0@1"
C = "transaction:0@1"
G = "group:0@1"
TOPICS = {"a": 1, "b": 1}
STEP_LIMIT_S = 120.0
TIMES = pytest.mark.parametrize("times", [1, 2, 3])
"""How often a held message is delivered."""

HASTY = {
    "linger_ms": 0,
    "request_timeout_ms": 500,
    "delivery_timeout_ms": 20_000,
    "max_block_ms": 30_000,
    "retry_backoff_ms": 20,
    "retry_backoff_max_ms": 200,
}
"""Settings of a producer that gives a call up soon and goes on for long."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call as it once arrived, to be made again word for word."""

    callee: str
    request: Any


class Writer:
    """One producer of one transactional id in a process of its own. Each method is one step."""

    def __init__(self, play: Play, name: str, transactional_id: str, **settings: Any) -> None:
        self.play = play
        self.name = name
        self.transactional_id = transactional_id
        self.client = play.world.client(name)
        self.player = Player(play.stage, self.client, Random(f"{name} {play.world.seed}"))
        self.owner = self.player.new_owner()
        self.write: Write | None = None
        self._settings = {**HASTY, **settings}
        self.producer: AsyncProducer = self.do(self._make())

    async def _make(self) -> AsyncProducer:
        return self.client.producer(transactional_id=self.transactional_id, **self._settings)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a step whose end is waited for later, with ``play.end``."""
        return self.client.spawn(work)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Take a step to its end."""
        return self.play.end(self.start(work))

    @property
    def identity(self) -> tuple[int, int]:
        """Producer id and epoch, as the producer has them now."""
        identity = core_of(self.producer).sender.transaction.identity
        assert identity is not None
        return identity.producer_id, identity.producer_epoch

    async def claiming(self) -> bool:
        """``init_transactions``, noted."""
        return await self.player.claim(self.producer, self.owner, self.transactional_id)

    def claim(self) -> bool:
        """Claim the id and wait for the answer."""
        return bool(self.do(self.claiming()))

    def begin(self) -> Write:
        """``begin_transaction``, noted."""
        self.do(self.producer.begin_transaction())
        self.write = self.player.history.begin(self.owner, self.transactional_id)
        return self.write

    async def sending(self, topic: str, value: str) -> None:
        """Send a record and flush."""
        assert self.write is not None
        record = self.player.history.send(self.write, TopicPartition(topic, 0), value)
        await self.player.send(self.producer, record)
        await self.producer.flush()

    def send(self, topic: str, *values: str) -> None:
        """Send records and wait until they are acknowledged."""
        for value in values:
            self.do(self.sending(topic, value))

    async def committing(self) -> bool:
        """Ask for the commit; whether all of it was visible when the answer came."""
        assert self.write is not None
        self.player.history.start_commit(self.write)
        visible = await self.producer.commit_transaction()
        self.player.ended(self.write, Outcome.OK, is_visible=visible)
        return visible

    def commit(self) -> bool:
        """Commit and wait for the answer."""
        return bool(self.do(self.committing()))

    async def aborting(self) -> None:
        """Ask for the abort."""
        assert self.write is not None
        await self.producer.abort_transaction()
        self.player.ended(self.write, Outcome.FAIL)

    def abort(self) -> None:
        """Abort and wait for the answer."""
        self.do(self.aborting())

    def transaction(self, **values: str) -> None:
        """A whole transaction: topic=value for each record, committed."""
        self.begin()
        for topic, value in values.items():
            self.send(topic, value)
        self.commit()

    def refused(self, work: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> ErrorCode:
        """The code a step is refused with; the schedule fails if it is not."""
        try:
            self.play.end(work if isinstance(work, asyncio.Task) else self.start(work))
        except OncelogError as error:
            return error.code
        raise AssertionError("the step was not refused")


class Member:
    """A member of the group ``readers`` that owns ``a`` and has read it to its end."""

    def __init__(self, play: Play, name: str) -> None:
        self.play = play
        self.client = play.world.client(name)
        self.consumer: AsyncConsumer = self.do(self._make())

    async def _make(self) -> AsyncConsumer:
        consumer = self.client.consumer(
            group_id="readers",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=3_000,
            heartbeat_interval_ms=500,
        )
        await consumer.subscribe("a")
        while not consumer.assignment():
            await consumer.poll(100)
        return consumer

    @property
    def identity(self) -> ConsumerGroupMetadata:
        """Who it is in its group now."""
        return self.consumer.group_metadata()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a step whose end is waited for later, with ``play.end``."""
        return self.client.spawn(work)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Take a step to its end."""
        return self.play.end(self.start(work))


class Play:
    """A world, its history, and the checks at its end. Use it as a context manager."""

    def __init__(self, seed: int = 1, **cluster: Any) -> None:
        self._exit = ExitStack()
        settings = WorldSettings(
            cluster=dataclasses.replace(
                CLUSTER, transaction_state_partitions=1, offsets_partitions=1, **cluster
            )
        )
        founded_disks(TOPICS, settings)
        self.watch: LogWatch = self._exit.enter_context(watching())
        self.world = self._exit.enter_context(World(seed, topics=TOPICS, settings=settings))
        self.stage = Stage(self.world, WorkloadPlan(topics=TOPICS, duration_s=0))
        self._calls: list[Call] = []
        self.world.network.watchers.append(self._listen)

    def __enter__(self) -> Play:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.check()
        finally:
            self._exit.close()

    # --- steps --------------------------------------------------------------------------------

    def writer(
        self, transactional_id: str = "T", *, name: str = "P", claims: bool = True, **settings: Any
    ) -> Writer:
        """A producer; it has claimed its id unless it ``claims`` later."""
        writer = Writer(self, name, transactional_id, **settings)
        assert not claims or writer.claim()
        return writer

    def _listen(self, exchange: Exchange, message: Any, is_reply: bool) -> None:
        if not is_reply:
            self._calls.append(Call(exchange.callee, message))

    def calls(self, method: str, callee: str = "*") -> list[Call]:
        """Every call of ``method`` that has arrived, those at a gate included, the first first."""
        return [
            call
            for call in self._calls
            if call.request.method == method and callee in ("*", call.callee)
        ]

    def ask(self, call: Call, times: int = 1) -> Any:
        """Make a call, again, from a process that is nobody's; its last reply."""
        client = self.world.client(f"caller-{self.world.loop.event_count}")
        # As whoever sent it: also a coordinator that has died.
        client.principal = SERVER
        for _ in range(times):
            asking = client.transport.call(call.callee, call.request, timeout_ms=5_000)
            reply = self.end(client.spawn(asking))
        self.world.end_process(client, "leaves")
        return reply

    def hold(self, method: str, *, reply: bool = False, **match: Any) -> Gate:
        """Hold the next call of ``method``, or its reply; later ones pass."""
        return self.world.network.hold(method, reply=reply, limit=match.pop("limit", 1), **match)

    def until_held(self, gate: Gate, count: int = 1) -> None:
        """Go on until the gate holds ``count`` messages."""
        self.world.run(gate.wait_held(count), limit_s=STEP_LIMIT_S)

    def end(self, task: asyncio.Task[Any]) -> Any:
        """Go on until a step that was started is done; its result."""
        return self.world.run(task, limit_s=STEP_LIMIT_S)

    def pass_time(self, seconds: float = 1.0) -> None:
        """Let what is on its way arrive."""
        self.world.run_for(seconds)

    def crash(self, *names: str) -> None:
        """kill -9 of actors, which come back; returns when all serve again."""
        for name in names:
            assert self.world.kill(name), f"{name} does not run"
        self.until_serving()

    def roll(self, *names: str) -> None:
        """Leaders begin a new segment, and so leave a snapshot of their producers."""

        async def roll(replica: Replica) -> None:
            replica.log.roll(replica.machine.snapshot())

        for name in names:
            process = self.world.actor(name)
            assert process is not None
            self.end(process.spawn(roll(process.server.replica)))

    def stop(self, name: str, *, is_power_lost: bool) -> None:
        """An actor dies and comes back later: its files may be touched before."""
        if is_power_lost:
            self.world.power_loss([name], data=DataLoss.ALL, entries=NameLoss.ALL)
        else:
            assert self.world.kill(name)

    def crash_all(self, *, is_power_lost: bool) -> None:
        """kill -9 of every actor, or a loss of power that takes all that was not synced."""
        if is_power_lost:
            self.world.power_loss(data=DataLoss.ALL, entries=NameLoss.ALL)
        else:
            for name in self.world.actor_names():
                self.world.kill(name)
        self.until_serving()

    def until_serving(self) -> None:
        """Go on until every actor serves."""
        self.world.run(self.world.until_world_serves(), limit_s=STEP_LIMIT_S)

    # --- what is seen -------------------------------------------------------------------------

    def machine(self, actor: str) -> Any:
        """The state machine of an actor's replica."""
        return self.world.replicas()[actor].machine

    def log_end(self, actor: str) -> int:
        """Where the log of an actor ends."""
        return int(self.machine(actor).log_end_offset)

    def read(
        self, topic: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> list[str]:
        """What a reader that begins now gets, up to the end that is told to it."""
        client = self.world.client(f"reader-{self.world.loop.event_count}")
        values: list[str] = self.end(client.spawn(_read(client, topic, isolation)))
        self.world.end_process(client, "leaves")
        return values

    def check(self) -> None:
        """Heal, read everything, and let every checker speak."""
        for process in list(self.world.processes.values()):
            if not hasattr(process, "server"):
                self.world.end_process(process, "leaves")
        self.world.quiesce()
        self.stage.history.settle()
        _read_everything(self.stage)
        found = [*self.watch.violations, *check_history(self.stage.history)]
        story = self.world.story.text()
        assert not found, "\n".join([*map(str, found), "--- the last of the story:", story])


async def _read(client: Any, topic: str, isolation: IsolationLevel) -> list[str]:
    topic_partition = TopicPartition(topic, 0)
    consumer = client.consumer(isolation_level=isolation)
    await consumer.assign(topic_partition)
    await consumer.seek_to_beginning()
    end = (await consumer.end_offsets(topic_partition))[topic_partition]
    values: list[str] = []
    while await consumer.position(topic_partition) < end:
        values += [record.value.decode() for record in await consumer.poll(1_000)]
    await consumer.close()
    return values
