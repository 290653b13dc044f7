"""Where new replicas go."""

from __future__ import annotations

from collections import Counter

import pytest
from cluster_worlds import ClusterWorld
from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.protocol.cluster.placement import (
    check_replication,
    place_partitions,
    usable_brokers,
)
from oncelog.storage.errors import ErrorCode


def cluster(count: int, racks: str = "") -> ClusterWorld:
    world = ClusterWorld()
    world.register(*range(1, count + 1), racks=racks)
    return world


@given(brokers=st.integers(1, 7), factor=st.integers(1, 4), partitions=st.integers(1, 30))
def test_leaders_and_replicas_are_spread_evenly(brokers: int, factor: int, partitions: int) -> None:
    factor = min(factor, brokers)
    states = cluster(brokers).machine.broker_states
    placed = place_partitions(partitions, factor, states)
    assert [len(set(replicas)) for replicas in placed] == [factor] * partitions
    leaders = Counter(dict.fromkeys(states, 0))
    leaders.update(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.values()) <= 1
    held = Counter(dict.fromkeys(states, 0))
    held.update(broker_id for replicas in placed for broker_id in replicas)
    assert max(held.values()) - min(held.values()) <= 2
    assert placed == place_partitions(partitions, factor, states)


@given(racks=st.text("abc", min_size=3, max_size=7), factor=st.integers(1, 3))
def test_replicas_are_on_different_racks_while_there_are_any(racks: str, factor: int) -> None:
    placed = place_partitions(12, factor, cluster(len(racks), racks).machine.broker_states)
    for replicas in placed:
        used = {racks[broker_id - 1] for broker_id in replicas}
        assert len(used) == min(factor, len(set(racks)))


def test_what_is_there_already_is_counted() -> None:
    world = cluster(3)
    world.create((1, 2), (1, 2))
    placed = place_partitions(2, 2, world.machine.broker_states, world.machine.topics.values())
    assert placed == ((3, 2), (2, 3))


def test_fenced_and_draining_brokers_get_nothing() -> None:
    world = cluster(4)
    world.change(1, fenced=True)
    world.change(2, draining=True)
    assert list(usable_brokers(world.machine.broker_states)) == [3, 4]
    placed = place_partitions(4, 2, world.machine.broker_states)
    assert {broker_id for replicas in placed for broker_id in replicas} == {3, 4}


@pytest.mark.parametrize(
    ("factor", "minimum", "error", "text"),
    [
        (1, 1, ErrorCode.NONE, ""),
        (3, 3, ErrorCode.NONE, ""),
        (0, 1, ErrorCode.INVALID_REPLICATION_FACTOR, "replication_factor=0: give 1 to 3"),
        (4, 1, ErrorCode.INVALID_REPLICATION_FACTOR, "replication_factor=4: give 1 to 3"),
        (2, 3, ErrorCode.INVALID_CONFIG, "min_insync_replicas=3: give 1 to 2"),
        (2, 0, ErrorCode.INVALID_CONFIG, "min_insync_replicas=0: give 1 to 2"),
    ],
)
def test_a_refusal_names_the_value_and_what_is_allowed(
    factor: int, minimum: int, error: ErrorCode, text: str
) -> None:
    world = cluster(4)
    world.change(4, fenced=True)
    code, detail = check_replication(factor, minimum, world.machine.broker_states)
    assert code is error
    assert detail.startswith(text)


def test_without_a_usable_broker_no_number_is_allowed() -> None:
    world = cluster(1)
    world.change(1, fenced=True)
    code, detail = check_replication(1, 1, world.machine.broker_states)
    assert code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "none can be given" in detail
