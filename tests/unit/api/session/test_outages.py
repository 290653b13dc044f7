"""What a program's calls wait for, told when it begins to last, and when it is over."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from oncelog.actors.process.metrics import CLIENT_OUTAGES, Metric
from oncelog.actors.protocol.messages.group import OffsetFetchRequest
from oncelog.actors.protocol.messages.partition import DescribeReplicaRequest
from oncelog.api.session.routing import OUTAGE_S, Outage, Outages
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

T0 = TopicPartition("t", 0)
AWAY = ErrorCode.NETWORK_EXCEPTION


class Told:
    """Outages, and what they tell; ``now_s`` is set by the test."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.told: list[Outage] = []
        self.counted: list[str] = []
        self.outages = Outages(lambda: self.now_s, self)
        self.outages.listeners.append(self.told.append)

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        raise AssertionError

    def add(self, metric: Metric, amount: float, tags: Mapping[str, str]) -> None:
        assert (metric, amount) == (CLIENT_OUTAGES, 1)
        self.counted.append(tags["what"])

    def note(self, error: ErrorCode, what: TopicPartition | str = T0) -> None:
        self.outages.record(what, "partitions:1@2", error, began_s=self.now_s)


def test_an_outage_is_told_once_when_it_lasts_and_once_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "oncelog.client")
    world = Told()
    world.note(AWAY)
    world.now_s += OUTAGE_S - 0.1
    world.note(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert world.told == []
    for _ in range(3):
        world.now_s += 1
        world.note(AWAY)
    assert world.outages.count == 1
    world.note(ErrorCode.NONE)
    world.note(ErrorCode.NONE)
    assert [(one.what, one.is_over) for one in world.told] == [
        ("partition t-0", False),
        ("partition t-0", True),
    ]
    assert world.outages.count == 0
    assert world.counted == ["partition"]
    begun, ended = caplog.messages
    assert "partition t-0 has not replied for 6 s: NETWORK_EXCEPTION of partitions:1@2" in begun
    assert ended == "partition t-0 replies again, after 8 s — nothing to do"


def test_what_answers_in_time_is_not_told() -> None:
    world = Told()
    for _ in range(10):
        world.note(AWAY)
        world.now_s += OUTAGE_S - 0.1
        world.note(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert world.told == []


def test_one_call_that_took_long_is_enough() -> None:
    world = Told()
    world.outages.record(T0, "", AWAY, began_s=world.now_s - 30)
    assert [one.lasted_s for one in world.told] == [30]


def test_a_listener_that_fails_is_logged_and_others_are_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(_: Outage) -> None:
        raise ValueError("mine")

    world = Told()
    world.outages.listeners.insert(0, fails)
    world.outages.record(T0, "", AWAY, began_s=0)
    assert len(world.told) == 1
    assert "an outage listener raised" in caplog.text


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda r: r.call_leader(T0, DescribeReplicaRequest(), timeout_ms=1), "partition t-0"),
        (
            lambda r: r.call_group_coordinator("g", OffsetFetchRequest(group_id="g"), timeout_ms=1),
            "the coordinator of group 'g'",
        ),
        (
            lambda r: r.call_transaction_coordinator(
                "x",
                OffsetFetchRequest(group_id="g"),
                timeout_ms=1,
            ),
            "the coordinator of transactional id 'x'",
        ),
    ],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_every_call_is_noted(
    fake_cluster: Any, run: Any, call: Any, what: str, is_known: bool
) -> None:
    """Also one that found nobody to call; then the controller is away too."""
    fake_cluster.create("t")
    router = fake_cluster.router()
    now_s = [0.0]
    router.outages = Outages(lambda: now_s[0])
    told: list[Outage] = []
    router.outages.listeners.append(told.append)

    async def scenario() -> None:
        if is_known:
            await router.metadata(("t", "__consumer_offsets", "__transaction_state"))
        fake_cluster.call = answer_nothing
        for _ in range(2):
            await call(router)
            now_s[0] += OUTAGE_S

    async def answer_nothing(_: str, request: Any, *, timeout_ms: int) -> Any:
        return request.failed(AWAY)

    run(scenario())
    expected = {what} if is_known else {what, "the controller"}
    assert {one.what for one in told} - {"the controller"} == {what}
    assert expected <= {one.what for one in told}
