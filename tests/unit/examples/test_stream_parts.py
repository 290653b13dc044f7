"""What the streaming demo computes and decides, without Spark and without a cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal

import pyarrow as pa
import pytest
from deadlines import wait_for

from oncelog.examples.flights import stream_driver
from oncelog.examples.flights.data import FLIGHT_SCHEMA
from oncelog.examples.flights.stream_driver import Progress, StreamDriver
from oncelog.examples.flights.stream_replay import Replay
from oncelog.examples.flights.stream_windows import (
    Comparison,
    Window,
    arrivals,
    compare,
    expected_windows,
    parse_windows,
)
from oncelog.storage.exceptions import ConnectionFailedError, ProducerFencedError

ROWS = (
    # month, day, scheduled, origin, arrival delay
    (1, 2, 515, "JFK", -7),
    (1, 1, 2359, "JFK", 20),
    (1, 1, 600, "EWR", 30),
    (1, 1, 530, "JFK", None),
    (1, 1, 700, "JFK", 1),
)
FIRST = Window(origin="JFK", day="2013-01-01", flights=3, not_arrived=1, minutes_late=21)
EXPECTED = [
    FIRST,
    Window(origin="EWR", day="2013-01-01", flights=1, not_arrived=0, minutes_late=30),
    Window(origin="JFK", day="2013-01-02", flights=1, not_arrived=0, minutes_late=0),
]


def flights() -> pa.Table:
    rows = [
        {
            **dict.fromkeys(FLIGHT_SCHEMA.names),
            "year": 2013,
            "month": month,
            "day": day,
            "sched_dep_time": clock,
            "origin": origin,
            "arr_delay": delay,
            "carrier": "UA",
            "flight": 1,
            "dest": "IAH",
        }
        for month, day, clock, origin, delay in ROWS
    ]
    return pa.Table.from_pylist(rows, schema=FLIGHT_SCHEMA)


def test_flights_arrive_in_the_order_of_their_scheduled_departure():
    scheduled = arrivals(flights())["scheduled"].to_pylist()
    assert scheduled == sorted(scheduled)
    assert scheduled[0] == 1_357_018_200_000  # 1 January 2013, 05:30


def test_a_window_counts_who_did_not_arrive_and_only_minutes_late():
    found = expected_windows(arrivals(flights()))
    assert sorted(found, key=repr) == sorted(EXPECTED, key=repr)
    values = [json.dumps(dataclasses.asdict(window)).encode() for window in found]
    assert parse_windows(values) == found


@pytest.mark.parametrize(
    ("found", "result"),
    [
        (EXPECTED[::-1], Comparison(out=5, lost=0, duplicated=0, are_equal=True)),
        (EXPECTED[1:], Comparison(out=2, lost=3, duplicated=0, are_equal=False)),
        ([*EXPECTED, FIRST], Comparison(out=8, lost=0, duplicated=3, are_equal=False)),
        (
            [*EXPECTED[1:], dataclasses.replace(FIRST, minutes_late=22)],
            Comparison(out=5, lost=0, duplicated=0, are_equal=False),
        ),
        (
            [*EXPECTED, dataclasses.replace(FIRST, origin="closing")],
            Comparison(out=8, lost=0, duplicated=3, are_equal=False),
        ),
    ],
    ids=["all", "lost", "twice", "wrong", "unknown"],
)
def test_windows_are_compared_one_by_one(found, result):
    assert compare(found, EXPECTED) == result


class RecordingCluster:
    """Producer and consumer of one topic that keep what they are given."""

    def __init__(self, *, fails: bool = False) -> None:
        self.transactions: list[list[tuple[int, int]]] = []
        self.fails = fails

    @contextlib.contextmanager
    def producer(self, transactional_id):
        yield self

    @contextlib.contextmanager
    def consumer(self):
        yield self

    def init_transactions(self):
        if self.fails:
            raise ProducerFencedError("another replay")

    @contextlib.contextmanager
    def transaction(self):
        self.transactions.append([])
        yield

    def send_arrow(self, topic, table):
        values = map(json.loads, table["value"].to_pylist())
        sent = zip(values, table["partition"].to_pylist(), strict=True)
        self.transactions[-1] += [(value["scheduled"], place) for value, place in sent]

    def end_offsets(self, partitions):
        return dict.fromkeys(partitions, 10)


def ended(replay: Replay) -> int:
    wait_for(lambda: replay.end() is not None, "the end")
    return replay.end()


def test_each_day_is_a_transaction_that_all_partitions_have_a_part_of():
    cluster, rows = RecordingCluster(), arrivals(flights())
    with Replay(cluster, rows, topic="t", partitions=2, seconds=0.0) as replay:
        assert ended(replay) == 20
        assert replay.sent == len(ROWS)
    scheduled = rows["scheduled"].to_pylist()
    sent = [(time, row % 2) for row, time in enumerate(scheduled)]
    assert cluster.transactions == [sent[:4], sent[4:]]


def test_flights_that_cannot_be_sent_end_the_demo():
    replay = Replay(
        RecordingCluster(fails=True), arrivals(flights()), topic="t", partitions=2, seconds=0.0
    )
    with pytest.raises(ProducerFencedError, match="another replay"), replay:
        ended(replay)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Let the driver be this program."""

    def be(text: str) -> StreamDriver:
        (tmp_path / "program_of_the_stream.py").write_text(text, encoding="utf-8")
        monkeypatch.setattr(stream_driver, "PROGRAM", "program_of_the_stream")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return StreamDriver("an argument")

    return be


BATCH = {"batch": 1, "read": 9, "reached_ms": 5, "watermark_ms": 3}
IDLE = {"batch": 2, "read": 0, "reached_ms": 0, "watermark_ms": 3}


def test_a_driver_is_killed_started_again_and_keeps_what_it_has_reached(program):
    lives = f"""
import json, subprocess, sys
print("something that a library prints")
java = subprocess.Popen(["sleep", "600"])
print(json.dumps({{"java": java.pid}}), flush=True)
print(json.dumps({BATCH!r}), flush=True)
print(json.dumps({IDLE!r}), flush=True)
sys.stdin.read()
java.kill()
"""
    with program(lives) as driver:
        watch(driver, lambda: driver.progress.batch == 2)
        first = driver.kill_and_restart()
        assert driver.progress == Progress(batch=2, read=9, reached_ms=5, watermark_ms=3)
        assert not driver.is_working
        watch(driver, lambda: not is_alive(first))
        watch(driver, lambda: driver.is_working)
        assert driver.kill_and_restart() != first


def test_the_executor_that_a_driver_names_is_killed(program):
    names = """
import json, subprocess, sys

def tell_batch(number):
    print(json.dumps(dict(batch=number, read=0, reached_ms=0, watermark_ms=0)), flush=True)

tell_batch(0)
sys.stdin.readline()
executor = subprocess.Popen(["sleep", "600"])
print(json.dumps({"executor": executor.pid}), flush=True)
tell_batch(-executor.wait())
sys.stdin.read()
"""
    with program(names) as driver:
        watch(driver, lambda: driver.is_working)
        assert driver.kill_executor() > 0
        assert not driver.is_working
        watch(driver, lambda: driver.is_working)
        assert driver.progress.batch == signal.SIGKILL


def test_a_driver_that_ends_by_itself_is_started_again(program, tmp_path):
    fails_once = f"""
import json, pathlib, sys
mark = pathlib.Path({str(tmp_path / "mark")!r})
if not mark.exists():
    mark.touch()
    sys.exit(3)
print(json.dumps({BATCH!r}), flush=True)
sys.stdin.read()
"""
    with program(fails_once) as driver:
        watch(driver, lambda: driver.is_working)
        assert driver.progress.batch == 1


def test_a_driver_that_ends_by_itself_each_time_is_given_up(program):
    with (
        pytest.raises(ConnectionFailedError, match="ended by itself, with exit status 3"),
        program("raise SystemExit(3)") as driver,
    ):
        watch(driver, lambda: False)


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def watch(driver: StreamDriver, condition) -> None:
    def looked_again() -> bool:
        if not condition():
            driver.watch(0.1)
        return condition()

    wait_for(looked_again, "what the driver does", look_s=0.0)


def test_a_replay_that_is_stopped_sends_no_further_day():
    cluster = RecordingCluster()
    replay = Replay(cluster, arrivals(flights()), topic="t", partitions=2, seconds=3_600.0)
    with replay:
        pass
    assert len(cluster.transactions) <= 1
    assert replay.end() is None
