"""Fetches of partitions that share a host process travel together."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from msgspec import structs

from oncelog.actors.launch.host import FetchSessions
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.actors.protocol.messages.partition import FetchRequest, FetchTogetherRequest
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.api.consuming.fetcher import ALONE_MIN_BYTES
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

COUNT = 100
TPS = [TopicPartition("t", number) for number in range(COUNT)]


class Hosts:
    """Puts the partitions of the fake cluster into two hosts, which answer as real ones do."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.host_of = {tp: 1 + tp.partition % 2 for tp in TPS}
        self.fetched = Counter()
        self.sessions = {}
        cluster.hooks[MetadataRequest] = self.metadata
        cluster.hooks[FetchTogetherRequest] = None
        for number in (1, 2):
            cluster.actors[f"partitions:{number}@1"] = self.actor(number)

    def metadata(self, request):
        reply = self.cluster._metadata(request)
        return structs.replace(
            reply,
            topics=tuple(
                structs.replace(
                    topic,
                    partitions=tuple(
                        structs.replace(
                            each,
                            hosts=(
                                self.host_of.get(TopicPartition(topic.name, each.partition), 0),
                            ),
                        )
                        for each in topic.partitions
                    ),
                )
                for topic in reply.topics
            ),
        )

    def actor(self, number):
        async def fetch(key, request):
            self.fetched[request.topic_partition] += 1
            reply = asyncio.ensure_future(self.cluster._fetch(request))
            await asyncio.wait({reply})
            if self.host_of[request.topic_partition] != number:
                # A leader that does not know that it was deposed gets nothing new.
                await asyncio.sleep(request.max_wait_ms / 1_000)
                return request.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return reply.result()

        def answer(request):
            if not isinstance(request, FetchTogetherRequest):
                return None
            sessions = self.sessions.get(number)
            if sessions is None:
                sessions = self.sessions[number] = FetchSessions(fetch, OwnTasks(pytest.fail))
            return sessions.fetch(request)

        return answer

    def restart(self, number):
        """The host's process is another one: it knows no session."""
        del self.sessions[number]


@pytest.fixture
def hosts(fake_cluster):
    fake_cluster.create("t", COUNT)
    return Hosts(fake_cluster)


def scenario_with(cluster, run, steps, **settings):
    async def scenario():
        options = {"auto_offset_reset": "earliest"} | settings
        settings_ = ConsumerSettings.from_options(options)
        consumer = AsyncConsumer(cluster.router(), settings_, cluster.random)
        await consumer.assign(TPS)
        await consumer.position(TPS)
        result = await steps(consumer)
        await consumer.close()
        return result

    return run(scenario())


def calls(cluster):
    return Counter(
        actor for actor, request in cluster.calls if isinstance(request, FetchTogetherRequest)
    )


def test_idle_partitions_cost_about_one_call_a_second_for_each_host(fake_cluster, run, hosts):
    async def steps(consumer):
        await consumer.poll(1_000)
        fake_cluster.calls.clear()
        await consumer.poll(60_000)
        return calls(fake_cluster)

    counted = scenario_with(fake_cluster, run, steps)
    assert set(counted) == {"partitions:1@1", "partitions:2@1"}
    assert all(60 <= count <= 80 for count in counted.values())
    assert not fake_cluster.requests(FetchRequest)
    assert max(hosts.fetched.values()) <= 5
    named = [len(each.fetches) for each in fake_cluster.requests(FetchTogetherRequest)]
    assert sum(named) <= 5 * COUNT


def test_a_partition_that_gives_much_is_asked_by_itself_until_it_gives_little(
    fake_cluster, run, hosts
):
    async def values(consumer, *values):
        for value in values:
            fake_cluster.logs[TPS[7]].append(value)
        return [record.value for record in await consumer.poll(1_000)]

    async def steps(consumer):
        await consumer.poll(1_000)
        much = bytes(ALONE_MIN_BYTES)
        assert await values(consumer, much) == [much]
        # The next fetch, which waits for what comes.
        (alone,) = fake_cluster.requests(FetchRequest)
        assert alone.topic_partition == TPS[7]
        assert await values(consumer, b"little") == [b"little"]
        assert await values(consumer, b"less") == [b"less"]
        assert len(fake_cluster.requests(FetchRequest)) == 1

    scenario_with(fake_cluster, run, steps)


def test_records_come_at_once_and_only_their_fetch_is_begun_anew(fake_cluster, run, hosts):
    async def steps(consumer):
        await consumer.poll(1_000)
        hosts.fetched.clear()
        loop, seen = asyncio.get_running_loop(), []
        for number in range(10):
            fake_cluster.logs[TPS[7]].append(b"%d" % number)
            began = loop.time()
            seen += [record.value for record in await consumer.poll(1_000)]
            assert loop.time() - began < 0.01
        return seen

    assert scenario_with(fake_cluster, run, steps) == [b"%d" % number for number in range(10)]
    assert set(hosts.fetched) == {TPS[7]}


def test_many_records_of_many_partitions_are_read_once(fake_cluster, run, hosts):
    for tp in TPS:
        for number in range(20):
            fake_cluster.logs[tp].append(b"%d" % number)
    fake_cluster.fetch_max_bytes = 1

    async def steps(consumer):
        seen = Counter()
        while sum(seen.values()) < 20 * COUNT:
            seen.update(record.topic_partition for record in await consumer.poll(1_000))
        return seen

    assert set(scenario_with(fake_cluster, run, steps).values()) == {20}


@pytest.mark.parametrize("what", ["failed call", "lost reply", "restarted host"])
def test_what_is_lost_with_a_call_or_a_host_is_fetched_again(fake_cluster, run, hosts, what):
    """1. All wait. 2. The host's process ends, or a reply is lost. 3. Records come."""
    actor = fake_cluster.actors["partitions:1@1"]
    losses = [what]

    async def lose(request):
        reply = await actor(request)
        if losses and reply.ended:
            losses.clear()
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        return reply

    async def steps(consumer):
        await consumer.poll(1_000)
        if what == "failed call":
            fake_cluster.actors["partitions:1@1"] = lambda request: request.failed(
                ErrorCode.NETWORK_EXCEPTION
            )
            await consumer.poll(5_000)
            fake_cluster.actors["partitions:1@1"] = actor
        elif what == "lost reply":
            fake_cluster.actors["partitions:1@1"] = lose
        else:
            hosts.restart(1)
        for tp in TPS[:10]:
            fake_cluster.logs[tp].append(b"v")
        seen, deadline = [], asyncio.get_running_loop().time() + 10
        while len(seen) < 10 and asyncio.get_running_loop().time() < deadline:
            seen += [record.topic_partition for record in await consumer.poll(1_000)]
        return seen

    assert sorted(scenario_with(fake_cluster, run, steps)) == TPS[:10]


def test_a_partition_that_a_deposed_leader_keeps_waiting_is_read_at_the_next(
    fake_cluster, run, hosts
):
    """1. A fetch begins shortly before leaders are looked up. 2. Another replica leads. 3. The
    fetch is given up once that is known, long before it ends.
    """

    async def steps(consumer):
        await consumer.poll(15_000)
        fake_cluster.logs[TPS[0]].append(b"u")
        assert len(await consumer.poll(1_000)) == 1
        hosts.host_of[TPS[0]] = 1 if hosts.host_of[TPS[0]] == 2 else 2
        fake_cluster.logs[TPS[0]].append(b"v")
        began = asyncio.get_running_loop().time()
        (record,) = await consumer.poll(60_000)
        return asyncio.get_running_loop().time() - began, record.topic_partition

    took_s, tp = scenario_with(fake_cluster, run, steps)
    assert tp == TPS[0]
    assert took_s < 6


def test_a_leader_waits_for_a_minimum_of_bytes_no_longer_than_it_may(fake_cluster, run, hosts):
    async def steps(consumer):
        await consumer.poll(1_000)
        hosts.fetched.clear()
        await consumer.poll(2_000)
        return hosts.fetched

    fetched = scenario_with(fake_cluster, run, steps, fetch_min_bytes=100, fetch_max_wait_ms=250)
    assert all(6 <= fetched[tp] <= 9 for tp in TPS)


def test_a_seek_does_not_wait_for_the_fetch_before(fake_cluster, run, hosts):
    for number in range(3):
        fake_cluster.logs[TPS[0]].append(b"%d" % number)

    async def steps(consumer):
        seen = []
        while len(seen) < 3:
            seen += await consumer.poll(1_000)
        await consumer.poll(500)
        await consumer.seek(TPS[0], 1)
        began = asyncio.get_running_loop().time()
        again = await consumer.poll(5_000)
        return [record.offset for record in again], asyncio.get_running_loop().time() - began

    offsets, took_s = scenario_with(fake_cluster, run, steps)
    assert offsets[0] == 1
    assert took_s < 0.1
