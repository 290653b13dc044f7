"""A queue whose workers die, hang and abort, on a cluster that dies: each result is there once.

In the order of keys the results of each key are in the order of its tasks, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

from sim_process import Client
from sim_world import World

from oncelog.api.queueing.queue import AsyncQueue
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import TopicPartition

TASKS = 60
WORKERS = 4
GROUP = "resize"
TOPICS = {"tasks": 3, "results": 2}
RAGE_S = 25.0
DRAIN_S = 300.0


class QueuePlay:
    """One run: tasks come in transactions, some aborted, and workers turn each into a result.

    With ``key_count`` the tasks have so many keys, and the queue is in their order.
    """

    def __init__(self, world: World, *, key_count: int = 0) -> None:
        self.world = world
        self.key_count = key_count
        self.order = "key" if key_count else "none"
        self.random = Random(f"queue {world.seed}")
        self.tasks: list[str] = []
        self.results: list[str] = []
        self.is_over = False
        self.lives = 0
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        """Play to the end, and see that nothing is left and nothing is there twice."""
        world = self.world
        writer = world.client("writer")
        writing = writer.spawn(self._write(writer))
        for number in range(WORKERS):
            self._employ(number)
        self._rage()
        world.heal()
        world.run(writing)
        world.quiesce()
        draining = world.client("drain")
        world.run(draining.spawn(self._drain(draining)), limit_s=DRAIN_S)
        self.is_over = True
        world.run_for(5)
        reader = world.client("reader")
        self.results = world.run(reader.spawn(self._read(reader)))
        assert Counter(self.results) == Counter(self.tasks)
        if self.key_count:
            assert _by_key(self.results) == _by_key(self.tasks)

    def _employ(self, number: int) -> None:
        self.lives += 1
        client = self.world.client(f"worker-{number}")
        client.spawn(self._work(client, number))

    def _rage(self) -> None:
        world, random = self.world, self.random
        end_s = world.now_s + RAGE_S
        while world.now_s < end_s:
            world.run_for(random.uniform(0.1, 1.5))
            victim = random.choice(["worker", "worker", "group", "partition", "transaction"])
            if victim == "worker":
                number = random.randrange(WORKERS)
                if random.random() < 0.4:
                    # Longer than its session lasts, shorter than its transaction may take.
                    world.pause(f"worker-{number}")
                    world.run_for(random.uniform(1.0, 4.5))
                    world.resume(f"worker-{number}")
                    continue
                world.kill(f"worker-{number}")
                self._employ(number)
                continue
            names = [name for name in world.actor_names() if name.startswith(victim)]
            name = random.choice(sorted(names))
            how = random.random()
            if how < 0.6:
                world.kill(name)
            elif how < 0.8:
                world.replace(name)
            else:
                world.pause(name)
                world.run_for(random.uniform(0.1, 3.0))
                world.resume(name)

    # --- who writes and reads -----------------------------------------------------------------

    async def _write(self, client: Client) -> None:
        producer = client.producer(transactional_id="writer", **_HASTY)
        await _until_done(producer.init_transactions)
        number = 0
        while number < TASKS:
            values = [self._task(n) for n in range(number, min(number + 3, TASKS))]
            is_kept = self.random.random() < 0.7
            await producer.begin_transaction()
            try:
                for value in values:
                    await producer.send("tasks", value=value.encode(), key=_key(value))
                if is_kept:
                    await _until_done(producer.commit_transaction)
                    self.tasks += values
                    number += len(values)
                else:
                    await _until_done(producer.abort_transaction)
            except OncelogError:
                await _until_done(producer.abort_transaction)
            await asyncio.sleep(self.random.uniform(0, 0.5))
        await producer.close()

    def _task(self, number: int) -> str:
        """A task that says its key and its number."""
        return f"{number % self.key_count if self.key_count else number} task {number}"

    async def _read(self, client: Client) -> list[str]:
        consumer = client.consumer(auto_offset_reset="earliest")
        await consumer.assign([TopicPartition("results", n) for n in range(TOPICS["results"])])
        read: list[str] = []
        for _ in range(20):
            read += [record.value.decode() for record in await consumer.poll(500)]
        await consumer.close()
        return read

    async def _drain(self, client: Client) -> None:
        """Until nothing is left, for as long as workers work."""
        queue = client.queue("tasks", order=self.order, group_id=GROUP)
        while (await queue.backlog()).total:
            await asyncio.sleep(0.5)
        await queue.close()

    # --- who works ----------------------------------------------------------------------------

    async def _work(self, client: Client, number: int) -> None:
        random = Random(f"worker {number} of {self.lives} in {self.world.seed}")
        while not self.is_over:
            producer = client.producer(transactional_id=f"worker-{number}", **_HASTY)
            queue = client.queue(
                "tasks", order=self.order, group_id=GROUP, request_timeout_ms=1_000
            )
            try:
                await producer.init_transactions()
                while not self.is_over:
                    await self._turn(queue, producer, random)
            except OncelogError as error:
                self.counts[type(error).__name__] += 1
            for one in (producer, queue):
                try:
                    await one.close()
                except OncelogError as error:
                    self.counts[type(error).__name__] += 1

    async def _turn(self, queue: AsyncQueue, producer: Any, random: Random) -> None:
        records = await queue.take(random.randint(1, 6), timeout_ms=500)
        if records and random.random() < 0.2:
            queue.release(records.pop())
        if not records:
            return
        await asyncio.sleep(random.choice((0, 0, 0.05, 0.5, 3.0)))
        await producer.begin_transaction()
        try:
            for record in records:
                assert record.value is not None
                await producer.send("results", value=record.value, key=record.key)
            await producer.send_acknowledgements_to_transaction(records, queue)
            if random.random() < 0.2:
                await producer.abort_transaction()
                self.counts["aborted"] += 1
                return
            await producer.commit_transaction()
            self.counts["committed"] += 1
        except OncelogError as error:
            self.counts[type(error).__name__] += 1
            if not error.abortable:
                raise
            await producer.abort_transaction()


_HASTY: dict[str, Any] = {
    "request_timeout_ms": 1_000,
    "delivery_timeout_ms": 5_000,
    "max_block_ms": 5_000,
    "transaction_timeout_ms": 5_000,
    "retry_backoff_ms": 20,
}


def _key(task: str) -> bytes:
    return task.split()[0].encode()


def _by_key(tasks: list[str]) -> dict[bytes, list[str]]:
    found: dict[bytes, list[str]] = {}
    for task in tasks:
        found.setdefault(_key(task), []).append(task)
    return found


async def _until_done(call: Any) -> None:
    while True:
        try:
            await call()
        except OncelogError as error:
            if not error.retriable:
                raise
        else:
            return
