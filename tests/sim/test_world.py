"""The simulated world does what it promises to its tests."""

from __future__ import annotations

import asyncio
import errno

import pytest
from crash_disk import DataLoss, NameLoss
from sim_loop import StuckError
from sim_process import EPOCH_MS
from sim_world import SimulationError, World

from oncelog.actors.protocol.messages.partition import DescribeReplicaRequest, ProduceRequest
from oncelog.storage.errors import ErrorCode, InvariantViolation
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.codec import encode_records

FLIGHTS = TopicPartition("flights", 0)
LEADER = "partition:flights-0@1"


@pytest.fixture
def world():
    with World(seed=1) as world:
        yield world


def call(world, request, actor=LEADER, timeout_ms=1_000):
    """The task of a call by the world itself."""
    return world.driver.spawn(world.driver.transport.call(actor, request, timeout_ms=timeout_ms))


def produce(value=b"v"):
    batch = encode_records([(None, value, 0, ())])
    return ProduceRequest(topic_partition=FLIGHTS, batch=bytes(batch))


def log_end(world):
    return world.replicas()[LEADER].machine.log_end_offset


async def write(client, *, transactions=1, **settings):
    producer = client.producer(transactional_id="writer", **settings)
    await producer.init_transactions()
    for number in range(transactions):
        await producer.begin_transaction()
        await producer.send("flights", value=b"%d" % number)
        await producer.commit_transaction()


async def read(client, count):
    consumer = client.consumer()
    await consumer.assign(FLIGHTS)
    await consumer.seek_to_beginning()
    values = []
    while len(values) < count:
        values += [record.value for record in await consumer.poll(1_000)]
    return values


# --- the whole --------------------------------------------------------------------------------


def test_a_transaction_is_committed_and_read(world):
    writer, reader = world.client("writer"), world.client("reader")
    world.run(writer.spawn(write(writer, transactions=3)))
    assert world.run(reader.spawn(read(reader, 3))) == [b"0", b"1", b"2"]


def test_after_everything_has_died_and_healed_what_was_committed_is_read(world):
    writer, reader = world.client("writer"), world.client("reader")
    world.run(writer.spawn(write(writer, transactions=3)))
    world.power_loss(data=DataLoss.ALL, entries=NameLoss.ALL)
    world.quiesce()
    assert world.run(reader.spawn(read(reader, 3))) == [b"0", b"1", b"2"]
    assert world.actor(LEADER).incarnation == 2


def test_quiesce_waits_for_the_end_of_what_a_dead_client_left_open(world):
    async def leave_open(client):
        producer = client.producer(transactional_id="left", transaction_timeout_ms=5_000)
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send("flights", value=b"open")
        await producer.flush()

    writer = world.client("writer")
    world.run(writer.spawn(leave_open(writer)))
    world.kill("writer")
    assert not world.is_quiet()
    world.quiesce()
    assert world.is_quiet()
    assert world.replicas()[LEADER].machine.last_stable_offset == 2


# --- failures ---------------------------------------------------------------------------------


def test_what_is_never_done_is_told_with_the_story(world):
    with pytest.raises(SimulationError, match=r"seed 1.*not done within 5 s(.|\n)*incarnation"):
        world.run(asyncio.Event().wait(), limit_s=5)


def test_nothing_to_do_and_no_timer_is_a_deadlock():
    world = World(seed=1)
    for name in world.actor_names():
        world.end_actor(name)
    with pytest.raises(SimulationError, match="deadlock"):
        world.run(asyncio.Event().wait())
    world.close()


def test_a_busy_loop_is_found(world):
    async def spin():
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    world.loop.events_per_second_max = 1_000
    with pytest.raises(SimulationError, match=r"busy loop, perhaps of world") as raised:
        world.run(spin())
    assert isinstance(raised.value.__cause__, StuckError)


def test_a_broken_invariant_in_an_actor_fails_the_simulation(world):
    async def break_it(request):
        raise InvariantViolation("I-00: on purpose")

    world.server(LEADER).describe_replica = break_it
    call(world, DescribeReplicaRequest())
    with pytest.raises(SimulationError, match=r"I-00: on purpose"):
        world.run_for(1)
    assert world.actor(LEADER) is None


def test_an_error_in_a_task_that_nobody_awaits_fails_the_simulation(world):
    async def break_it():
        raise KeyError("on purpose")

    world.actor(LEADER).spawn(break_it())
    with pytest.raises(SimulationError, match="on purpose"):
        world.run_for(1)


def test_what_a_client_drops_of_its_records_is_no_failure(world):
    async def abort(client):
        producer = client.producer(transactional_id="writer")
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send("flights", value=b"dropped")
        await producer.abort_transaction()

    writer = world.client("writer")
    world.run(writer.spawn(abort(writer)))
    world.run_for(1)
    assert world.failure is None


def test_checks_run_after_each_callback_of_an_actor_only(world):
    seen = set()
    world.after_event.append(lambda _, process: seen.add(process.name))
    writer = world.client("writer")
    world.run(writer.spawn(write(writer)))
    assert {LEADER, "transaction:0@1"} & seen
    assert not {"writer", "world"} & seen


def test_what_a_check_raises_is_the_failure(world):
    def check(_, process):
        assert process.name != LEADER, "on purpose"

    world.after_event.append(check)
    call(world, produce())
    with pytest.raises(SimulationError, match=r"seed 1.*on purpose"):
        world.run_for(1)


# --- processes --------------------------------------------------------------------------------


def test_a_killed_process_runs_nothing_any_more_and_no_cleanup(world):
    said = []

    async def work():
        try:
            said.append("began")
            await asyncio.sleep(1)
            said.append("went on")
        finally:
            said.append("cleaned up")

    client = world.client("program")
    task = client.spawn(work())
    world.run_for(0.5)
    world.kill("program")
    task.cancel()
    world.run_for(5)
    assert said == ["began"]
    assert world.client("program").incarnation == 2


def test_an_actor_comes_back_by_itself_with_all_it_had_written(world):
    world.run(call(world, produce()))
    world.hold_disk(LEADER)
    call(world, produce())
    world.run_for(0.1)
    assert log_end(world) == 2
    world.kill(LEADER)
    assert world.actor(LEADER) is None
    world.run_for(5)
    assert log_end(world) == 2
    assert world.replicas()[LEADER].leader_epoch > 0


def test_a_power_loss_takes_what_was_not_synced(world):
    world.run(call(world, produce()))
    world.hold_disk(LEADER)
    call(world, produce())
    world.run_for(0.1)
    world.power_loss([LEADER], data=DataLoss.ALL, entries=NameLoss.ALL)
    world.run_for(5)
    assert log_end(world) == 1


def test_a_held_disk_holds_the_acknowledgement_back(world):
    world.hold_disk(LEADER)
    waiting = call(world, produce(), timeout_ms=60_000)
    world.run_for(5)
    assert not waiting.done()
    world.release_disk(LEADER)
    assert world.run(waiting).error is ErrorCode.NONE


def test_a_paused_process_goes_on_where_it_was(world):
    ticks = []

    async def tick(client):
        while True:
            await asyncio.sleep(1)
            ticks.append((round(world.now_s), client.clock.now_ms() - EPOCH_MS))

    client = world.client("program")
    start_s = world.now_s
    client.spawn(tick(client))
    world.run_for(2.5)
    world.pause("program")
    world.run_for(10)
    assert len(ticks) == 2
    world.resume("program")
    world.run_for(1.7)
    times = [round(clock_ms / 1_000 - start_s, 1) for _, clock_ms in ticks]
    assert times == [1.0, 2.0, 12.5, 13.5]


def test_calls_to_a_paused_actor_run_when_it_goes_on(world):
    world.pause(LEADER)
    first = call(world, produce(), timeout_ms=500)
    assert world.run(first).error is ErrorCode.REQUEST_TIMED_OUT
    assert log_end(world) == 0
    world.resume(LEADER)
    world.run_for(0.1)
    assert log_end(world) == 1


def test_a_zombie_holds_the_directory_until_it_dies(world):
    world.pause(LEADER)
    world.replace(LEADER, life_s=None)
    world.run_for(10)
    assert world.actor(LEADER).incarnation == 2
    assert not world.is_ready(LEADER)
    world.kill_zombies()
    world.run_for(5)
    assert world.is_ready(LEADER)


def test_a_zombie_dies_in_its_time(world):
    world.replace(LEADER, life_s=(1, 3))
    assert [zombie.name for zombie in world.zombies()] == [LEADER]
    world.run_for(3.1)
    assert world.zombies() == []


def test_a_process_dies_at_the_disk_operation_planned_and_not_before(world):
    operations = world.disk(LEADER).operation_count
    world.crash_at_disk_operation(LEADER, 2)
    reply = world.run(call(world, produce()))
    dead = world.actor(LEADER) is None
    history = world.disk(LEADER).history
    assert reply.error is ErrorCode.NETWORK_EXCEPTION
    assert dead
    assert [operation.call for operation in history[operations:]] == ["append", "datasync"]
    world.run_for(5)
    assert log_end(world) == 1


def test_an_actor_can_be_made_to_die_in_its_recovery(world):
    world.kill(LEADER)
    world.crash_at_disk_operation(LEADER, 3)
    world.run_for(10)
    assert world.counts["disk_stop"] == 1
    assert world.actor(LEADER).incarnation == 3
    assert world.is_ready(LEADER)


def test_a_kill_at_a_callback(world):
    writer = world.client("writer")
    writer.spawn(write(writer, transactions=5))
    begun = world.loop.event_count
    world.kill_at_event(LEADER, 300)
    world.run_for(0.01)
    while world.actor(LEADER) is not None:
        world.run_for(0.001)
    assert 300 <= world.loop.event_count - begun < 500
    assert world.counts["kill"] == 1


@pytest.mark.parametrize("is_known", [True, False])
def test_an_operator_restarts_what_a_failed_disk_took_offline_and_nothing_else(world, is_known):
    world.disk(LEADER).fail("datasync", ".log")
    if is_known:
        world.media.broken.add(LEADER)
    world.run(call(world, produce()))
    assert world.replicas()[LEADER].failure is not None
    if is_known:
        world.quiesce()
        assert world.is_ready(LEADER)
    else:
        with pytest.raises(SimulationError, match="not done within 60"):
            world.quiesce()


def test_a_disk_that_was_full_for_a_while_needs_no_operator(world):
    world.disk(LEADER).fail("datasync", ".log", errno.ENOSPC, times=3)
    waiting = call(world, produce())
    world.quiesce()
    world.run(waiting)
    assert world.is_ready(LEADER)


def test_healing_makes_room_on_the_disk_of_who_is_dead(world):
    world.disk(LEADER).capacity_bytes = 0
    world.kill(LEADER)
    world.quiesce()
    assert world.is_ready(LEADER)


def test_a_clock_that_jumps_is_one_machine_s_own(world):
    before_ms = world.driver.clock.now_ms()
    world.jump_clock(LEADER, -3_600_000)
    assert world.actor(LEADER).clock.now_ms() == before_ms - 3_600_000
    assert world.driver.clock.now_ms() == before_ms
    world.kill(LEADER)
    world.run_for(5)
    assert world.actor(LEADER).clock.now_ms() < before_ms


def test_healing_never_turns_a_clock_back(world):
    world.jump_clock(LEADER, 3_600_000)
    ahead_ms = world.actor(LEADER).clock.now_ms()
    world.heal()
    assert world.actor(LEADER).clock.now_ms() == world.driver.clock.now_ms() == ahead_ms


def test_clients_are_made_where_they_run(world):
    client = world.client("program")
    with pytest.raises(AssertionError, match="spawn"):
        client.producer()


class Grumpy:
    def __del__(self):
        raise ValueError("never seen")


def forgets_to_wait():
    asyncio.sleep(1)


def fails_in_a_finalizer():
    Grumpy()


def drops_an_error():
    asyncio.get_running_loop().create_future().set_exception(ValueError("never seen"))


@pytest.mark.parametrize(
    ("does", "told"),
    [
        (forgets_to_wait, "'sleep' was never awaited"),
        (fails_in_a_finalizer, "never seen"),
        (drops_an_error, "never seen"),
    ],
)
def test_what_python_only_prints_fails_the_run(world, does, told):
    world.client("program").soon(does)
    with pytest.raises(SimulationError, match=told):
        world.run_for(1)


def test_what_is_unwound_at_the_end_is_no_failure(recwarn):
    async def work(client):
        producer = client.producer()
        try:
            await asyncio.sleep(60)
        finally:
            await producer.close(timeout_ms=1_000)

    with World(seed=1) as world:
        client = world.client("program")
        client.spawn(work(client))
        world.run_for(1)
    assert world.failure is None
    assert [str(warning.message) for warning in recwarn] == []
