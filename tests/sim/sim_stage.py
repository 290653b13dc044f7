"""Where simulated clients work: their world, their history, their randomness, and who is on.

A *role* is a client that exists for the whole run: whenever its process is killed, another one of
its name starts over. All randomness comes from generators split off the seed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any

from inside import core_of
from sim_history import Claim, EndOffset, History, Outcome, SentRecord, Write, key_of
from sim_process import Client
from sim_world import World

from oncelog.actors.protocol.access import Principal
from oncelog.api.batching.delivery import RecordMetadata
from oncelog.api.config import ProducerSettings
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.api.producing.member import AsyncTransactionMember
from oncelog.api.producing.producer import AsyncProducer
from oncelog.api.records import ConsumerRecord
from oncelog.storage.exceptions import InvalidTimestampError, OncelogError
from oncelog.storage.model import IsolationLevel, TopicPartition

CALLS_AGAIN_MAX = 4
"""How often a client makes a call again that may have taken effect, before it gives up."""

COPY_GROUP = "copiers"
COPY_SOURCE = "t0"
COPY_TARGET = "copies"
PROCESS_GROUP = "processors"
PROCESS_TARGET = "processed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    """Who is on stage, for how long, and how they behave. Times in ms but for ``duration_s``."""

    topics: dict[str, int]
    duration_s: float
    writers: int = 1
    hijackers: int = 0
    intruders: int = 0
    rogues: int = 0
    impostors: int = 0
    strangers: int = 0
    commit_readers: int = 0
    preparers: int = 0
    plain_writers: int = 0
    jobs: int = 0
    queries: int = 0
    """How many drivers run the one query that there is."""
    operators: int = 0
    remakers: int = 0
    copiers: int = 0
    static_ratio: float = 0.3
    slow_copies: float = 0.0
    """How often a copier's transaction takes longer than its group waits for a poll."""
    spanning_ratio: float = 0.0
    """How often a copier's transaction goes on with what later polls bring."""
    processors: int = 0
    slow_functions: float = 0.0
    """How often the function of a processor takes longer than its group waits for a poll."""
    on_error: str = "fail"
    bad_inputs: float = 0.0
    """How often the function of a processor fails: with "retry" a call, else an input for good."""
    scalings: float = 0.0
    """How often a processor leaves its job after a while, as those too many do, and comes again."""
    shutdowns: float = 0.0
    """How often writers and readers cancel all that runs in their process, and go on."""
    wrong_times: float = 0.0
    """How often a record without transaction has a timestamp that its topic refuses."""
    near_reads: float = 0.0
    """How often a consumer reads from the followers of one of the racks."""
    readers: int = 1
    uncommitted_readers: int = 0
    abort_ratio: float = 0.15
    transaction_timeout_ms: int = 5_000
    request_timeout_ms: int = 1_000
    pause_ms: float = 50.0
    kafka_writers: int = 0
    """Clients of Kafka; see ``sim_kafka_clients``."""
    kafka_copiers: int = 0
    kafka_sharers: int = 0
    """Clients of Kafka that write under ids of each other, and of our own writers."""
    kafka_kinds: tuple[str, ...] = ("java-4",)
    kafka_batch_max: int = 3
    """How many records at most they send as one batch."""
    kafka_commits_max: int = 1
    """How often a copier among them commits positions in one transaction."""
    kafka_ends_after_ms: float = 0.0
    """How long such a copier mostly thinks before it ends a transaction."""
    kafka_delays: float = 0.0
    """How often calls of gateways about transactions are delayed, beside what ``faults`` do."""
    kafka_delayed: tuple[str, ...] = ()
    """Which of them, if not all."""
    kafka_repeats: float = 0.0
    """How often these come again."""
    kafka_stalls: float = 0.0
    """The same of what they and their clients send each other."""
    kafka_slow: float = 0.05
    """How often their transactions take a time that may be longer than they may."""
    kafka_pauses: float = 0.0
    """How often per second a gateway stalls, beside what ``faults`` do."""
    kafka_moves: float = 0.0
    """How often per second a coordinator of transactions dies and begins anew."""
    kafka_first_epoch: int = 0
    """Of each new transactional id: near 32,766 the epochs are soon used up."""
    kafka_keeps_ids: bool = False
    """Whether nothing can take their ids, not even a late call: who is fenced was wronged."""
    kafka_holds: float = 0.0
    """How often a batch stays on its connection until its client has given that up; other
    connections are as they were."""
    kafka_purges: float = 0.2
    """How often a program aborts while batches are lost, if its client then uses their sequences
    again."""
    kafka_late: float = 0.7
    """How often what they sent on a connection that they close still arrives; else it is lost."""
    kafka_wanders: float = 0.0
    """How often they ask another gateway than that of the coordinator's broker."""

    @property
    def has_kafka(self) -> bool:
        """Whether any client of Kafka is on stage."""
        return bool(self.kafka_writers or self.kafka_copiers or self.kafka_sharers)


NO_KAFKA: dict[str, Any] = {
    part.name: part.default for part in fields(WorkloadPlan) if part.name.startswith("kafka_")
}
"""Changes that leave clients of Kafka out."""


@dataclass(slots=True)
class Stage:
    """What all clients share."""

    world: World
    plan: WorkloadPlan
    topics: dict[str, int] = field(default_factory=dict)
    """Partitions by topic, as far as clients know: those of the plan, and what operators made."""
    history: History = field(default_factory=History)
    counts: Counter[str] = field(default_factory=Counter)
    is_over: bool = False
    refused: set[str] = field(default_factory=set)
    """What strangers were refused for lack of one right, as ``sim_stranger`` names it."""
    first_rules: int = 0
    """The version from which on a process must have the rules."""
    next_versions: dict[str, int] = field(default_factory=dict)
    """Of each application that planners write: no version below is to be committed any more."""
    in_commit_order: dict[str, dict[TopicPartition, Any]] = field(default_factory=dict)
    """What each reader in commit order has delivered; see ``sim_commit_order``."""
    databases: dict[str, Any] = field(default_factory=dict)
    """The other system of each program that writes to two; see ``sim_prepared``."""
    job_ids: set[str] = field(default_factory=set)
    """Under which planners write again and again, without an application."""
    gateways: Any = None
    """Where clients of Kafka connect; see ``sim_gateways``."""

    def __post_init__(self) -> None:
        self.topics = {**self.plan.topics, **self.topics}

    @property
    def partitions(self) -> list[TopicPartition]:
        """Every partition that is written to or read by now."""
        return [
            TopicPartition(topic, number)
            for topic, count in sorted(self.topics.items())
            for number in range(count)
        ]

    def targets(self) -> list[TopicPartition]:
        """Where writers write: everything but what outputs go to."""
        return [tp for tp in self.partitions if tp.topic not in (COPY_TARGET, PROCESS_TARGET)]


Life = Callable[["Player"], Awaitable[None]]

WRONG_BY_MS = 7_200_000
"""How far in the future a wrong timestamp is: further than topics allow."""

DELIVERY_SLACK_MS = 100
"""How much later than ``delivery_timeout_ms`` a record may have its outcome."""


SHUTDOWN_TURNS = 10
"""Turns of a loop within which cancelled tasks have ended, and whoever owns them knows."""


class Player:
    """One life of one role: its process, its own chance, and the names of what it makes."""

    def __init__(self, stage: Stage, client: Client, random: Random) -> None:
        self.stage = stage
        self.client = client
        self.random = random
        self.history = stage.history
        self._made = 0

    @property
    def is_on(self) -> bool:
        """Whether to go on."""
        return not self.stage.is_over

    def new_owner(self) -> str:
        """A name for one more producer, run or reader of this life."""
        self._made += 1
        return f"{self.client.name}#{self.client.incarnation}.{self._made}"

    def producer_settings(self) -> dict[str, object]:
        """Settings of a producer: hasty, so that much happens within seconds."""
        plan = self.stage.plan
        linger_ms = self.random.choice((0, 0, 5, 20))
        return {
            "linger_ms": linger_ms,
            "batch_size": self.random.choice((200, 1_000, 262_144)),
            "enrol_ahead_ms": self.random.choice((0, 20, 100, 300)),
            "request_timeout_ms": plan.request_timeout_ms,
            "delivery_timeout_ms": 4 * plan.request_timeout_ms + linger_ms,
            "max_block_ms": 5 * plan.request_timeout_ms,
            "retry_backoff_ms": 20,
            "retry_backoff_max_ms": 500,
        }

    async def pause(self, mean_ms: float | None = None) -> None:
        """Think for a while: mostly short, now and then long."""
        mean_ms = self.stage.plan.pause_ms if mean_ms is None else mean_ms
        if self.random.random() < 0.6:
            await asyncio.sleep(self.random.expovariate(1.0) * mean_ms / 1_000)

    async def wait(self, mean_s: float) -> None:
        """Do nothing for a while."""
        await asyncio.sleep(self.random.expovariate(1.0 / mean_s))

    def happens(self, name: str, what: str) -> bool:
        """Whether what the plan has a ratio of, under ``name``, happens now; ``what`` is unique."""
        # Of its own, so that the seeds kept for regressions draw the rest as they did.
        ratio = getattr(self.stage.plan, name)
        does_happen: bool = Random(f"{name} in {what}").random() < ratio
        self.stage.counts[name] += does_happen
        return does_happen

    def near_settings(self, what: str) -> dict[str, object]:
        """Now and then: the settings of a consumer in one of the racks; ``what`` is unique."""
        racks = self.stage.world.settings.racks
        if not racks or not self.happens("near_reads", what):
            return {}
        return {"client_rack": Random(f"rack of {what}").choice(racks)}

    async def cancel_all(self) -> None:
        """Cancel every task of the process but this one, and let the others see it."""
        for reference in tuple(self.client.tasks):
            task = reference()
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        for _ in range(SHUTDOWN_TURNS):
            await asyncio.sleep(0)

    # --- what is noted ------------------------------------------------------------------------

    async def send(
        self,
        sending: AsyncProducer | AsyncTransactionMember,
        record: SentRecord,
        *,
        is_in_time: bool = True,
    ) -> asyncio.Future[RecordMetadata]:
        """Send a record that is noted already, and note what the log answers."""
        topic_partition = record.topic_partition
        key = key_of(topic_partition, record.value)
        future = await sending.send(
            topic_partition.topic,
            key=None if key is None else key.encode(),
            value=record.value.encode(),
            partition=topic_partition.partition,
            timestamp_ms=None if is_in_time else sending._buffer.now_ms() + WRONG_BY_MS,
        )
        future.add_done_callback(lambda done: self._answered(record, done, is_in_time=is_in_time))
        self.expect([record], future, sending._buffer.settings)
        return future

    def expect(
        self,
        records: list[SentRecord],
        future: asyncio.Future[Any] | concurrent.futures.Future[Any],
        settings: ProducerSettings,
    ) -> None:
        """Look in time whether the outcome of records that were sent just now is known."""
        # On the client's own timers: while it is paused, or dead, nobody can be told anything.
        asyncio.get_running_loop().call_later(
            (settings.delivery_timeout_ms + DELIVERY_SLACK_MS) / 1_000,
            lambda: None if future.done() else self.history.overdue.extend(records),
        )

    def _answered(
        self, record: SentRecord, done: asyncio.Future[RecordMetadata], *, is_in_time: bool = True
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            if is_in_time and not done.cancelled():
                self._check_blame(record, done.exception())
            if record.write.transactional_id is None and record.write.ended_at is None:
                self.history.end(record.write, Outcome.UNKNOWN)
            return
        self.acknowledged(record, done.result().offset)

    def _check_blame(self, record: SentRecord, error: BaseException | None) -> None:
        # By clocks that are off any record may come from too far in the future.
        are_right = not self.stage.world.counts["clock_jump"]
        if are_right and isinstance(error, InvalidTimestampError):
            raise AssertionError(f"{record.value} is told of a timestamp that is not its own")

    def acknowledged(self, record: SentRecord, offset: int) -> None:
        """Note that the log has answered for a record; -1 if it did not tell where it stands."""
        self.stage.counts["records acknowledged"] += 1
        self.history.acknowledge(record, offset)

    def ended(self, write: Write, outcome: Outcome, *, is_visible: bool = False) -> None:
        """Note how a transaction ended."""
        self.history.end(write, outcome, is_visible=is_visible)
        kind = {Outcome.OK: "commits", Outcome.FAIL: "aborts", Outcome.UNKNOWN: "unknown ends"}
        self.stage.counts[kind[outcome]] += 1
        self.stage.world.note(f"{write.name} of {write.transactional_id} is {outcome.value}")

    async def claim(
        self,
        producer: AsyncProducer,
        owner: str,
        transactional_id: str,
        *,
        keep_prepared: bool = False,
    ) -> bool:
        """Take an id over and note it; false if this producer object is of no use."""
        started_at = self.history.tick()
        for _ in range(CALLS_AGAIN_MAX):
            try:
                token = await producer.init_transactions(keep_prepared=keep_prepared)
            except OncelogError as error:
                if not error.retriable:
                    return False
                continue
            identity = core_of(producer).sender.transaction.identity
            assert identity is not None
            self.history.claims.append(
                Claim(
                    transactional_id,
                    owner,
                    started_at,
                    self.history.tick(),
                    identity.producer_id,
                    identity.producer_epoch,
                    tells_token=True,
                    token=token,
                )
            )
            self.stage.counts["claims"] += 1
            return True
        return False

    async def ask_end(
        self, topic_partition: TopicPartition, isolation: IsolationLevel
    ) -> int | None:
        """Ask for the end of a partition as a reader that begins now would, and note it."""
        started_at = self.history.tick()
        consumer = self.client.consumer(
            isolation_level=isolation, default_api_timeout_ms=5_000, retry_backoff_ms=20
        )
        try:
            found = await consumer.end_offsets(topic_partition)
        except OncelogError:
            return None
        finally:
            await consumer.close()
        offset = found[topic_partition]
        self.history.end_offsets.append(
            EndOffset(topic_partition, isolation, offset, started_at, self.history.tick())
        )
        self.stage.counts["ends told"] += 1
        return offset


class NotedReader:
    """A consumer whose records are noted, in sessions: a new one at each seek and rebalance."""

    def __init__(self, player: Player, consumer: AsyncConsumer, isolation: IsolationLevel) -> None:
        self.consumer = consumer
        self._player = player
        self._isolation = isolation
        self.name = player.new_owner()
        self._session = 0
        self._owned: tuple[object, ...] = ()

    async def poll(self, timeout_ms: float, max_records: int) -> list[ConsumerRecord]:
        """``poll``, noted."""
        records = await self.consumer.poll(timeout_ms, max_records)
        if self.consumer.settings.group_id is not None:
            generation = self.consumer.group_metadata().generation_id
            owned = (generation, *sorted(self.consumer.assignment()))
            if owned != self._owned:
                self._owned = owned
                self.next_session()
        for record in records:
            assert record.value is not None
            self._player.history.read(
                self.name,
                self._session,
                self._isolation,
                record.topic_partition,
                record.offset,
                record.value.decode(),
            )
        followers = core_of(self.consumer).fetcher.followers
        from_followers = sum(record.topic_partition in followers for record in records)
        self._player.stage.counts["records read from followers"] += from_followers
        self._player.stage.counts["records read"] += len(records)
        if self._isolation is IsolationLevel.READ_UNCOMMITTED:
            self._player.stage.counts["records read uncommitted"] += len(records)
        return records

    def next_session(self) -> None:
        """What comes now may be anywhere."""
        self._session += 1


@dataclass(slots=True)
class Role:
    """A client that is there for the whole run. ``life`` is what each of its processes does."""

    name: str
    life: Life
    random: Random
    client: Client | None = None
    principal: Principal | None = None
    """As whom it works, if it is a user."""


class Cast:
    """Sees to it that every role is played until the end."""

    def __init__(
        self,
        stage: Stage,
        random: Random,
        principal_of: Callable[[str], Principal | None] = lambda _name: None,
    ) -> None:
        self.stage = stage
        self._principal_of = principal_of
        self.roles: list[Role] = []
        self._random = random

    def add(self, name: str, life: Life) -> None:
        """One more role."""
        chance = Random(self._random.getrandbits(64))
        principal = self._principal_of(name) if self.stage.world.settings.has_rules else None
        self.roles.append(Role(name, life, chance, principal=principal))

    async def play(self) -> None:
        """Start whoever is not there; to be run as the driver, until the stage is over."""
        while not self.stage.is_over:
            for role in self.roles:
                if role.client is None or role.client.is_dead:
                    self._enter(role)
            await asyncio.sleep(self._random.uniform(0.05, 0.5))

    def leave(self) -> None:
        """The run is over: every client is gone, as by kill -9."""
        self.stage.is_over = True
        for role in self.roles:
            if role.client is not None and not role.client.is_dead:
                self.stage.world.end_process(role.client, "leaves")

    def _enter(self, role: Role) -> None:
        client = role.client = self.stage.world.client(role.name)
        client.principal = role.principal or client.principal
        player = Player(self.stage, client, role.random)
        client.spawn(self._live(role, player))

    async def _live(self, role: Role, player: Player) -> None:
        try:
            await role.life(player)
        except Exception as error:
            self.stage.world.fail(error, f"{role.name} met what no client should meet")
