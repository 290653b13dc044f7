"""What tests of replication do in a world: write, read, and look who leads and who has what."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sim_nodes import ELSEWHERE
from sim_replica_watch import bytes_from
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.actors.interfaces import address_of, holder_of
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.replica.replica import Replica
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import IsolationLevel, TopicPartition

HASTY = {
    "broker_heartbeat_interval_ms": 250,
    "broker_session_timeout_ms": 1_500,
    "replica_lag_time_max_ms": 1_500,
    "internal_call_timeout_ms": 1_000,
    "transaction_abort_scan_ms": 200,
}
SESSION_S = 2.5
"""More than a broker's session, its election and the look of its leaders."""


def replicated(replicas_per_actor: int, **cluster: Any) -> WorldSettings:
    """Three brokers and three replicas of all that clients write."""
    config = ClusterConfig(replicas_per_actor=replicas_per_actor, **HASTY | cluster)
    topics = {"a": {"segment_bytes": 4_096}}
    return WorldSettings(brokers=3, replication_factor=3, cluster=config, topic_settings=topics)


async def send_all(client: Any, texts: list[str], partition: int, **settings: Any) -> list[bool]:
    """Send each, one after the other; whether it was acknowledged."""
    acknowledged = []
    for text in texts:
        producer = client.producer(**{"linger_ms": 0} | settings)
        try:
            future = await producer.send("a", text.encode(), partition=partition)
            await producer.flush()
            await future
            acknowledged.append(True)
        except OncelogError:
            acknowledged.append(False)
        finally:
            await producer.close()
    return acknowledged


def write(
    world: World, texts: list[str], partition: int = 0, *, node: int = ELSEWHERE, **settings: Any
) -> list[bool]:
    """Write as a client on a node; whether each was acknowledged."""
    client = world.client(f"writer-{world.process_count}", node=node)
    found: list[bool] = world.run(client.spawn(send_all(client, texts, partition, **settings)))
    return found


def read(
    world: World, partition: int = 0, level: IsolationLevel = IsolationLevel.READ_COMMITTED
) -> list[str]:
    """All that readers see."""

    async def drain(client: Any) -> list[str]:
        consumer = client.consumer(auto_offset_reset="earliest", isolation_level=level)
        tp = TopicPartition("a", partition)
        await consumer.assign(tp)
        end = (await consumer.end_offsets(tp))[tp]
        found: list[str] = []
        while await consumer.position(tp) < end:
            found += [record.value.decode() for record in await consumer.poll(1_000)]
        await consumer.close()
        return found

    client = world.client(f"reader-{world.process_count}")
    found: list[str] = world.run(client.spawn(drain(client)))
    return found


def administer(world: World, work: Any) -> Any:
    """Run what an operator does with an admin client."""

    async def act(client: Any) -> Any:
        return await work(client.admin())

    client = world.client(f"operator-{world.process_count}")
    return world.run(client.spawn(act(client)))


def placement(world: World, broker: int, partition: int = 0) -> Placement:
    """Where a broker's replica of ``a`` is."""
    replicas = world.replicas_of(TopicPartition("a", partition))
    return next(one for one in replicas if one.broker_id == broker)


def holder(world: World, broker: int, partition: int = 0) -> str:
    """The actor that has it."""
    return holder_of(placement(world, broker, partition))


def address(world: World, broker: int, partition: int = 0) -> str:
    """Whom to call for it."""
    return address_of(placement(world, broker, partition))


def replica(world: World, broker: int, partition: int = 0) -> Replica:
    """The living replica itself."""
    found = world.replicas().values()
    place = (TopicPartition("a", partition), broker)
    return next(one for one in found if (one.topic_partition, one.broker_id) == place)


def state(world: World, partition: int = 0) -> Any:
    """What the controller has recorded."""
    return world.server("controller").shell.machine.topics["a"].partitions[partition]


def leader(world: World, partition: int = 0) -> int:
    """Who leads, -1 if nobody."""
    found: int = state(world, partition).leader
    return found


def isr(world: World, partition: int = 0) -> set[int]:
    """Who is in sync."""
    return set(state(world, partition).isr)


def logs(world: World, partition: int = 0) -> dict[int, bytes]:
    """The bytes of each replica's log, by broker."""
    copies = [replica(world, broker, partition) for broker in world.node_numbers()]
    begin = max(copy.log.log_start_offset for copy in copies)
    return {copy.broker_id: bytes_from(copy, begin) for copy in copies}


def are_equal(world: World, partition: int = 0) -> bool:
    """Whether all replicas have the same, which is something."""
    copies = set(logs(world, partition).values())
    return len(copies) == 1 and copies != {b""}


def watch_errors(world: World, method: str) -> Counter[str]:
    """The codes that calls are answered with from now on."""
    errors: Counter[str] = Counter()

    def watch(exchange: Any, message: Any, is_reply: bool) -> None:
        if is_reply and exchange.method == method:
            errors[message.error.name] += 1

    world.network.watchers.append(watch)
    return errors
