"""Progress while something stays broken that nobody mends, as long as a majority is sound.

*Sound and connected* are two of three nodes, clients see them, and no operator does anything. Then
the controller decides, every partition with a sound replica in sync is led, transactions end, also
one that its program left open, and groups read, a new one and one that was there, all within
``PROGRESS_LIMIT_S`` of virtual time after the fault.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from sim_disk import SimDisk

from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.storage.exceptions import OncelogError, TopicAlreadyExistsError
from oncelog.storage.model import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from sim_world import World

PROGRESS_LIMIT_S: Final = 45.0
"""Sessions, an election of the controller, its load, and the back-off of clients, with hasty
brokers; a transaction that is cut short has to time out, too."""

MEMBER_SESSION_MS: Final = 10_000
"""Shorter than by default, which is the limit already. A coordinator that leads again may know a
member by an id that this one has given up, as another coordinator, between, did not know it. As in
Kafka, the next rebalance waits until the session of that id has ended."""

TRANSACTION_TIMEOUT_MS: Final = 5_000
GROUP: Final = "liveness"

OLD_DISK_AGE_S: Final = 5.0


def _kill_node(world: World, number: int) -> None:
    world.kill_node(number)


def _fill_disks(world: World, number: int) -> None:
    for name in world.disks_on(number):
        disk = world.disk(name)
        disk.capacity_bytes = sum(len(content) for content in disk.files().values())
    world.count("disk_full")
    world.tell("world", f"* the disks of node {number} are full")


def _fail_disks(world: World, number: int) -> None:
    for name in world.disks_on(number):
        for call in ("append", "datasync", "sync_directory", "open", "read"):
            world.disk(name).fail(call, "", errno.EIO)
        # Once all is healed an operator restarts what went offline for good.
        world.media.broken.add(name)
    world.count("disk_error")
    world.tell("world", f"* the disks of node {number} fail")


def _isolate(world: World, number: int) -> None:
    world.isolate_node(number)


def _silence(world: World, number: int) -> None:
    """Nothing that the node sends to other brokers arrives."""
    for other in world.node_numbers():
        if other != number:
            world.cut(number, other, both=False)


def _deafen(world: World, number: int) -> None:
    """Nothing that other brokers send arrives at the node."""
    for other in world.node_numbers():
        if other != number:
            world.cut(other, number, both=False)


def _put_old_disks_back(world: World, number: int) -> None:
    """The node is back with its disks as they were before it started the last time."""
    older = {name: SimDisk.of(world.disks[name].root) for name in world.disks_on(number)}
    world.kill_node(number)
    world.start_node(number)
    world.run_for(OLD_DISK_AGE_S)
    world.kill_node(number)
    world.disks.update(older)
    world.count("old_disk")
    world.tell("world", f"* node {number} has its old disks")
    world.start_node(number)


def _empty_disks(world: World, number: int) -> None:
    """The node is back at once, with what ran there, and nothing is on its disks."""
    assert world.has_three_voters()
    world.kill_node(number)
    world.lose_node_disks(number, is_copied=True)
    world.start_node(number)


def _hang_replicas(world: World, number: int) -> None:
    """Every process of a replica there hangs, and Ray takes all for alive."""
    for name in world.actors_on(number):
        if name != CONTROLLER_ACTOR and not name.startswith("broker:"):
            world.pause(name)


def _hang_controller(world: World, number: int) -> None:
    """The controller's process hangs, wherever it is, and Ray takes it for alive."""
    world.pause(CONTROLLER_ACTOR)


def _kill_node_and_mislead(world: World, number: int) -> None:
    """The node is dead, and Ray answers wrongly or not at all where the controller is."""
    world.kill_node(number)
    world.mislead()


LASTING_FAULTS: Final[Mapping[str, Callable[[World, int], None]]] = {
    "node dead": _kill_node,
    "node dead, Ray misleads": _kill_node_and_mislead,
    "disks full": _fill_disks,
    "disks fail": _fail_disks,
    "isolated": _isolate,
    "not heard": _silence,
    "hears nothing": _deafen,
    "replicas hang": _hang_replicas,
    "controller hangs": _hang_controller,
    "old disks": _put_old_disks_back,
    "empty disks": _empty_disks,
}
"""What befalls one node, and stays."""


def topic_for_progress(world: World, name: str) -> list[TopicPartition]:
    """A topic that nobody else writes to, with a partition for each broker to lead."""
    count = len(world.node_numbers())
    client = world.client(f"maker-{name}")

    async def make() -> None:
        await client.admin().create_topic(name, count, count)

    world.run(client.spawn(make()))
    world.end_process(client, "has made a topic")
    return [TopicPartition(name, number) for number in range(count)]


class Before:
    """What was under way when the fault came: a transaction whose program has died, and a member.

    The member of a group of its own waits for what ``progress_s`` of ``name`` commits.
    """

    def __init__(self, world: World, partitions: list[TopicPartition], name: str) -> None:
        gone = world.client(f"gone-{name}")
        world.run(gone.spawn(_leave_open(gone, partitions)))
        world.end_process(gone, "leaves its transaction open")
        self.member = world.client(f"standing-{name}")
        self.reading = self.member.spawn(
            _read_in_group(self.member, partitions, name, f"{GROUP}-standing-{name}")
        )


def progress_s(
    world: World, partitions: list[TopicPartition], name: str, before: Before | None = None
) -> float:
    """After how long all of it has gone on; fails after ``PROGRESS_LIMIT_S``.

    ``name`` is that of a new topic.
    """
    begin_s = world.now_s

    def left_s() -> float:
        return max(begin_s + PROGRESS_LIMIT_S - world.now_s, 0.1)

    clients = [world.client(f"{role}-{name}") for role in ("decider", "committer", "member")]
    decider, committer, member = clients
    world.run(decider.spawn(_decide(decider, partitions, name)), limit_s=left_s())
    world.run(committer.spawn(_commit(committer, partitions, name)), limit_s=left_s())
    reading = _read_in_group(member, partitions, name, f"{GROUP}-{name}")
    world.run(member.spawn(reading), limit_s=left_s())
    if before is not None:
        world.run(before.reading, limit_s=left_s())
        clients.append(before.member)
    world.run(world.until(lambda: are_led(world)), limit_s=left_s())
    for client in clients:
        world.end_process(client, "has seen progress")
    return world.now_s - begin_s


def are_led(world: World) -> bool:
    """Whether every partition has a leader, as the controller has it."""
    controller = world.server(CONTROLLER_ACTOR)
    return controller is not None and all(
        partition.leader >= 0
        for topic in controller.shell.machine.topics.values()
        for partition in topic.partitions
    )


async def _leave_open(client: Any, partitions: list[TopicPartition]) -> None:
    """A transaction with a record in every partition."""
    producer = client.producer(
        transactional_id=f"id-{client.name}",
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        linger_ms=0,
    )
    await producer.init_transactions()
    await producer.begin_transaction()
    for tp in partitions:
        await (await producer.send(tp.topic, b"open", partition=tp.partition))


async def _decide(client: Any, partitions: list[TopicPartition], name: str) -> None:
    """The controller makes a topic."""
    while True:
        try:
            await client.admin().create_topic(name, 1, 2)
            return
        except TopicAlreadyExistsError:
            return
        except OncelogError as error:
            client.world.note(f"no decision yet: {error!r}")


async def _commit(client: Any, partitions: list[TopicPartition], name: str) -> None:
    """One transaction over every partition is committed, by a producer of a new id."""
    producer = client.producer(
        transactional_id=f"id-{name}", transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, linger_ms=0
    )
    await producer.init_transactions()
    while True:
        await producer.begin_transaction()
        try:
            for tp in partitions:
                await producer.send(tp.topic, name.encode(), partition=tp.partition)
            await producer.commit_transaction()
            break
        except OncelogError as error:
            client.world.note(f"no commit yet: {error!r}")
            if error.fatal:
                producer = client.producer(
                    transactional_id=f"id-{name}", transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
                )
                await producer.init_transactions()
            else:
                await producer.abort_transaction()
    await producer.close()


async def _read_in_group(
    client: Any, partitions: list[TopicPartition], name: str, group_id: str
) -> None:
    """A member of a group gets what was just committed, of every partition."""
    consumer = client.consumer(
        group_id=group_id,
        auto_offset_reset="earliest",
        isolation_level=IsolationLevel.READ_COMMITTED,
        enable_auto_commit=False,
        session_timeout_ms=MEMBER_SESSION_MS,
    )
    await consumer.subscribe(sorted({tp.topic for tp in partitions}))
    missing = set(partitions)
    while missing:
        try:
            for record in await consumer.poll(1_000):
                if record.value == name.encode():
                    missing.discard(record.topic_partition)
        except OncelogError as error:
            client.world.note(f"nothing read yet: {error!r}")
    await consumer.close()
