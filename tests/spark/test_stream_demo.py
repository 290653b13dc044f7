"""The streaming demo in a smaller size: two months of flights, a dead driver, a dead executor."""

from __future__ import annotations

import pytest
from fresh_topics import delete_topics
from rich.console import Console

from oncelog.examples.flights.data import read_flights, unpack_flights
from oncelog.examples.flights.faults import Fault
from oncelog.examples.flights.stream_demo import SINK, SOURCE, judge, stream
from oncelog.examples.flights.stream_windows import DAY_MS, arrivals

pytestmark = [pytest.mark.ray, pytest.mark.spark]

DAYS = 60
"""More than a flight may be late: windows are complete, and leave, before the last flights come."""


def test_windows_come_once_while_driver_and_executor_of_their_stream_are_killed(
    cluster, tmp_path, seed
):
    delete_topics(cluster, (SOURCE, SINK))
    flights = arrivals(read_flights(unpack_flights(tmp_path)))
    days = [scheduled // DAY_MS for scheduled in flights["scheduled"].to_pylist()]
    flights = flights.slice(0, days.index(days[0] + DAYS))
    faults = [Fault(0.5, "driver", 0), Fault(0.7, "executor", 0)]
    console = Console(width=110)
    stream(
        console,
        cluster,
        tmp_path / "checkpoint",
        flights,
        faults,
        seed=seed,
        seconds=5.0,
        offsets_per_batch=9_000,
    )
    outcome = judge(console, cluster, flights, faults=len(faults))
    assert outcome.is_exactly_once, outcome
    assert outcome.flights_in == 52_913
    assert outcome.line.startswith("EXACTLY ONCE: 52,913 in, 52,913 out, 0 lost, 0 duplicated, 2 ")
