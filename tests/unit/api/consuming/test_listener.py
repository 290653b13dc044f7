"""What a rebalance listener is told, when, and in which thread."""

from __future__ import annotations

import asyncio
import threading

import pytest
from inside import membership_of

from oncelog.actors.protocol.messages.group import LeaveGroupRequest
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.consumer import AsyncConsumer, Consumer
from oncelog.api.consuming.core import ConsumerRebalanceListener
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import IllegalStateError
from oncelog.storage.model import TopicPartition

TP = TopicPartition("t", 0)
SETTINGS = ConsumerSettings(
    group_id="g",
    enable_auto_commit=False,
    auto_offset_reset="earliest",
    partition_assignment_strategy="range",
)
"""Of a member whose rebalances are eager; ``test_cooperative.py`` has the others."""


class Told(ConsumerRebalanceListener):
    """Notes what it is told; ``act`` does more."""

    def __init__(self, act=lambda what, partitions: None):
        self.calls = []
        self.threads = set()
        self.act = act

    def _note(self, what, partitions):
        self.calls.append((what, *sorted(map(str, partitions))))
        self.threads.add(threading.get_ident())
        return self.act(what, partitions)

    def on_assigned(self, partitions):
        return self._note("assigned", partitions)

    def on_revoked(self, partitions):
        return self._note("revoked", partitions)

    def on_lost(self, partitions):
        return self._note("lost", partitions)


def async_consumer(cluster):
    return AsyncConsumer(cluster.router(), SETTINGS, cluster.random)


def consumer(cluster, loop_thread):
    return Consumer(cluster.router(), loop_thread, SETTINGS, cluster.random)


def rebalance(client, error=ErrorCode.REBALANCE_IN_PROGRESS):
    membership_of(client)._on_group_error(error)


def test_a_rebalance_takes_all_and_gives_all_and_close_takes_them_for_good(fake_cluster, run):
    fake_cluster.create("t")
    told = Told()

    async def scenario():
        client = async_consumer(fake_cluster)
        await client.subscribe("t", listener=told)
        assert told.calls == []
        await client.poll(1_000)
        rebalance(client)
        await client.poll(1_000)
        rebalance(client, ErrorCode.UNKNOWN_MEMBER_ID)
        await client.poll(1_000)
        await client.close()

    run(scenario())
    assert told.calls == [
        ("assigned", "t-0"),
        ("revoked", "t-0"),
        ("assigned", "t-0"),
        ("lost", "t-0"),
        ("assigned", "t-0"),
        ("revoked", "t-0"),
    ]


def test_what_was_lost_is_told_as_revoked_unless_the_listener_tells_them_apart(fake_cluster, run):
    fake_cluster.create("t")
    calls = []

    class Simple(ConsumerRebalanceListener):
        def on_revoked(self, partitions):
            calls.append(partitions)

    async def scenario():
        client = async_consumer(fake_cluster)
        await client.subscribe("t", listener=Simple())
        await client.poll(1_000)
        rebalance(client, ErrorCode.UNKNOWN_MEMBER_ID)
        await client.poll(1_000)

    run(scenario())
    assert calls == [{TP}]


def test_polls_that_do_not_wait_tell_it_one_after_another(fake_cluster, run):
    fake_cluster.create("t")
    told = Told()

    async def scenario():
        client = async_consumer(fake_cluster)
        await client.subscribe("t", listener=told)
        for _ in range(50):
            await client.poll(0)
            await asyncio.sleep(0.01)
        return len(told.calls)

    assert run(scenario()) == 1


def test_a_listener_commits_what_is_revoked_and_sets_where_reading_begins(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1", b"2")

    async def scenario():
        client = async_consumer(fake_cluster)

        async def act(what, partitions):
            if what == "revoked":
                await client.commit()
            else:
                positions.append(await client.position(TP))
                await client.seek(TP, positions[-1] + 1)

        positions = []
        await client.subscribe("t", listener=Told(act))
        first = [record.value for record in await client.poll(1_000, max_records=1)]
        rebalance(client)
        second = [record.value for record in await client.poll(1_000)]
        await client.close()
        return positions, first, second, dict(fake_cluster.committed)

    # Each assignment begins one after what is committed: 0 + 1, then 2 + 1.
    assert run(scenario()) == ([0, 2], [b"1"], [], {TP: 3})


def test_in_the_synchronous_client_it_is_called_in_the_thread_that_polls(fake_cluster, loop_thread):
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1")
    client = consumer(fake_cluster, loop_thread)
    told = Told(lambda what, partitions: what == "revoked" and client.commit())
    client.subscribe("t", listener=told)
    assert [record.value for record in client.poll(5_000, 1)] == [b"0"]
    loop_thread.run(_rebalance(client))
    assert [record.value for record in client.poll(5_000)] == [b"1"]
    client.close()
    assert [what for what, *_ in told.calls] == ["assigned", "revoked", "assigned", "revoked"]
    assert told.threads == {threading.get_ident()}
    assert fake_cluster.committed == {TP: 2}


async def _rebalance(client):
    rebalance(client._client)


@pytest.mark.parametrize("what", ["assigned", "revoked"])
def test_what_it_raises_leaves_the_poll_and_the_rebalance_goes_on(fake_cluster, loop_thread, what):
    (log,) = fake_cluster.create("t")
    log.append(b"0")
    client = consumer(fake_cluster, loop_thread)
    raised = []

    def act(told, partitions):
        if told == what and not raised:
            raised.append(told)
            raise KeyError(told)

    listener = Told(act)
    client.subscribe("t", listener=listener)
    if what == "revoked":
        client.poll(5_000)
        loop_thread.run(_rebalance(client))
    with pytest.raises(KeyError, match=what):
        client.poll(5_000)
    assert client.poll(5_000)
    assert listener.calls[-1][0] == "assigned"
    client.close()


def test_what_it_raises_in_close_is_raised_once_the_group_is_left(fake_cluster, run):
    fake_cluster.create("t")

    def act(what, partitions):
        if what == "revoked":
            raise KeyError(what)

    async def scenario():
        client = async_consumer(fake_cluster)
        await client.subscribe("t", listener=Told(act))
        await client.poll(1_000)
        with pytest.raises(KeyError):
            await client.close()
        return len(fake_cluster.requests(LeaveGroupRequest)), client.assignment()

    assert run(scenario()) == (1, frozenset())


@pytest.mark.parametrize("call", ["poll", "unsubscribe", "close"])
def test_it_may_not_take_the_consumer_further(fake_cluster, loop_thread, call):
    fake_cluster.create("t")
    client = consumer(fake_cluster, loop_thread)
    client.subscribe("t", listener=Told(lambda what, partitions: getattr(client, call)()))
    with pytest.raises(IllegalStateError, match=rf"{call}\(\) was called by .* listener"):
        client.poll(5_000)


def test_a_coroutine_function_is_refused_by_the_synchronous_client(fake_cluster, loop_thread):
    fake_cluster.create("t")

    async def act(what, partitions):
        raise AssertionError

    client = consumer(fake_cluster, loop_thread)
    client.subscribe("t", listener=Told(act))
    with pytest.raises(TypeError, match="asynchronous"):
        client.poll(5_000)


def test_only_a_listener_is_a_listener(fake_cluster, loop_thread):
    with pytest.raises(TypeError, match="ConsumerRebalanceListener"):
        consumer(fake_cluster, loop_thread).subscribe("t", listener=print)
