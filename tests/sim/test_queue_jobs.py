"""Jobs with ``mode="queue"``: each output once whoever dies, bad records, bad functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sim_process import Client
from sim_queues import GROUP, TOPICS, QueuePlay
from sim_threads import SimStop, SimThread
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.api.config import ProducerSettings, QueueSettings
from oncelog.api.processing.messages import ProcessConfig, WorkerState
from oncelog.api.processing.queue_loop import QueueClients, QueueLoop
from oncelog.api.producing.producer import Producer
from oncelog.api.queueing.queue import Queue
from oncelog.storage.model import TopicPartition

SETTINGS = WorldSettings(
    cluster=ClusterConfig(replicas_per_actor=1, group_share_session_timeout_ms=2_000)
)
HASTY = {
    "request_timeout_ms": 1_000,
    "delivery_timeout_ms": 5_000,
    "max_block_ms": 5_000,
    "transaction_timeout_ms": 5_000,
    "retry_backoff_ms": 20,
}


async def work(
    client: Client, number: int, function: Callable[[Any], Any], **fields: Any
) -> QueueLoop:
    """One loop, to its end."""
    thread = SimThread(client)

    def connect(topic: str, producer: ProducerSettings, queue: QueueSettings) -> QueueClients:
        return QueueClients(
            Producer(client.router(), thread, producer, random=client.random),
            Queue(client.router(), thread, queue, topic, client.random),
        )

    consumer_settings = {"request_timeout_ms": 1_000, **fields.pop("consumer_settings", {})}
    config = ProcessConfig(
        **{
            "source": "tasks",
            "sink": "results",
            "group_id": GROUP,
            "worker_index": number,
            "function": function,
            "batch_format": "record",
            "max_poll_records": 7,
            "mode": "queue",
            "producer_settings": HASTY,
            "consumer_settings": consumer_settings,
            **fields,
        }
    )
    loop = QueueLoop(config, connect, stop=SimStop(thread))
    thread.start(loop.run)
    await thread.ended
    return loop


class JobPlay(QueuePlay):
    """As ``QueuePlay``, with the workers of a job."""

    async def _work(self, client: Client, number: int) -> None:
        while not self.is_over:
            loop = await work(
                client,
                number,
                lambda record: record.value,
                consumer_settings={"order": self.order},
            )
            self.counts[loop.progress.state.value] += 1
            assert loop.progress.state is not WorkerState.FAILED, loop.progress.reason


@pytest.mark.parametrize(("seed", "key_count"), [(0, 0), (1, 0), (2, 6)])
def test_each_output_of_a_job_is_there_once_and_in_the_order_of_keys_whoever_dies(seed, key_count):
    with World(seed, topics=TOPICS, settings=SETTINGS) as world:
        play = JobPlay(world, key_count=key_count)
        play.run()
        assert len(play.results) == len(play.tasks) > 0


def worked(values: str, function: Callable[[Any], Any], limit_s: float, **fields: Any) -> Any:
    """A worker's progress after a while, what it has written, the dead letters, and the backlog."""
    with World(3, topics={"tasks": 1, "results": 1, "dead": 1}, settings=SETTINGS) as world:
        progress: list[Any] = []

        async def scenario(client: Client) -> None:
            producer = client.producer()
            for value in values:
                await (await producer.send("tasks", value=value.encode()))
            await producer.close()

        async def run(client: Client) -> None:
            progress.append((await work(client, 0, function, **fields)).progress)

        async def read(client: Client) -> Any:
            found: dict[str, list[str]] = {}
            for topic in ("results", "dead"):
                consumer = client.consumer(auto_offset_reset="earliest")
                await consumer.assign([TopicPartition(topic, 0)])
                records = [one for _ in range(3) for one in await consumer.poll(300)]
                found[topic] = [one.value.decode() for one in records]
                await consumer.close()
            queue = client.queue("tasks", group_id=GROUP)
            backlog = await queue.backlog()
            await queue.close()
            return found["results"], found["dead"], backlog.total

        client = world.client("program")
        world.run(client.spawn(scenario(client)))
        worker = world.client("worker")
        worker.spawn(run(worker))
        world.run_for(limit_s)
        return progress, *world.run(client.spawn(read(client)))


def bad_b(record: Any) -> Any:
    if record.value == b"b":
        raise ZeroDivisionError("b")
    return record.value.upper()


def test_a_bad_record_becomes_a_dead_letter_and_spoils_no_others():
    settings = {"max_delivery_count": 3, "dead_letter_topic": "dead"}
    progress, results, dead, left = worked("abcd", bad_b, 10, consumer_settings=settings)
    assert progress == []
    assert sorted(results) == ["A", "C", "D"]
    assert (dead, left) == (["b"], 0)


def test_a_function_that_fails_for_all_ends_its_worker_and_leaves_the_records():
    def bad(record: Any) -> Any:
        raise ZeroDivisionError("always")

    progress, results, dead, left = worked("abcd", bad, 10)
    assert [one.state for one in progress] == [WorkerState.FAILED]
    assert "failed 3 times, last: ZeroDivisionError: always" in progress[0].reason
    assert (results, dead, left) == ([], [], 4)


def test_a_function_that_fails_for_all_sends_few_records_to_the_dead_letters():
    def bad(record: Any) -> Any:
        raise ZeroDivisionError("always")

    settings = {"max_delivery_count": 2, "dead_letter_topic": "dead"}
    progress, results, dead, left = worked("abcdef", bad, 20, consumer_settings=settings)
    assert [one.state for one in progress] == [WorkerState.FAILED]
    assert results == []
    assert len(dead) + left == 6
    assert len(dead) <= 2


def test_an_output_that_cannot_be_sent_is_a_failure_of_the_function():
    progress, results, _, left = worked("abcd", lambda record: [("k", b"v")], 10)
    assert [one.state for one in progress] == [WorkerState.FAILED]
    assert (results, left) == ([], 4)


def test_tables_are_given_to_a_function_that_wants_them():
    seen: list[Any] = []

    def table(batch: Any) -> Any:
        seen.append((batch.column_names, batch.column("offset").to_pylist()))
        return batch.select(["value"])

    _, results, _, left = worked("abc", table, 5, batch_format="arrow")
    assert (results, left) == (["a", "b", "c"], 0)
    names = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert seen == [(names, [0, 1, 2])]
