"""Every wait has an end: each public call, with all servers dead, hung, full or out of reach.

A call returns, or raises an error of ours that says why, within the time that its settings state.
What finds a wait without an end is the table: a public call that it lacks fails the last test.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from sim_liveness import _fill_disks
from sim_process import Client
from sim_world import World, WorldSettings

from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.protocol.messages.access import Acl, Operation, Resource
from oncelog.api.admin.admin import AsyncAdmin
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.api.producing.member import AsyncTransactionMember
from oncelog.api.producing.producer import AsyncProducer
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import TopicPartition

TP = TopicPartition("a", 0)
ACL = Acl(principal="User:ann", resource=Resource.TOPIC, name="a", operation=Operation.READ)
TIMEOUT_MS = 4_000
"""What every call's settings state."""

SLACK_S = 3.0
"""The attempt that is under way when the time is over, and what tells of it."""

PRODUCER = {
    "linger_ms": 0,
    "request_timeout_ms": 1_000,
    "delivery_timeout_ms": TIMEOUT_MS,
    "max_block_ms": TIMEOUT_MS,
}
CONSUMER = {
    "request_timeout_ms": 1_500,
    "default_api_timeout_ms": TIMEOUT_MS,
    "session_timeout_ms": 10_000,
    "enable_auto_commit": False,
    "auto_offset_reset": "earliest",
}


def _kill_all(world: World) -> None:
    world.kill_node(1)


def _hang_all(world: World) -> None:
    for name in world.actors_on(1):
        world.pause(name)


def _hang(prefix: str) -> Callable[[World], None]:
    def hang(world: World) -> None:
        for name in world.actors_on(1):
            if name.startswith(prefix):
                world.pause(name)

    return hang


STATES: dict[str, Callable[[World], None]] = {
    "gone": _kill_all,
    "hung": _hang_all,
    "controller hung": _hang(CONTROLLER_ACTOR),
    "leaders hung": _hang("partition:"),
    "transaction coordinators hung": _hang("transaction:"),
    "group coordinators hung": _hang("group:"),
    "full": lambda world: _fill_disks(world, 1),
}


class Everything:
    """One of each client, each made and used while all was well."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.admin = client.admin(timeout_ms=TIMEOUT_MS)
        self._made = 0

    async def plain(self) -> AsyncProducer:
        producer = self.client.producer(**PRODUCER)
        await (await producer.send("a", b"plain"))
        return producer

    async def new_transactional(self) -> AsyncProducer:
        self._made += 1
        producer = self.client.producer(transactional_id=f"id-{self._made}", **PRODUCER)
        await producer.init_transactions()
        return producer

    async def open_transaction(self) -> AsyncProducer:
        producer = await self.new_transactional()
        await producer.begin_transaction()
        await (await producer.send("a", b"in it"))
        return producer

    async def assigned(self) -> AsyncConsumer:
        self._made += 1
        consumer = self.client.consumer(group_id=f"reader-{self._made}", **CONSUMER)
        await consumer.assign(TP)
        while not await consumer.poll(1_000):
            pass
        return consumer

    async def storing(self) -> AsyncConsumer:
        consumer = self.client.consumer(
            group_id="storing", enable_auto_offset_store=False, **CONSUMER
        )
        await consumer.assign(TP)
        return consumer

    async def subscribed(self) -> AsyncConsumer:
        self._made += 1
        consumer = self.client.consumer(group_id=f"member-{self._made}", **CONSUMER)
        await consumer.subscribe("a")
        while not await consumer.poll(1_000):
            pass
        return consumer

    async def member(self) -> AsyncTransactionMember:
        self._made += 1
        membership = await self.client.begin_run(f"run-{self._made}", settings=PRODUCER)
        return self.client.member(membership, **PRODUCER)

    async def enlisted(self) -> AsyncTransactionMember:
        member = await self.member()
        assert await member.enlist()
        return member


async def _acknowledged(producer: Any) -> None:
    await (await producer.send("a", b"late"))


async def _flushed(producer: Any) -> None:
    await producer.send("a", b"late")
    await producer.flush()


async def _with_offsets(producer: AsyncProducer) -> None:
    consumer = producer.reader  # type: ignore[attr-defined]
    await producer.send_offsets_to_transaction({TP: 1}, consumer.group_metadata())


async def _open_with_reader(made: Everything) -> AsyncProducer:
    producer = await made.open_transaction()
    producer.reader = await made.subscribed()  # type: ignore[attr-defined]
    return producer


async def _looked_up(consumer: AsyncConsumer, seek: str) -> None:
    await getattr(consumer, seek)()
    await consumer.position(TP)


Make = Callable[[Everything], Awaitable[Any]]
Call = Callable[[Any], Awaitable[Any]]
E = Everything

CALLS: dict[str, tuple[Make, Call]] = {
    "AsyncProducer.send": (E.plain, _acknowledged),
    "AsyncProducer.send_arrow": (E.plain, lambda p: _sent(p.send_arrow("a", _table()))),
    "AsyncProducer.flush": (E.plain, _flushed),
    "AsyncProducer.close": (E.plain, lambda p: p.close(TIMEOUT_MS)),
    "AsyncProducer.init_transactions": (
        lambda made: _made(made.client.producer(transactional_id="new", **PRODUCER)),
        lambda p: p.init_transactions(),
    ),
    "AsyncProducer.begin_transaction": (E.new_transactional, lambda p: p.begin_transaction()),
    "AsyncProducer.send_offsets_to_transaction": (_open_with_reader, _with_offsets),
    "AsyncProducer.commit_transaction": (E.open_transaction, lambda p: p.commit_transaction()),
    "AsyncProducer.abort_transaction": (E.open_transaction, lambda p: p.abort_transaction()),
    "AsyncProducer.prepare_transaction": (E.open_transaction, lambda p: p.prepare_transaction()),
    "AsyncProducer.complete_transaction": (
        E.new_transactional,
        lambda p: p.complete_transaction(None),
    ),
    "AsyncProducer.partitions_for": (E.plain, lambda p: p.partitions_for("a")),
    "AsyncConsumer.subscribe": (E.assigned, lambda c: c.subscribe("a")),
    "AsyncConsumer.unsubscribe": (E.subscribed, lambda c: c.unsubscribe()),
    "AsyncConsumer.assign": (E.assigned, lambda c: c.assign(TopicPartition("b", 0))),
    "AsyncConsumer.poll": (E.subscribed, lambda c: c.poll(TIMEOUT_MS)),
    "AsyncConsumer.poll_arrow": (E.assigned, lambda c: c.poll_arrow(TIMEOUT_MS)),
    "AsyncConsumer.position": (E.assigned, lambda c: c.position(TP)),
    "AsyncConsumer.positions": (E.assigned, lambda c: c.positions()),
    "AsyncConsumer.seek": (E.assigned, lambda c: c.seek(TP, 0)),
    "AsyncConsumer.seek_to_beginning": (E.assigned, lambda c: _looked_up(c, "seek_to_beginning")),
    "AsyncConsumer.seek_to_end": (E.assigned, lambda c: _looked_up(c, "seek_to_end")),
    "AsyncConsumer.seek_to_committed": (E.assigned, lambda c: _looked_up(c, "seek_to_committed")),
    "AsyncConsumer.pause": (E.assigned, lambda c: c.pause(TP)),
    "AsyncConsumer.resume": (E.assigned, lambda c: c.resume(TP)),
    "AsyncConsumer.commit": (E.subscribed, lambda c: c.commit()),
    "AsyncConsumer.commit_async": (E.subscribed, lambda c: c.commit_async()),
    "AsyncConsumer.store_offsets": (E.storing, lambda c: c.store_offsets({TP: 0})),
    "AsyncConsumer.metrics": (E.assigned, lambda c: c.metrics()),
    "AsyncConsumer.committed": (E.assigned, lambda c: c.committed(TP)),
    "AsyncConsumer.committed_with_metadata": (
        E.assigned,
        lambda c: c.committed_with_metadata(TP),
    ),
    "AsyncConsumer.beginning_offsets": (E.assigned, lambda c: c.beginning_offsets(TP)),
    "AsyncConsumer.end_offsets": (E.assigned, lambda c: c.end_offsets(TP)),
    "AsyncConsumer.offsets_for_times": (E.assigned, lambda c: c.offsets_for_times({TP: 0})),
    "AsyncConsumer.lag": (E.assigned, lambda c: c.lag(TP)),
    "AsyncConsumer.close": (E.subscribed, lambda c: c.close()),
    "AsyncTransactionMember.enlist": (E.member, lambda m: m.enlist()),
    "AsyncTransactionMember.send": (E.enlisted, _acknowledged),
    "AsyncTransactionMember.send_arrow": (E.enlisted, lambda m: _sent(m.send_arrow("a", _table()))),
    "AsyncTransactionMember.flush": (E.enlisted, _flushed),
    "AsyncTransactionMember.close": (E.enlisted, lambda m: m.close()),
    **{
        f"AsyncAdmin.{name}": (lambda made: _made(made.admin), call)
        for name, call in {
            "create_topic": lambda a: a.create_topic("new"),
            "create_partitions": lambda a: a.create_partitions("b", 2),
            "alter_topic": lambda a: a.alter_topic("b", retention_ms=1_000_000),
            "delete_records": lambda a: a.delete_records({TP: 1}),
            "list_offsets": lambda a: a.list_offsets({TP: 0}),
            "delete_topic": lambda a: a.delete_topic("c"),
            "list_topics": lambda a: a.list_topics(),
            "describe_topic": lambda a: a.describe_topic("a"),
            "describe_cluster": lambda a: a.describe_cluster(),
            "reassign_partition": lambda a: a.reassign_partition("a", 0, [1]),
            "cancel_reassignment": lambda a: a.cancel_reassignment("a", 0),
            "drain_broker": lambda a: a.drain_broker(1),
            "resume_broker": lambda a: a.resume_broker(1),
            "rotate_ticket_key": lambda a: a.rotate_ticket_key(),
            "list_groups": lambda a: a.list_groups(),
            "describe_group": lambda a: a.describe_group("member-1"),
            "delete_group": lambda a: a.delete_group("nobody"),
            "remove_members_from_group": lambda a: a.remove_members_from_group("nobody"),
            "list_group_offsets": lambda a: a.list_group_offsets("nobody"),
            "alter_group_offsets": lambda a: a.alter_group_offsets("nobody", {TP: 0}),
            "delete_group_offsets": lambda a: a.delete_group_offsets("nobody", [TP]),
            "elect_leaders": lambda a: a.elect_leaders(),
            "describe_log_dirs": lambda a: a.describe_log_dirs(),
            "complete_prepared_transaction": lambda a: a.complete_prepared_transaction(
                "id-1", committed=False
            ),
            "list_transactions": lambda a: a.list_transactions(),
            "describe_transaction": lambda a: a.describe_transaction("id-1"),
            "abort_transaction": lambda a: a.abort_transaction("id-1"),
            "delete_transactional_id": lambda a: a.delete_transactional_id("nobody"),
            "find_hanging_transactions": lambda a: a.find_hanging_transactions(),
            "abort_hanging_transaction": lambda a: a.abort_hanging_transaction(TP, start_offset=0),
            "describe_producers": lambda a: a.describe_producers(TP),
            "describe_replica": lambda a: a.describe_replica(TP),
            "delete_user": lambda a: a.delete_user("ann"),
            "list_users": lambda a: a.list_users(),
            "create_acls": lambda a: a.create_acls([ACL]),
            "delete_acls": lambda a: a.delete_acls(principal="User:ann"),
            "describe_acls": lambda a: a.describe_acls(),
            "set_limits": lambda a: a.set_limits("User:ann", connections=9),
            "describe_limits": lambda a: a.describe_limits(),
            "set_authorization": lambda a: a.set_authorization(is_on=False),
            "describe_authorization": lambda a: a.describe_authorization(),
            "check_access": lambda a: a.check_access("User:ann", "Read", "Topic", "a"),
        }.items()
    },
}
"""Each public call: what it needs, made while all is well, and how it is made."""

WITHOUT_WAIT = {
    "AsyncProducer.transaction",
    "AsyncProducer.send_acknowledgements_to_transaction",
    "AsyncAdmin.create_user",
    "AsyncAdmin.alter_user",
}
"""The first is made of the calls above, the last two compute in a thread first, and here there is
none. Acknowledgements need a queue: ``test_queues`` has lost replies and dead coordinators."""


async def _made(client: Any) -> Any:
    return client


async def _sent(sending: Awaitable[Any]) -> None:
    await (await sending)


def _table() -> Any:
    import pyarrow as pa

    return pa.table({"value": pa.array([b"1"], pa.binary())})


@pytest.fixture
def world() -> Iterator[World]:
    topics = {"a": 1, "b": 1, "c": 1}
    with World(seed=7, topics=topics, settings=WorldSettings()) as world:
        yield world


@pytest.mark.parametrize("state", STATES)
def test_each_call_ends_in_its_time_with_a_result_or_an_error_that_says_why(
    world: World, state: str
) -> None:
    client = world.client("program")
    ended: dict[str, float] = {}
    told: dict[str, BaseException | None] = {}

    async def make() -> dict[str, Any]:
        made = Everything(client)
        return {name: await new(made) for name, (new, _) in CALLS.items()}

    async def call(name: str, needed: Any) -> None:
        begun_s = world.now_s
        try:
            await CALLS[name][1](needed)
            told[name] = None
        except BaseException as error:
            told[name] = error
        ended[name] = world.now_s - begun_s

    needed = world.run(client.spawn(make()))
    STATES[state](world)
    for name in CALLS:
        client.spawn(call(name, needed[name]))
    world.run_for(TIMEOUT_MS / 1_000 + SLACK_S)
    assert sorted(CALLS.keys() - ended.keys()) == [], "still waiting"
    strange = {
        name: repr(error)
        for name, error in told.items()
        if error is not None and not (isinstance(error, OncelogError) and str(error))
    }
    assert strange == {}


def test_the_table_has_every_public_call() -> None:
    public = {
        f"{kind.__name__}.{name}"
        for kind in (AsyncProducer, AsyncConsumer, AsyncAdmin, AsyncTransactionMember)
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_") and inspect.iscoroutinefunction(inspect.unwrap(member))
    }
    assert public - CALLS.keys() - WITHOUT_WAIT == set()
