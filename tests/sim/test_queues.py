"""Queues whose workers and coordinators die: each task's result is there once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
from sim_process import Client, false_news
from sim_queues import GROUP, TOPICS, QueuePlay
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.actors.coordination.process_watch import ProcessWatch
from oncelog.actors.protocol.messages.share import JOIN_EPOCH
from oncelog.actors.protocol.queue import share_partition
from oncelog.actors.protocol.queue.share_groups import ShareTurn
from oncelog.actors.protocol.queue.share_keys import NO_KEY
from oncelog.actors.protocol.queue.share_partition import RecordState, Run, SharePartition
from oncelog.api.queueing.core import QueueCore
from oncelog.api.queueing.queue import AsyncQueue
from oncelog.storage.errors import ErrorCode

SETTINGS = WorldSettings(
    cluster=ClusterConfig(replicas_per_actor=1, group_share_session_timeout_ms=2_000)
)


def played(seed: int, *, key_count: int = 0) -> QueuePlay:
    with World(seed, topics=TOPICS, settings=SETTINGS) as world:
        play = QueuePlay(world, key_count=key_count)
        play.run()
        return play


@pytest.mark.parametrize("seed", range(4))
def test_each_result_is_there_once_whoever_dies(seed):
    play = played(seed)
    assert play.counts["committed"] > 5


@pytest.mark.parametrize("seed", range(4))
def test_in_order_of_keys_the_results_of_each_key_are_in_order_whoever_dies(seed):
    play = played(seed, key_count=6)
    assert play.counts["committed"] > 5


# --- deaths of workers ----------------------------------------------------------------------------

THREE_NODES = WorldSettings(
    brokers=3, replication_factor=3, cluster=ClusterConfig(replicas_per_actor=1)
)
SESSION_S = THREE_NODES.cluster.group_share_session_timeout_ms / 1_000
NOTICED_S = 1.0
"""How long the locks of a dead worker may last, where a broker is on its machine."""


async def _write_tasks(client: Client, count: int) -> None:
    producer = client.producer()
    for number in range(count):
        await producer.send("tasks", b"%d" % number, partition=0)
    await producer.close()


async def _take(client: Client, queues: list[AsyncQueue]) -> int:
    """Take all tasks, whoever holds them now, and keep them; return how many there were."""
    queue = client.queue("tasks", group_id=GROUP)
    queues.append(queue)
    while not (records := await queue.take(100, timeout_ms=1_000)):
        pass
    return len(records)


def _inheritance_s(seed: int, *, node: int) -> float:
    """How long another worker waits for the records of one that dies on that node."""
    with World(seed, topics=TOPICS, settings=THREE_NODES) as world:
        writer = world.client("writer")
        world.run(writer.spawn(_write_tasks(writer, 10)))
        holder, heir = world.client("holder", node=node), world.client("heir")
        queues: list[AsyncQueue] = []
        assert world.run(holder.spawn(_take(holder, queues))) == 10
        taking = heir.spawn(_take(heir, queues))
        world.run_for(2 * SESSION_S)
        assert not taking.done()
        world.kill(holder.name)
        died_s = world.now_s
        assert world.run(taking, limit_s=5 * SESSION_S) == 10
        return world.now_s - died_s


@pytest.mark.parametrize("node", [1, 2, 3])
@pytest.mark.parametrize("seed", range(2))
def test_the_locks_of_a_worker_end_within_a_second_of_its_death_on_any_node(seed, node):
    assert _inheritance_s(seed, node=node) <= NOTICED_S


def test_without_answers_of_brokers_a_distant_death_is_noticed_by_the_session_only():
    """A saboteur: nobody asks the broker of the worker's machine."""
    with mock.patch.object(ProcessWatch, "_ask", return_value=None):
        waits = [_inheritance_s(0, node=node) for node in (1, 2, 3)]
    # The coordinator's own machine needs no answer.
    assert [wait_s <= NOTICED_S for wait_s in waits].count(True) == 1


def test_a_platform_that_takes_the_living_for_dead_costs_no_record_and_no_order():
    """Now and then a worker that lives is told to be gone: it joins again, and others go on."""
    with false_news("lies", 0.05) as told:
        play = played(5)
    assert told[True]
    assert play.counts["committed"] > 5


# --- without a protection -------------------------------------------------------------------------


def _accepts_before_the_commit() -> Any:
    """A record that a transaction accepts is done with at once, whatever becomes of it."""

    def accept_pending(self: SharePartition, first: int, last: int, *, producer_id: int) -> None:
        self._change(first, last, lambda run: run.moved(RecordState.ACKNOWLEDGED))

    return mock.patch.object(SharePartition, "accept_pending", accept_pending)


def _locks_that_outlive_their_epoch() -> Any:
    """Whoever held a record may accept it, also after its session, while another has it."""

    def is_held(self: SharePartition, first: int, last: int, *, owner: int) -> bool:
        return last < self.next_offset

    def check_member(self: ShareTurn, member_id: str, member_epoch: int) -> ErrorCode:
        return ErrorCode.NONE

    def lose(self: QueueCore, epoch: int) -> None:
        self._epoch = JOIN_EPOCH
        self._unread = []

    return _together(
        mock.patch.object(QueueCore, "_lose", lose),
        mock.patch.object(SharePartition, "is_held", is_held),
        mock.patch.object(ShareTurn, "_check_member", check_member),
        mock.patch.object(share_partition, "_accepted", _accepted_of_anybody),
    )


def _accepted_of_anybody(producer_id: int, run: Run) -> Run:
    return run.moved(RecordState.PENDING, owner=producer_id)


def _redeliveries_after_an_accept() -> Any:
    """What a transaction accepted is available again, even if it commits."""
    real = SharePartition.end_transaction

    def end_transaction(self: SharePartition, producer_id: int, *, committed: bool) -> bool:
        return real(self, producer_id, committed=committed and producer_id % 2 == 0)

    return mock.patch.object(SharePartition, "end_transaction", end_transaction)


def _keys_that_hold_up_nobody() -> Any:
    """A record is delivered while an earlier one of its key is with somebody."""

    def first_of_keys(runs: Iterable[Run], keys: Mapping[int, int], count_max: int) -> list[Run]:
        # Each key is another one.
        apart = dict.fromkeys(keys, NO_KEY)
        return real(runs, apart, count_max)

    real = share_partition.first_of_keys
    return mock.patch.object(share_partition, "first_of_keys", first_of_keys)


@contextmanager
def _together(*patches: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


@pytest.mark.parametrize(
    "sabotage",
    [_accepts_before_the_commit, _locks_that_outlive_their_epoch, _redeliveries_after_an_accept],
)
def test_a_queue_without_one_of_its_protections_is_found_out(sabotage):
    for seed in range(8):
        with sabotage(), World(seed, topics=TOPICS, settings=SETTINGS) as world:
            play = QueuePlay(world)
            try:
                play.run()
            except AssertionError:
                break
    else:
        raise AssertionError("nobody noticed")
    assert sorted(play.results) != sorted(play.tasks)


def test_an_order_of_keys_that_holds_nothing_up_is_found_out():
    for seed in range(8):
        with _keys_that_hold_up_nobody(), World(seed, topics=TOPICS, settings=SETTINGS) as world:
            play = QueuePlay(world, key_count=6)
            try:
                play.run()
            except AssertionError:
                break
    else:
        raise AssertionError("nobody noticed")
    # Nothing is lost or there twice: only the order is wrong.
    assert sorted(play.results) == sorted(play.tasks)
