"""Replicas move at random while nodes, the controller and actors die; nothing written is lost."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import TopicPartition

TP = TopicPartition("a", 0)
OTHERS = (2, 3, 4)
"""The brokers without the controller."""

STEPS = 25
DEEDS = ("reassign",) * 4 + ("cancel", "drain", "resume", "kill_node", "start_nodes")
MORE_DEEDS = ("kill_controller", "kill_actor", "write", "write", "wait")


class Walk:
    """One world, what is done to it, and what was committed."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = Random(f"moves {seed}")
        self.done: list[str] = []
        self.committed: list[str] = []
        self.written = 0

    # --- deeds --------------------------------------------------------------------------------

    def step(self) -> None:
        deed = self.random.choice(DEEDS + MORE_DEEDS)
        self.done.append(deed)
        getattr(self, deed)()
        self.world.run_for(self.random.choice((0.0, self.random.uniform(0, 2))))

    def reassign(self) -> None:
        replicas = self.random.sample((1, *OTHERS), self.random.randint(1, 3))
        self.admin("reassign_partition", "a", 0, replicas)

    def cancel(self) -> None:
        self.admin("cancel_reassignment", "a", 0)

    def drain(self) -> None:
        self.admin("drain_broker", self.random.choice(OTHERS))

    def resume(self) -> None:
        self.admin("resume_broker", self.random.choice(OTHERS))

    def kill_node(self) -> None:
        if not self.world.dead_nodes:
            self.world.kill_node(self.random.choice(OTHERS))

    def start_nodes(self) -> None:
        for number in sorted(self.world.dead_nodes):
            self.world.start_node(number)

    def kill_controller(self) -> None:
        self.world.kill("controller")

    def kill_actor(self) -> None:
        name = self.random.choice(sorted(self.world.actor_names()))
        if self.world.actor(name) is not None:
            self.world.kill(name)

    def wait(self) -> None:
        self.world.run_for(self.random.uniform(0.1, 15))

    def write(self) -> None:
        self.written += 1
        text = str(self.written)

        async def send(client: Any) -> bool:
            producer = client.producer(transactional_id="writer")
            try:
                await producer.init_transactions()
                async with producer.transaction():
                    await producer.send("a", text.encode(), partition=0)
            except OncelogError:
                return False
            finally:
                await producer.close()
            return True

        if self.run("writer", send):
            self.committed.append(text)

    def admin(self, method: str, *arguments: Any) -> None:
        async def call(client: Any) -> None:
            try:
                await getattr(client.admin(), method)(*arguments)
            except OncelogError as refusal:
                self.done.append(f"{method}{arguments}: {refusal}")

        self.run("admin", call)

    def run(self, kind: str, work: Any) -> Any:
        client = self.world.client(f"{kind}-{self.world.process_count}")
        return self.world.run(client.spawn(work(client)))

    # --- the end ------------------------------------------------------------------------------

    def settle(self) -> None:
        self.start_nodes()
        for broker_id in OTHERS:
            self.admin("resume_broker", broker_id)
        self.world.quiesce()
        self.world.run_until(lambda: not self.partition.is_moving)
        self.world.run_until(lambda: set(self.partition.isr) == set(self.partition.replicas))
        self.world.run_until(lambda: not len(self.world.server("controller").shell.moves.leaving))
        self.world.run_until(lambda: set(self.logs()) == set(self.partition.replicas))
        self.world.run_until(lambda: len(set(self.logs().values())) == 1)

    @property
    def partition(self) -> Any:
        return self.world.server("controller").shell.machine.topics["a"].partitions[0]

    def logs(self) -> dict[int, bytes]:
        """The bytes of each log of the partition that something has open, by broker."""
        found = {}
        for server in self.world.servers().values():
            replica = getattr(server, "replica", None)
            is_ours = replica is not None and replica.topic_partition == TP
            if is_ours and not server.is_stopped and replica._log is not None:
                log = replica.log
                read = log.fetch(0, max_bytes=10_000_000, upper_offset=log.log_end_offset)
                found[replica.broker_id] = bytes(read.records)
        return found

    def read(self) -> list[str]:
        async def drain(client: Any) -> list[str]:
            consumer = client.consumer(auto_offset_reset="earliest")
            await consumer.assign(TP)
            end = (await consumer.end_offsets(TP))[TP]
            found: list[str] = []
            while await consumer.position(TP) < end:
                found += [record.value.decode() for record in await consumer.poll(1_000)]
            await consumer.close()
            return found

        found: list[str] = self.run("reader", drain)
        return found


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_while_replicas_move_and_processes_die(seed: int) -> None:
    settings = WorldSettings(
        brokers=4,
        replication_factor=1 + seed % 3,
        topic_settings={"a": {"min_insync_replicas": 1}},
        cluster=ClusterConfig(
            replicas_per_actor=(1, 9)[seed % 2], leader_imbalance_check_interval_ms=3_000
        ),
    )
    with World(seed=seed, topics={"a": 1}, settings=settings) as world:
        walk = Walk(world, seed)
        for _ in range(STEPS):
            walk.step()
        walk.settle()
        found = walk.read()
        assert [text for text in found if text in walk.committed] == walk.committed, walk.done
        assert len(set(found)) == len(found)
