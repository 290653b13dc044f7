"""One seed, one history: whatever the hash seed of the interpreter, and whatever ran before."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sim_network import NetworkFaults
from sim_swarm import drawn_scenario, run_scenario
from sim_world import World

from oncelog.storage.exceptions import OncelogError

FAULTS = NetworkFaults(
    delay=0.02, delay_ms=(1, 10_000), duplicate=0.02, drop_request=0.01, drop_reply=0.01
)


async def write_for_ever(client):
    while True:
        producer = client.producer(transactional_id=client.name, max_block_ms=10_000)
        try:
            await producer.init_transactions()
            while True:
                async with producer.transaction():
                    for _ in range(client.random.randint(1, 4)):
                        topic = client.random.choice(["delays", "flights"])
                        await producer.send(topic, value=client.random.randbytes(8))
        except OncelogError as error:
            client.world.note("gave up", repr(error))


async def copy_for_ever(client):
    consumer = client.consumer(group_id="copiers", auto_offset_reset="earliest")
    await consumer.subscribe(["flights", "delays"])
    while True:
        try:
            await consumer.poll(200)
            await consumer.commit()
        except OncelogError as error:
            client.world.note("gave up", repr(error))


async def break_things(world):
    breakages = (
        world.kill,
        world.replace,
        world.pause,
        world.resume,
        lambda name: world.power_loss([name]),
        lambda name: world.crash_at_disk_operation(name, world.random.randint(1, 20)),
    )
    while True:
        await asyncio.sleep(world.random.random())
        world.random.choice(breakages)(world.random.choice(world.actor_names()))


def trace_of(seed, *, seconds=2):
    with World(seed, topics={"flights": 2, "delays": 1}) as world:
        world.network.faults = FAULTS
        for number in range(2):
            for kind, work in (("writer", write_for_ever), ("copier", copy_for_ever)):
                client = world.client(f"{kind}-{number}")
                client.spawn(work(client))
        world.driver.spawn(break_things(world))
        world.run_for(seconds)
        assert world.counts
        return f"{world.loop.event_count} {world.trace_hash()}"


def test_the_same_seed_gives_the_same_history_and_another_one_another(seed):
    first = trace_of(seed)
    assert trace_of(seed) == first
    assert trace_of(seed + 1) != first


@pytest.mark.slow
@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_hash_seed_of_the_interpreter_changes_nothing(seed, hash_seed):
    program = "import sys, test_determinism as t; print(t.trace_of(int(sys.argv[1]), seconds=10))"
    folder = Path(__file__).parent
    paths = [str(folder), str(folder.parent / "helpers"), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", program, str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert done.stdout.strip() == trace_of(seed, seconds=10)


def test_threads_of_synchronous_programs_repeat_as_well():
    scenario = drawn_scenario(24).changed({"processors": 2, "jobs": 2, "duration_s": 4.0})
    first, second = run_scenario(scenario), run_scenario(scenario)
    assert first.counts["commits of processors"] > 0
    assert first.counts["commits of drivers"] > 0
    assert first.trace_hash == second.trace_hash
    assert not first.violations
