"""Clients of Kafka in simulated worlds: their transactions come through gateways.

Random worlds have such clients too; here are those in which much comes late, judged by the checkers
of all clients. What the protections are for is in ``sim_kafka_mutants``.
"""

from __future__ import annotations

from typing import Any

import pytest
from sim_gateways import Gateways
from sim_kafka_clients import KINDS, KafkaProducer, Kind
from sim_kafka_mutants import KAFKA, LATE, STALLED
from sim_nemesis import FaultPlan
from sim_stage import Player, Stage, WorkloadPlan
from sim_swarm import drawn_scenario, founded, run_scenario
from sim_world import World

VERSION_1 = ("librdkafka", "librdkafka-2", "java-3")
ALL_KINDS = tuple(KINDS)

SMALL: dict[str, Any] = KAFKA | {
    "brokers": 1,
    "replication_factor": 1,
    "replicas_per_actor": 1,
    "head_node": 0,
    "kafka_writers": 1,
    "kafka_copiers": 1,
    "plain_writers": 1,
    "duration_s": 3.0,
    "near_reads": 0.0,
}

WORLDS: dict[str, dict[str, Any]] = {
    "version 2": SMALL | LATE | {"kill": 0.3, "pause": 0.3},
    "version 1": SMALL | LATE | {"kill": 0.3, "pause": 0.3, "kafka_kinds": VERSION_1},
    "version 1, coordinators move": SMALL | STALLED | {"kafka_moves": 0.5, "kafka_writers": 2},
    "coordinators on hosts move, records have keys": SMALL
    | {
        "replicas_per_actor": 3,
        "topics": {"t0": 1, "compact-keys": 1},
        "kafka_kinds": ALL_KINDS,
        "kafka_moves": 0.7,
    },
    "version 1, timeouts": SMALL
    | {
        "kafka_kinds": VERSION_1,
        "transaction_timeout_ms": 500,
        "topics": {"t0": 6},
        "kafka_slow": 0.3,
    },
    "epochs are used up": SMALL
    | LATE
    | {"kafka_kinds": ALL_KINDS, "kafka_first_epoch": 32_763, "kafka_sharers": 1},
    "ids of all": SMALL | LATE | {"kafka_kinds": ALL_KINDS, "kafka_sharers": 1, "writers": 1},
    "three brokers": SMALL
    | LATE
    | {"kafka_kinds": ALL_KINDS, "brokers": 3, "replication_factor": 3, "kill_node": 0.2},
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", WORLDS)
def test_transactions_of_clients_of_kafka_are_whole_and_once(name: str, seed: int):
    scenario = drawn_scenario(seed).changed(WORLDS[name])
    founded(scenario)
    result = run_scenario(scenario)
    assert result.violations == [], result.story
    assert result.counts["commits"]


def test_a_client_that_cannot_take_another_epoch_is_refused():
    kind = Kind(software=("aiokafka", "0.12"), version=1, init_version=1)
    plan = WorkloadPlan(topics={"t0": 1}, duration_s=1.0, kafka_writers=1)
    with World(seed=1, topics=plan.topics) as world:
        stage = Stage(world, plan)
        stage.gateways = Gateways(world, plan, FaultPlan())
        world.driver.spawn(stage.gateways.keep())
        world.run(world.until(stage.gateways.are_there))
        player = Player(stage, world.client("client"), world.random)

        async def story() -> list[bool]:
            kinds = (kind, KINDS["librdkafka"])
            return [await KafkaProducer(player, "id", one).init() for one in kinds]

        assert world.run(player.client.spawn(story())) == [False, True]
