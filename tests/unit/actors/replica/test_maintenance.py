"""The periodic work of a replica, on an event loop whose time jumps."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from actor_environment import InlineBackground
from replicas import FLIGHTS, replica_of
from virtual_time import run_virtually

from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.replica.maintenance import Maintenance
from oncelog.actors.replica.replica import Replica
from oncelog.storage.errors import ErrorCode, InvariantViolation
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.records.batch import parse_header
from oncelog.storage.records.codec import encode_records

HOUR_S = 3_600.0
RETENTION_MS = 3_000_000


class House:
    """One replica with its maintenance, and what they did."""

    def __init__(self, directory: Path, loop: Any) -> None:
        self.loop = loop
        self.failures: list[BaseException] = []
        self.calls: list[tuple[str, float]] = []
        self.compaction_s = 0
        self.given_up: list[float] = []
        self.refusal: Exception | None = None
        self.settings = (("segment_bytes", "4096"), ("retention_ms", str(RETENTION_MS)))
        self.replica: Replica = replica_of(
            FLIGHTS,
            directory,
            self.epoch,
            environment={"clock": loop, "background": InlineBackground()},
        )
        self.maintenance = Maintenance(
            replica=self.replica,
            clock=loop,
            on_failure=self.failures.append,
            refresh=lambda: self.refresh(),
            compact=self.compact,
        )

    async def epoch(self, last_epoch: int) -> BecomeLeaderReply:
        return BecomeLeaderReply(
            leader_epoch=last_epoch + 1, topic_id="a" * 32, settings=self.settings
        )

    async def refresh(self) -> None:
        self._called("refresh")
        self.replica.configure(self.settings, 1)

    async def compact(self) -> None:
        self._called("compact")
        ends_s = self.loop.time() + self.compaction_s
        while self.loop.time() < ends_s:
            await asyncio.sleep(1)
            if not self.maintenance.may_compact:
                self.given_up.append(self.loop.time())
                return

    def configure(self, **settings: str) -> None:
        self.settings = tuple((dict(self.settings) | settings).items())
        self.replica.configure(self.settings, 1)

    def _called(self, name: str) -> None:
        self.calls.append((name, self.loop.time()))
        if self.refusal is not None:
            raise self.refusal

    def times_of(self, name: str) -> list[float]:
        return [when for called, when in self.calls if called == name]

    def write(self, value: bytes, *, pid: int = -1, seq: int = -1) -> None:
        now_ms = self.loop.now_ms()
        batch = encode_records(
            [(b"k", value, now_ms, ())],
            producer_id=pid,
            producer_epoch=0 if pid >= 0 else -1,
            base_sequence=seq,
        )
        outcome = self.replica.write(batch, parse_header(batch), None, now_ms=now_ms)
        assert outcome.error is ErrorCode.NONE


@pytest.fixture
def play(tmp_path: Path) -> Any:
    """Run a scenario with a replica that leads and is maintained."""

    def run(scenario: Callable[[House], Any]) -> House:
        async def body() -> House:
            house = House(tmp_path, asyncio.get_running_loop())
            await house.replica.start()
            house.maintenance.start()
            await scenario(house)
            await house.maintenance.stop()
            await house.replica.stop()
            return house

        return run_virtually(asyncio.wait_for(body(), 1_000 * HOUR_S))

    return run


def test_settings_and_retention_are_looked_at_every_five_minutes(play: Any) -> None:
    async def scenario(house: House) -> None:
        await asyncio.sleep(1_000)

    assert play(scenario).times_of("refresh") == [300, 600, 900]


def test_old_segments_go_by_themselves(play: Any) -> None:
    async def scenario(house: House) -> None:
        house.write(b"x" * 3_000)
        house.write(b"x" * 3_000)
        await asyncio.sleep(RETENTION_MS / 1_000 - 1)
        assert house.replica.machine.log_start_offset == 0
        await asyncio.sleep(302)
        assert house.replica.machine.log_start_offset == 2
        assert house.replica.log.segment_count == 1

    play(scenario)


def test_settings_that_no_call_brought_are_followed_after_a_while(play: Any) -> None:
    async def scenario(house: House) -> None:
        house.settings = (("retention_ms", "1000"),)
        house.write(b"x")
        await asyncio.sleep(301)
        assert house.replica.topic.retention_ms == 1_000
        assert house.replica.machine.log_start_offset == 1

    play(scenario)


def test_a_raised_log_start_brings_retention_forward(play: Any) -> None:
    async def scenario(house: House) -> None:
        await asyncio.sleep(10)
        house.maintenance.retain_soon()
        await asyncio.sleep(1)

    assert play(scenario).times_of("refresh") == [10]


def test_silent_producers_are_forgotten_after_a_day(play: Any) -> None:
    async def scenario(house: House) -> None:
        house.write(b"x", pid=7, seq=0)
        await asyncio.sleep(601)
        house.loop.ahead_ms = 86_400_000 - 1_200_000
        await asyncio.sleep(600)
        assert house.replica.machine.producer_count == 1
        await asyncio.sleep(600)
        assert house.replica.machine.producer_count == 0

    play(scenario)


def test_the_checkpoint_becomes_durable_within_a_second_and_rests_with_the_log(play: Any) -> None:
    async def scenario(house: House) -> None:
        await asyncio.sleep(10)
        noted: list[float] = []
        note = house.replica.log.record_checkpoint

        def counting() -> None:
            noted.append(house.loop.time())
            note()

        house.replica.log.record_checkpoint = counting
        house.write(b"x", pid=7, seq=0)
        await asyncio.sleep(0.5)
        assert house.replica.log.has_old_checkpoint
        await asyncio.sleep(3)
        assert not house.replica.log.has_old_checkpoint
        house.write(b"x", pid=7, seq=1)
        await asyncio.sleep(20)
        assert noted == [11, 14]

    play(scenario)


def test_only_a_compacted_topic_is_compacted(play: Any) -> None:
    async def scenario(house: House) -> None:
        await asyncio.sleep(100)
        assert house.times_of("compact") == []
        house.settings = (("cleanup_policy", "compact"),)
        house.replica.configure(house.settings, 1)
        await asyncio.sleep(40)

    assert play(scenario).times_of("compact") == [105, 120, 135]


def test_a_long_compaction_holds_up_nothing_else_and_is_not_begun_twice(play: Any) -> None:
    async def scenario(house: House) -> None:
        house.configure(cleanup_policy="compact")
        house.write(b"x", pid=7, seq=0)
        house.compaction_s = 2_000
        await asyncio.sleep(1_000)
        assert house.given_up == []

    house = play(scenario)
    assert house.times_of("compact") == [15]
    assert house.times_of("refresh") == [300, 600, 900]


def test_compaction_gives_way_to_the_removal_of_segments_only(play: Any) -> None:
    async def scenario(house: House) -> None:
        house.configure(cleanup_policy="compact,delete", retention_ms="400000")
        house.compaction_s = 2_000
        house.write(b"x" * 3_000)
        house.write(b"x" * 3_000)
        await asyncio.sleep(599)
        assert house.given_up == []
        await asyncio.sleep(30)
        assert house.replica.log.segment_count == 1
        assert house.times_of("compact") == [15, 600]

    house = play(scenario)
    assert house.given_up[0] == 600


def test_a_failed_compaction_is_tried_again_and_a_bug_in_it_is_handed_on(play: Any) -> None:
    async def scenario(house: House) -> None:
        house.configure(cleanup_policy="compact")
        house.refusal = OSError(errno.EIO, "no")
        await asyncio.sleep(40)
        assert house.times_of("compact") == [15, 30]
        assert house.failures == []
        house.refusal = InvariantViolation("I-01: no")
        await asyncio.sleep(10)

    (failure,) = play(scenario).failures
    assert isinstance(failure, InvariantViolation)


@pytest.mark.parametrize(
    "refusal",
    [OSError(errno.EIO, "no"), InvalidSettingError("colour=red")],
    ids=["disk", "setting"],
)
def test_work_that_fails_is_tried_again_when_it_is_due(play: Any, refusal: Exception) -> None:
    async def scenario(house: House) -> None:
        house.refusal = refusal
        await asyncio.sleep(700)

    house = play(scenario)
    assert house.times_of("refresh") == [300, 600]
    assert house.failures == []


def test_a_replica_that_does_not_lead_is_left_alone(play: Any) -> None:
    async def scenario(house: House) -> None:
        house.replica.failure = "the disk is gone"
        await asyncio.sleep(700)
        house.replica.failure = None

    assert play(scenario).calls == []


def test_a_broken_invariant_is_handed_on(play: Any) -> None:
    async def scenario(house: House) -> None:
        house.refusal = InvariantViolation("I-01: no")
        await asyncio.sleep(400)

    (failure,) = play(scenario).failures
    assert isinstance(failure, InvariantViolation)


def test_work_under_way_is_finished_before_any_of_the_calls_that_end_it_returns(play: Any) -> None:
    finished = []

    async def scenario(house: House) -> None:
        async def slow() -> None:
            await asyncio.sleep(5)
            finished.append(house.loop.time())

        house.refresh = slow  # type: ignore[method-assign]
        house.maintenance.retain_soon()
        await asyncio.sleep(1)
        first = asyncio.ensure_future(house.maintenance.stop())
        await asyncio.sleep(1)
        await house.maintenance.stop()
        assert finished == [5]
        await first

    play(scenario)
