"""Directed schedules: drivers of distributed writes whose clocks differ, that die, or are slow."""

from __future__ import annotations

import contextlib
from random import Random
from unittest import mock

import pytest
from sim_history import Outcome
from sim_schedules import HASTY, TIMES, C, Play
from sim_stage import Player
from sim_world import World, WorldSettings
from sim_writes import hook

from oncelog.actors.config import ClusterConfig
from oncelog.actors.coordination.process_watch import ProcessWatch
from oncelog.actors.protocol.transaction.commit_versions import version_token
from oncelog.api.distributing.write import DistributedWrite
from oncelog.spark_bridge.write_options import parse_write_options
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError, TransactionAbortableError
from oncelog.storage.model import TopicPartition

HOUR_MS = 3_600_000
SOON_S = 3.0


class Driver:
    """A program that writes as one run with one task. Each method is one step."""

    def __init__(self, play, name, *, clock_offset_ms=0):
        self.play, self.name = play, name
        self.client = play.world.client(name)
        self.player = Player(play.stage, self.client, Random(name))
        play.world.clock_offsets_ms[name] = clock_offset_ms
        self.membership = self.member = self.write = None

    def do(self, work):
        return self.play.end(self.client.spawn(work))

    def begin(self, transactional_id, token=b"", **details):
        beginning = self.client.begin_run(transactional_id, token=token, settings=HASTY, **details)
        self.membership = self.do(beginning)
        self.write = self.player.history.begin(self.name, transactional_id, token=token)

    def send(self, topic, value):
        self.do(self._sending(topic, value))

    async def _sending(self, topic, value):
        if self.member is None:
            self.member = self.client.member(self.membership, **HASTY)
            assert await self.member.enlist()
        record = self.player.history.send(self.write, TopicPartition(topic, 0), value)
        await self.player.send(self.member, record)
        await self.member.flush()

    def commit(self):
        self.do(self._committing())

    async def _committing(self):
        self.player.history.start_commit(self.write)
        winners = [self.member.winner]
        end = await self.client.end_run(self.membership, committed=True, winners=winners, **HASTY)
        self.player.ended(self.write, Outcome.OK, is_visible=end.visible)

    def fail(self):
        """Its task fails. The next record is that of another attempt."""
        self.do(self._failing())
        self.player.ended(self.write, Outcome.FAIL)
        self.member = None
        self.write = self.player.history.begin(self.name, self.write.transactional_id)

    async def _failing(self):
        with contextlib.suppress(ZeroDivisionError):
            async with self.member:
                raise ZeroDivisionError

    def refused(self, step, *arguments, **named):
        """The code that a step is refused with; the schedule fails if it is not."""
        try:
            step(*arguments, **named)
        except OncelogError as error:
            return error.code
        raise AssertionError("the step was not refused")


@pytest.mark.parametrize("offset_ms", [-HOUR_MS, HOUR_MS])
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "aborted"])
def test_an_hour_between_the_clocks_of_drivers_shuts_nobody_out(offset_ms, is_open):
    """1. P, whose clock is off, writes. 2. Its run is aborted by its timeout, or not. 3. Q, whose
    clock is off the other way, writes the same and commits. 4. P is fenced.
    """
    with Play() as play:
        first = Driver(play, "P", clock_offset_ms=offset_ms)
        first.begin("T", b"batch", transaction_timeout_ms=60_000)
        first.send("a", "p")
        if not is_open:
            play.pass_time(70)
        second = Driver(play, "Q", clock_offset_ms=-offset_ms)
        second.begin("T", b"batch")
        second.send("a", "q")
        assert first.refused(first.commit) is ErrorCode.PRODUCER_FENCED
        second.commit()
        assert play.read("a") == ["q"]


@pytest.mark.parametrize("dies", [False, True], ids=["C lives", "C dies"])
def test_what_a_dead_driver_left_open_holds_readers_back_for_seconds(dies):
    """1. P writes, without identity. 2. P dies; C may die as well. 3. Q writes the same as another
    id and commits. 4. Readers see what Q wrote, long before P's time is over.
    """
    with Play() as play:
        first = Driver(play, "P")
        first.begin("spark-1")
        first.send("a", "p")
        play.world.kill("P")
        if dies:
            play.crash(C)
        second = Driver(play, "Q")
        second.begin("spark-2")
        second.send("a", "q")
        second.commit()
        play.pass_time(SOON_S)
        assert play.read("a") == ["q"]


THREE_NODES = WorldSettings(
    brokers=3, replication_factor=3, cluster=ClusterConfig(replicas_per_actor=1)
)

WAITING = {"transaction_timeout_ms": 10_000}


def _held_back_s(node):
    """How long readers wait behind what the driver of a write left open that died on that node."""

    async def leave_open(client):
        member = client.member(await client.begin_run("spark-1", settings=WAITING))
        assert await member.enlist()
        await member.send("a", value=b"open", partition=0)
        await member.flush()

    async def write_and_read(client):
        producer = client.producer()
        await (await producer.send("a", value=b"behind", partition=0))
        await producer.close()
        consumer = client.consumer(auto_offset_reset="earliest")
        await consumer.assign([TopicPartition("a", 0)])
        while not (records := await consumer.poll(100)):
            pass
        await consumer.close()
        return [record.value for record in records]

    with World(21, topics={"a": 1}, settings=THREE_NODES) as world:
        driver, reader = world.client("driver", node=node), world.client("reader")
        world.run(driver.spawn(leave_open(driver)))
        world.kill(driver.name)
        died_s = world.now_s
        assert world.run(reader.spawn(write_and_read(reader)), limit_s=2_000) == [b"behind"]
        return world.now_s - died_s


@pytest.mark.parametrize("node", [1, 2, 3])
def test_a_driver_that_dies_on_any_node_with_a_broker_holds_readers_back_for_seconds(node):
    assert _held_back_s(node) <= SOON_S


def test_without_answers_of_brokers_a_distant_driver_holds_readers_back_until_its_timeout():
    """A saboteur: nobody asks the broker of the driver's machine."""
    with mock.patch.object(ProcessWatch, "_ask", return_value=None):
        waits = [_held_back_s(node) for node in (1, 2, 3)]
    # The coordinator's own machine needs no answer.
    assert [wait_s <= SOON_S for wait_s in waits].count(True) == 1


@pytest.mark.parametrize("dies", [False, True], ids=["C lives", "C dies"])
def test_what_a_failed_task_left_open_holds_readers_back_for_seconds(dies):
    """1. The only task of P fails after it has written; P lives on. C may die. 2. Q writes, as
    another id, and commits. 3. Readers see it. 4. The task of P is tried again, and P commits.
    """
    with Play() as play:
        first = Driver(play, "P")
        first.begin("spark-1")
        first.send("a", "p")
        first.fail()
        if dies:
            play.crash(C)
        second = Driver(play, "Q")
        second.begin("spark-2")
        second.send("a", "q")
        second.commit()
        play.pass_time(SOON_S)
        assert play.read("a") == ["q"]
        first.send("a", "p again")
        first.commit()
        play.pass_time(SOON_S)
        assert play.read("a") == ["q", "p again"]


def test_a_driver_that_lives_may_be_slow():
    """1. P writes. 2. It computes for ten minutes; C dies meanwhile. 3. It commits."""
    with Play() as play:
        driver = Driver(play, "P")
        driver.begin("spark-1")
        driver.send("a", "p")
        play.pass_time(300)
        play.crash(C)
        play.world.pause("P")
        play.pass_time(300)
        play.world.resume("P")
        driver.commit()
        assert play.read("a") == ["p"]


def test_a_driver_that_dies_in_its_commit_has_committed_or_not():
    """1. P asks to commit; PREPARE is in the log of C, not durable. 2. P dies, and C looks for it.
    3. The disk goes on: the write is committed.
    """
    with Play() as play:
        driver = Driver(play, "P")
        driver.begin("spark-1")
        driver.send("a", "p")
        play.world.hold_disk(C)
        driver.client.spawn(driver._committing())
        play.pass_time(1)
        play.world.kill("P")
        play.pass_time(1)
        play.world.release_disk(C)
        play.pass_time(SOON_S)
        assert play.read("a") == ["p"]


@TIMES
def test_a_late_copy_of_a_begin_fences_nobody(times):
    """1. P begins. 2. Q begins, and writes. 3. P's call arrives again. 4. Q commits."""
    with Play() as play:
        first, second = Driver(play, "P"), Driver(play, "Q")
        first.begin("T", b"batch")
        (call,) = play.calls("begin_run")
        second.begin("T", b"batch")
        second.send("a", "q")
        late = play.ask(call, times)
        assert late.error is ErrorCode.CONCURRENT_TRANSACTIONS
        second.commit()
        assert play.read("a") == ["q"]


def test_a_begin_whose_reply_is_lost_is_the_same_run_when_it_is_asked_again():
    """1. P begins; the reply is lost, and C dies. 2. P asks again: its run has the same number."""
    with Play() as play:
        driver = Driver(play, "P")
        gate = play.hold("begin_run", reply=True)
        beginning = driver.client.spawn(driver.client.begin_run("T", settings=HASTY))
        play.until_held(gate)
        play.crash(C)
        membership = play.end(beginning)
        gate.release_all()
        assert membership.run.number == 1
        assert len(play.calls("begin_run")) > 1


def test_a_producer_of_an_applications_id_does_not_make_it_forget_its_version():
    """1. D writes version 7. 2. W, a producer under the same id, writes something and can only
    abort it. 3. R comes with version 7 again: it is written already.
    """
    with Play() as play:
        driver = Driver(play, "D")
        driver.begin("T", version_token("job", 7))
        driver.send("a", "seven")
        driver.commit()
        writer = play.writer("T", name="W")
        writer.begin()
        writer.send("a", "something else")
        with pytest.raises(TransactionAbortableError, match="remembers version 7 of 'job'"):
            writer.commit()
        writer.abort()
        again = Driver(play, "R")
        again.begin("T", version_token("job", 7))
        assert again.membership.is_committed
        assert play.read("a") == ["seven"]


def test_versions_only_rise_whoever_writes_them():
    """1. P plans version 1, Q version 2. 2. Q commits. 3. P can neither go on nor begin anew, also
    after C has died; Q's version is not written again, and the next one is.
    """
    with Play() as play:
        first, second = Driver(play, "P", clock_offset_ms=HOUR_MS), Driver(play, "Q")
        first.begin("T", version_token("job", 1))
        second.begin("T", version_token("job", 2))
        second.send("a", "two")
        second.commit()
        assert first.refused(first.send, "a", "one") is ErrorCode.OUTDATED_VERSION
        play.crash(C)
        again = Driver(play, "R", clock_offset_ms=HOUR_MS)
        refused = again.refused(again.begin, "T", version_token("job", 1))
        assert refused is ErrorCode.OUTDATED_VERSION
        again.begin("T", version_token("job", 2))
        assert again.membership.is_committed
        again.begin("T", version_token("job", 3))
        again.send("a", "three")
        again.commit()
        assert play.read("a") == ["two", "three"]


# --- versions under former ids ----------------------------------------------------------------


def planned(driver, version, **given):
    """A write of a version of ``job`` as its driver plans it, with the options that are given."""
    options = {"txnAppId": "job", "txnVersion": str(version), **given}
    parsed = parse_write_options(options)
    return driver.do(hook(driver.player, lambda connect: DistributedWrite.plan(connect, parsed)))


@pytest.mark.parametrize("prefix", [None, "load", "other"])
def test_a_version_that_was_written_under_a_prefix_is_known_under_any(prefix):
    """1. A driver of a former oncelog writes version 7 under an id with a prefix, and one of Ray
    Data version 9 of what has the same name there. 2. Drivers with the same prefix, with another
    and with none come with 7, with one below it and the next one.
    """
    given = {} if prefix is None else {"transactional.id": prefix}
    with Play() as play:
        former = Driver(play, "F")
        former.begin("load-job", version_token("job", 7))
        former.send("a", "seven")
        former.commit()
        others = Driver(play, "O")
        others.begin("ray-data-job", version_token("job", 9))
        others.send("b", "nine")
        others.commit()
        driver = Driver(play, "D")
        assert planned(driver, 7, **given).membership.is_committed
        assert driver.refused(planned, driver, 6, **given) is ErrorCode.OUTDATED_VERSION
        following = planned(driver, 8, **given)
        assert not following.membership.is_committed
        assert following.membership.transactional_id == "spark-job"


def test_a_former_driver_that_still_writes_under_its_prefix_is_fenced():
    """1. F, of a former oncelog, writes the first version. 2. Its program is started anew, with
    today's. 3. F can not commit.
    """
    with Play() as play:
        former = Driver(play, "F")
        former.begin("load-job", version_token("job", 1))
        former.send("a", "one")
        planned(Driver(play, "D"), 1, **{"transactional.id": "load"})
        assert former.refused(former.commit) is ErrorCode.PRODUCER_FENCED
        assert play.read("a") == []


def test_former_ids_are_looked_for_until_an_application_has_written_a_version():
    with Play() as play:
        driver = Driver(play, "D")
        planned(driver, 1)
        assert play.calls("describe_transactions")
        driver.begin("spark-job", version_token("job", 1))
        driver.send("a", "one")
        driver.commit()
        before = len(play.calls("describe_transactions"))
        assert not planned(driver, 2).membership.is_committed
        assert len(play.calls("describe_transactions")) == before
