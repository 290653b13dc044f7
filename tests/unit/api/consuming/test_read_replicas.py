"""From which replica a consumer reads: the follower its leader names, until anything is wrong."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs
from virtual_time import give_turns

from oncelog.actors.launch.host import FetchSessions
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.actors.protocol.messages.partition import (
    FetchReply,
    FetchRequest,
    FetchTogetherRequest,
)
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.api.consuming.fetcher import IDLE_CHECK_MS, Fetcher
from oncelog.api.consuming.read_replicas import (
    AVOID_MAX_MS,
    AVOID_MIN_MS,
    LEASE_MS,
    ReadReplicas,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError, OffsetOutOfRangeError
from oncelog.storage.model import TopicPartition

TP = TopicPartition("t", 0)
LEADER, FOLLOWER = 1, 2
AWAY_S = AVOID_MIN_MS / 1_000
FAILED = ErrorCode.KAFKA_STORAGE_ERROR


# --- the choice ------------------------------------------------------------------------------


def test_a_follower_is_read_until_its_lease_ends():
    chosen = ReadReplicas("east")
    assert (chosen.follower(TP, 0), chosen.rack_for(TP, 0)) == (None, "east")
    chosen.take(TP, FOLLOWER, 0)
    assert chosen.followers == {TP: FOLLOWER}
    assert chosen.follower(TP, LEASE_MS - 1) == FOLLOWER
    assert (chosen.follower(TP, LEASE_MS), chosen.rack_for(TP, LEASE_MS)) == (None, "east")
    assert chosen.followers == {}


def test_after_failures_followers_are_avoided_for_longer_and_longer():
    chosen, now_ms = ReadReplicas("east"), 0
    for wait_ms in (AVOID_MIN_MS, 2 * AVOID_MIN_MS, 4 * AVOID_MIN_MS):
        chosen.take(TP, FOLLOWER, now_ms)
        chosen.failed(TP, FAILED, now_ms)
        assert (chosen.follower(TP, now_ms), chosen.rack_for(TP, now_ms + wait_ms - 1)) == (
            None,
            "",
        )
        now_ms += wait_ms
        assert chosen.rack_for(TP, now_ms) == "east"
    for _ in range(100):
        chosen.failed(TP, FAILED, now_ms)
    assert chosen.rack_for(TP, now_ms + AVOID_MAX_MS) == "east"
    chosen.succeeded(TP)
    chosen.failed(TP, FAILED, now_ms)
    assert chosen.rack_for(TP, now_ms + AVOID_MIN_MS) == "east"


@pytest.mark.parametrize("error", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH])
def test_after_an_election_the_new_leader_is_asked_at_once(error):
    chosen = ReadReplicas("east")
    chosen.take(TP, FOLLOWER, 0)
    chosen.failed(TP, error, 0)
    assert (chosen.follower(TP, 0), chosen.rack_for(TP, 0)) == (None, "east")


def test_nothing_is_kept_of_a_partition_that_is_not_assigned():
    chosen = ReadReplicas("east")
    chosen.take(TP, FOLLOWER, 0)
    chosen.failed(TP, FAILED, 0)
    chosen.take(TP, FOLLOWER, 0)
    chosen.forget(TP)
    assert (chosen.follower(TP, 0), chosen.rack_for(TP, 0)) == (None, "east")


# --- a consumer ------------------------------------------------------------------------------


class Rack:
    """Broker 1 leads and names broker 2 to who tells its rack; both read the same log."""

    def __init__(self, cluster, host=0):
        self.cluster = cluster
        self.isr = (LEADER, FOLLOWER)
        self.leader_epoch = 3
        self.host = host
        self.refusal = None
        """What the follower answers instead."""
        self.answered = []
        """(broker, request) of each fetch."""
        self.delay_s = 0
        """How long the follower's process takes for each answer."""
        cluster.hooks[MetadataRequest] = self.metadata
        cluster.hooks[FetchTogetherRequest] = None
        self.sessions = {
            broker: FetchSessions(self.at(broker), OwnTasks(pytest.fail))
            for broker in (LEADER, FOLLOWER)
        }
        for broker in (LEADER, FOLLOWER):
            cluster.actors[f"partition:t-0@{broker}"] = self.actor(broker)
            cluster.actors[f"partitions:1@{broker}"] = self.actor(broker)

    def metadata(self, request):
        reply = self.cluster._metadata(request)
        return structs.replace(reply, topics=tuple(map(self._replicated, reply.topics)))

    def _replicated(self, topic):
        if topic.name != TP.topic:
            return topic
        (only,) = topic.partitions
        changed = structs.replace(
            only,
            replicas=(LEADER, FOLLOWER),
            isr=self.isr,
            leader_epoch=self.leader_epoch,
            hosts=(self.host, self.host),
        )
        return structs.replace(topic, partitions=(changed,))

    def at(self, broker):
        async def answer(_key, request):
            self.answered.append((broker, request))
            if broker != self.cluster.leaders.get(TP, LEADER):
                assert request.from_follower
                if self.refusal is not None:
                    return await self.refusal(request)
                if request.leader_epoch < self.leader_epoch:
                    return request.failed(ErrorCode.FENCED_LEADER_EPOCH)
            elif request.client_rack == "east":
                return FetchReply(preferred_read_replica=FOLLOWER)
            return await self.cluster._fetch(request)

        return answer

    def actor(self, broker):
        async def late(request):
            await asyncio.sleep(self.delay_s)
            return await at_once(request)

        def at_once(request):
            if isinstance(request, FetchTogetherRequest):
                return self.sessions[broker].fetch(request)
            return self.at(broker)("", request)

        def answer(request):
            if not isinstance(request, FetchTogetherRequest | FetchRequest):
                return None
            return late(request) if broker == FOLLOWER and self.delay_s else at_once(request)

        return answer

    def take_asked(self):
        """The brokers that were asked since the last look."""
        asked = [broker for broker, _ in self.answered]
        self.answered.clear()
        return asked


@pytest.fixture
def rack(fake_cluster):
    (log,) = fake_cluster.create("t")
    for text in (b"0", b"1", b"2"):
        log.append(text)
    return Rack(fake_cluster)


def fetcher_of(cluster, **settings):
    settings = ConsumerSettings(
        **{"client_rack": "east", "max_partition_fetch_bytes": 1} | settings
    )
    fetcher = Fetcher(
        router=cluster.router(),
        settings=settings,
        random=cluster.random,
        on_change=lambda: None,
    )
    fetcher.assign([TP])
    fetcher.seek(TP, 0)
    return fetcher


def values(fetcher):
    return [record.value for record in fetcher.take_records(10)]


async def take_all(fetcher, count=3):
    found = []
    for _ in range(100):
        found += values(fetcher)
        if len(found) >= count:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"only {found}")


@pytest.mark.parametrize("host", [0, 1])
def test_what_the_leader_names_is_read_and_told_the_leader_epoch(fake_cluster, run, rack, host):
    """In a host as in an actor of its own."""
    rack.host = host

    async def scenario():
        fetcher = fetcher_of(fake_cluster)
        found = await take_all(fetcher)
        followers = dict(fetcher.followers)
        await fetcher.close()
        return found, followers

    assert run(scenario()) == ([b"0", b"1", b"2"], {TP: FOLLOWER})
    asked = [(broker, request.client_rack) for broker, request in rack.answered]
    assert asked[0] == (LEADER, "east")
    assert set(asked[1:]) == {(FOLLOWER, "")}
    assert {request.leader_epoch for _, request in rack.answered[1:]} == {3}


def test_without_a_rack_only_the_leader_is_read(fake_cluster, run, rack):
    async def scenario():
        fetcher = fetcher_of(fake_cluster, client_rack=None)
        found = await take_all(fetcher)
        await fetcher.close()
        return found

    assert run(scenario()) == [b"0", b"1", b"2"]
    assert set(rack.take_asked()) == {LEADER}


def test_a_rack_has_a_name():
    with pytest.raises(InvalidSettingError, match="client_rack=''"):
        ConsumerSettings(client_rack="")


async def out_of_range(request):
    return request.failed(ErrorCode.OFFSET_OUT_OF_RANGE)


async def damaged(request):
    return FetchReply(error=ErrorCode.CORRUPT_MESSAGE, detail="damage", resume_offset=9)


async def unknown_topic(request):
    return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def wrong_bytes(request):
    return FetchReply(
        high_watermark=3,
        last_stable_offset=3,
        log_start_offset=0,
        aborted_transactions=(),
        records=b"x" * 100,
    )


@pytest.mark.parametrize("refusal", [out_of_range, damaged, unknown_topic, wrong_bytes])
def test_no_error_of_a_follower_reaches_the_program_and_it_is_asked_again_later(
    fake_cluster, run, rack, refusal
):
    """1. The follower fails: the leader is read, without a rack. 2. It is read again. 3. And so."""
    rack.refusal = refusal

    async def scenario():
        fetcher = fetcher_of(fake_cluster)
        found = await take_all(fetcher)
        assert fetcher.take_failure() is None
        first = rack.take_asked()
        rack.refusal = None
        later = []
        for again in (refusal, None):
            await asyncio.sleep(AWAY_S + 2)
            later.append(rack.take_asked())
            rack.refusal = again
            await asyncio.sleep(1)
            rack.refusal = None
        await fetcher.close()
        return found, first, later

    found, first, later = run(scenario())
    assert found == [b"0", b"1", b"2"]
    assert first[:3] == [LEADER, FOLLOWER, LEADER]
    assert first.count(FOLLOWER) == 1
    # The second failure is the first one since, so it is waited for no longer.
    assert [asked[-1] for asked in later] == [FOLLOWER, FOLLOWER]


def test_an_offset_is_out_of_range_only_if_the_leader_says_so(fake_cluster, run, rack):
    async def scenario():
        fetcher = fetcher_of(fake_cluster)
        fetcher.seek(TP, 99)
        await asyncio.sleep(1)
        _, failure = fetcher.take_failure()
        await fetcher.close()
        return failure

    rack.refusal = out_of_range
    assert isinstance(run(scenario()), OffsetOutOfRangeError)
    assert rack.take_asked()[:3] == [LEADER, FOLLOWER, LEADER]


def test_after_a_seek_the_leader_is_asked_whether_the_follower_has_the_offset(
    fake_cluster, run, rack
):
    async def scenario():
        fetcher = fetcher_of(fake_cluster)
        await take_all(fetcher)
        rack.take_asked()
        fetcher.seek(TP, 0)
        await give_turns(50)
        await fetcher.close()

    run(scenario())
    assert rack.take_asked()[:2] == [LEADER, FOLLOWER]


def test_an_election_leads_back_to_the_leader_and_on_to_its_follower(fake_cluster, run, rack):
    """The follower knows the new epoch, and the consumer does not."""

    async def scenario():
        fetcher = fetcher_of(fake_cluster)
        await take_all(fetcher)
        rack.leader_epoch = 4
        rack.take_asked()
        await asyncio.sleep(3)
        await fetcher.close()

    run(scenario())
    asked = rack.take_asked()
    assert asked[:4] == [FOLLOWER, LEADER, FOLLOWER, FOLLOWER]
    assert set(asked[3:]) == {FOLLOWER}


@pytest.mark.parametrize("host", [0, 1])
def test_a_follower_that_hears_nothing_new_is_left_once_it_is_not_in_sync(
    fake_cluster, run, rack, host
):
    """1. The follower is cut off, and the leader has new records. 2. It leaves the ISR. 3. They are
    read.
    """
    rack.host = host

    async def knows_three(request):
        if request.fetch_offset < 3:
            return await fake_cluster._fetch(request)
        await asyncio.sleep(request.max_wait_ms / 1_000)
        return FetchReply(high_watermark=3, last_stable_offset=3, log_start_offset=0)

    async def scenario():
        rack.refusal = knows_three
        fetcher = fetcher_of(fake_cluster)
        await take_all(fetcher)
        fake_cluster.logs[TP].append(b"3")
        await asyncio.sleep(5)
        assert (values(fetcher), fetcher.followers) == ([], {TP: FOLLOWER})
        rack.isr = (LEADER,)
        await asyncio.sleep(IDLE_CHECK_MS / 1_000)
        found = values(fetcher)
        await fetcher.close()
        return found

    assert run(scenario()) == [b"3"]


@pytest.mark.parametrize("host", [0, 1])
def test_a_follower_that_hangs_is_given_up_once_it_is_not_in_sync(fake_cluster, run, rack, host):
    """Long before the deadline of the fetch, since the controller is asked meanwhile."""
    rack.host = host

    async def scenario():
        rack.delay_s = 1_000
        fetcher = fetcher_of(fake_cluster)
        await asyncio.sleep(1)
        assert fetcher.followers == {TP: FOLLOWER}
        rack.isr = (LEADER,)
        await asyncio.sleep(4)
        found = values(fetcher)
        await fetcher.close()
        return found

    assert run(scenario())[:1] == [b"0"]


@pytest.mark.parametrize("host", [0, 1])
def test_a_slow_follower_is_read_while_it_is_in_sync(fake_cluster, run, rack, host):
    rack.host, rack.delay_s = host, 3

    async def scenario():
        fetcher = fetcher_of(fake_cluster)
        await asyncio.sleep(10)
        found = values(fetcher)
        await fetcher.close()
        return found

    assert run(scenario())[:1] == [b"0"]
    assert rack.take_asked().count(LEADER) == 1


def test_a_busy_follower_is_left_too_once_it_is_not_in_sync(fake_cluster, run, rack):
    async def scenario():
        fetcher = fetcher_of(fake_cluster)
        await take_all(fetcher)
        rack.isr = (LEADER,)
        while asyncio.get_running_loop().time() < IDLE_CHECK_MS / 1_000 + 2:
            fake_cluster.logs[TP].append(b"more")
            await asyncio.sleep(0.3)
            assert values(fetcher)
        followers = dict(fetcher.followers)
        await fetcher.close()
        return followers

    assert run(scenario()) == {}
    assert rack.take_asked()[-1] == LEADER


def test_a_follower_that_the_consumer_does_not_know_yet_is_looked_up(fake_cluster, run, rack):
    """1. Only the leader is in sync, as the consumer knows. 2. The leader names a new member."""

    async def scenario():
        rack.isr = (LEADER,)
        fetcher = fetcher_of(fake_cluster, client_rack="east")
        await fetcher._router.metadata([TP.topic])
        rack.isr = (LEADER, FOLLOWER)
        await take_all(fetcher)
        followers = dict(fetcher.followers)
        await fetcher.close()
        return followers

    assert run(scenario()) == {TP: FOLLOWER}
    assert rack.take_asked()[:2] == [LEADER, FOLLOWER]


def test_a_partition_that_is_given_up_is_read_from_no_follower(fake_cluster, run, rack):
    async def scenario():
        fetcher = fetcher_of(fake_cluster)
        await take_all(fetcher)
        fetcher.assign([])
        followers = dict(fetcher.followers)
        await fetcher.close()
        return followers

    assert run(scenario()) == {}


def test_metrics_tell_what_is_read_from_followers(fake_cluster, run, rack):
    async def scenario():
        settings = ConsumerSettings(client_rack="east", auto_offset_reset="earliest")
        consumer = AsyncConsumer(fake_cluster.router(), settings, fake_cluster.random)
        await consumer.assign(TP)
        while not await consumer.poll(1_000):
            pass
        metrics = await consumer.metrics()
        await consumer.close()
        return metrics

    metrics = run(scenario())
    assert metrics["follower_partitions"] == 1
    assert 1 <= metrics["follower_fetch_total"] < metrics["fetch_total"]
