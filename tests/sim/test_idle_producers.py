"""Producers without transactions that fall silent until their leaders have forgotten them.

Time is short here: leaders remember for 20 s, not a day, and producers rely on 10 s of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest import mock

import pytest
from sim_network import NetworkFaults
from sim_process import Client
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.actors.protocol.partition import producers
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.api.producing import partition_sender
from oncelog.api.producing.partition_sender import PartitionSender
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import TopicPartition

EXPIRATION_MS = 20_000
REMEMBERED_S = 10.0
WRITERS = 3
PARTITIONS = 2
ROUNDS = 12
TOPICS = {"flights": PARTITIONS}
SETTINGS = WorldSettings(
    brokers=3,
    replication_factor=3,
    cluster=ClusterConfig(replicas_per_actor=1, producer_id_expiration_check_interval_ms=1_000),
)
HASTY = {"retry_backoff_ms": 50, "request_timeout_ms": 2_000}


class IdlePlay:
    """One run: bursts and silences, lost replies, leaders that die."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(f"idle {seed}")
        self.acknowledged: list[str] = []
        self.sent: list[str] = []
        self.read: list[str] = []
        self.forgotten = 0

    def run(self) -> None:
        """Play to the end; what was acknowledged is there once, and nothing is there twice."""
        with self._short_memory(), World(self.seed, topics=TOPICS, settings=SETTINGS) as world:
            clients = [world.client(f"writer-{number}") for number in range(WRITERS)]
            writing = [client.spawn(self._write(client)) for client in clients]
            while not all(task.done() for task in writing):
                self._trouble(world)
            world.heal()
            for task in writing:
                world.run(task)
            world.quiesce()
            reader = world.client("reader")
            self.read = world.run(reader.spawn(self._read_all(reader)))
        counts = Counter(self.read)
        assert [value for value in self.read if counts[value] > 1] == []
        assert [value for value in self.acknowledged if not counts[value]] == []
        assert self.forgotten

    @contextmanager
    def _short_memory(self) -> Iterator[None]:
        real = PartitionMachine.expire

        def expire(machine: PartitionMachine, now_ms: int, _expiration_ms: int) -> int:
            forgotten = real(machine, now_ms, EXPIRATION_MS)
            self.forgotten += forgotten
            return forgotten

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(PartitionMachine, "expire", expire))
            stack.enter_context(mock.patch.object(partition_sender, "REMEMBERED_S", REMEMBERED_S))
            yield

    def _trouble(self, world: World) -> None:
        """Some seconds of one kind of trouble, and some of peace."""
        kind = self.random.choice(["silence", "loss", "death", "peace"])
        if kind == "silence":
            # Longer than leaders remember: what is repeated meanwhile was written long ago.
            world.network.set_faults(NetworkFaults(drop_reply=1.0), method="produce")
            world.run_for(self.random.uniform(15, 45))
        elif kind == "loss":
            faults = NetworkFaults(drop_reply=0.3, drop_request=0.2)
            world.network.set_faults(faults, method="produce")
            world.run_for(self.random.uniform(1, 10))
        elif kind == "death":
            names = [name for name in world.actor_names() if name.startswith("partition")]
            world.kill(self.random.choice(sorted(names)))
        world.network.forget_rules()
        world.run_for(self.random.uniform(0.5, 10))

    async def _write(self, client: Client) -> None:
        producer = client.producer(**HASTY)
        for number in range(ROUNDS):
            futures = {}
            for part in range(self.random.randint(1, 4)):
                value = f"{client.name} {number} {part}"
                self.sent.append(value)
                partition = self.random.randrange(PARTITIONS)
                futures[value] = await producer.send("flights", value.encode(), partition=partition)
            for value, future in futures.items():
                try:
                    await future
                    self.acknowledged.append(value)
                except OncelogError:
                    pass
            await asyncio.sleep(self.random.choice([0.0, 0.5, 8.0, 30.0, 50.0]))
        await producer.close()

    async def _read_all(self, client: Client) -> list[str]:
        consumer = client.consumer(auto_offset_reset="earliest")
        await consumer.assign([TopicPartition("flights", n) for n in range(PARTITIONS)])
        read: list[str] = []
        for _ in range(20):
            read += [record.value.decode() for record in await consumer.poll(500)]
        await consumer.close()
        return read


@pytest.mark.parametrize("seed", range(6))
def test_what_a_forgotten_producer_sends_is_there_once(seed):
    play = IdlePlay(seed)
    play.run()
    assert len(play.acknowledged) > len(play.sent) / 2


# --- without a protection -------------------------------------------------------------------------


def _unknown_producers_begin_anywhere() -> Any:
    """A leader takes any first batch of a producer that it does not know, as Kafka's do."""
    real = producers._check_sequence

    def check(entry: Any, header: Any, chain_epoch: int) -> tuple[ErrorCode, bool]:
        return (ErrorCode.NONE, False) if entry is None else real(entry, header, chain_epoch)

    return mock.patch.object(producers, "_check_sequence", check)


def _first_batches_are_repeated_for_ever() -> Any:
    """A producer repeats a batch at sequence 0 for longer than its leader remembers it."""
    return mock.patch.object(PartitionSender, "_may_be_forgotten", return_value=False)


@pytest.mark.parametrize(
    "sabotage", [_unknown_producers_begin_anywhere, _first_batches_are_repeated_for_ever]
)
def test_without_one_of_its_protections_a_record_is_there_twice(sabotage):
    for seed in range(20):
        play = IdlePlay(seed)
        try:
            with sabotage():
                play.run()
        except AssertionError:
            break
    else:
        raise AssertionError("nobody noticed")
    assert max(Counter(play.read).values()) > 1
