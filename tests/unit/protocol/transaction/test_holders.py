"""Who holds an id: every state of a holder with every event."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from oncelog.actors.protocol.messages.transaction import (
    DriverProcess,
    Holder,
    InitProducerIdRequest,
    ProducerHeartbeatRequest,
)
from oncelog.actors.protocol.transaction.holders import SPARE_MAX
from oncelog.actors.protocol.transaction.transaction_state import EpochCause, TransactionState
from oncelog.storage.errors import ErrorCode

TIMEOUT_MS = 30_000
PROCESS = DriverProcess(machine="here", process_id=7, start_ticks=8)
ME = Holder(id="me", timeout_ms=TIMEOUT_MS, process=PROCESS)
OTHER = Holder(id="other", timeout_ms=TIMEOUT_MS)
START_MS = 1_000_000

TABLE = """
event               | none | heard  | silent | gone   | ended  | restarted
heartbeat           | NONE | NONE   | NONE   | NONE   | NONE   | NONE
heartbeat, fenced   | FENCED | FENCED | FENCED | FENCED | FENCED | FENCED
farewell            | NONE | NONE   | NONE   | NONE   | NONE   | NONE
init, replace       | NONE | NONE   | NONE   | NONE   | NONE   | NONE
init, refuse        | NONE | IN_USE | NONE   | NONE   | NONE   | IN_USE
init, refuse, same  | NONE | NONE   | NONE   | NONE   | NONE   | NONE
"""
LONG = {"FENCED": "PRODUCER_FENCED", "IN_USE": "TRANSACTIONAL_ID_IN_USE"}


def cells() -> list[tuple[str, str, str]]:
    first, *lines = (
        [cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines()
    )
    return [
        (event, state, LONG.get(cell, cell))
        for event, *found in lines
        for state, cell in zip(first[1:], found, strict=True)
    ]


class World:
    """A shard, and monotonic time."""

    def __init__(self, shard: Any, state: str = "heard") -> None:
        self.shard, self.now_ms = shard, START_MS
        self.shard.machine.holders.started(self.now_ms - 10 * TIMEOUT_MS)
        if state == "none":
            shard.install(producer_epoch=5)
            return
        shard.install(producer_epoch=5, holder=ME)
        self.holders.heard("loader", self.now_ms)
        if state == "silent":
            self.now_ms += TIMEOUT_MS
        elif state == "gone":
            assert self.beat(is_leaving=True) == "NONE"
        elif state == "ended":
            self.holders.ended("loader", ME)
        elif state == "restarted":
            self.now_ms += 10 * TIMEOUT_MS
            self.restart()

    @property
    def holders(self) -> Any:
        return self.shard.machine.holders

    def restart(self) -> None:
        self.shard.fail_over()
        self.holders.started(self.now_ms)

    def beat(self, epoch: int = 5, *, is_leaving: bool = False) -> str:
        request = ProducerHeartbeatRequest(
            transactional_id="loader", producer_id=7, producer_epoch=epoch, is_leaving=is_leaving
        )
        refusal = self.holders.step(request, self.now_ms)
        return "NONE" if refusal is None else str(refusal[0].name)

    def init(self, holder: Holder | None = OTHER, *, refuse: bool = True) -> str:
        request = InitProducerIdRequest(
            transactional_id="loader", holder=holder, refuse_if_alive=refuse
        )
        machine, now_ms = self.shard.machine, self.shard.now_ms
        reply = self.shard.commit(machine.decide_init_producer_id(request, now_ms, self.now_ms))
        return str(reply.error.name)


@pytest.mark.parametrize(("event", "state", "expected"), cells())
def test_every_state_with_every_event(shard: Any, event: str, state: str, expected: str) -> None:
    world = World(shard, state)
    before = shard.known
    if event.startswith("heartbeat"):
        assert world.beat(3 if "fenced" in event else 5) == expected
    elif event == "farewell":
        assert world.beat(is_leaving=True) == expected
        assert not world.holders.is_alive(shard.known, world.now_ms)
    else:
        holder = ME if "same" in event else OTHER
        assert world.init(holder, refuse="refuse" in event) == expected
        assert shard.known.producer_epoch == (5 if expected == "TRANSACTIONAL_ID_IN_USE" else 6)
    if expected not in ("NONE",):
        assert shard.known == before
    assert shard.reload().ids.metadata("loader") == shard.known


def test_a_heartbeat_prolongs_the_life_by_its_timeout(shard: Any) -> None:
    world = World(shard)
    for _ in range(5):
        world.now_ms += TIMEOUT_MS - 1
        assert world.init() == "TRANSACTIONAL_ID_IN_USE"
        assert world.beat() == "NONE"
    world.now_ms += TIMEOUT_MS
    assert world.init() == "NONE"
    assert world.beat(5) == "PRODUCER_FENCED"
    assert shard.known.holder == OTHER


def test_a_holder_that_is_heard_again_lives_whatever_was_said_of_its_process(shard: Any) -> None:
    world = World(shard, "ended")
    assert world.beat() == "NONE"
    assert world.init() == "TRANSACTIONAL_ID_IN_USE"


def test_the_end_of_an_earlier_holder_says_nothing_of_the_present_one(shard: Any) -> None:
    world = World(shard, "ended")
    assert world.init() == "NONE"
    world.holders.heard("loader", world.now_ms)
    world.holders.ended("loader", ME)
    world.holders.ended("unknown", ME)
    assert world.holders.is_alive(shard.known, world.now_ms)


@pytest.mark.parametrize("cause", EpochCause)
def test_who_timed_out_still_holds_its_id_and_who_was_replaced_does_not(
    shard: Any, cause: EpochCause
) -> None:
    shard.install(state=TransactionState.COMPLETE_ABORT, epoch_cause=cause, holder=ME)
    world = World.__new__(World)
    world.shard, world.now_ms = shard, START_MS
    is_its_own = cause in (EpochCause.OWNER, EpochCause.TIMEOUT, EpochCause.OPERATOR)
    assert (world.beat(4) == "NONE") is is_its_own


def test_a_heartbeat_under_the_next_identity_of_a_decided_transaction_counts(shard: Any) -> None:
    shard.install(state=TransactionState.PREPARE_COMMIT, producer_epoch=32_767, next_producer_id=9)
    request = ProducerHeartbeatRequest(transactional_id="loader", producer_id=9, producer_epoch=0)
    assert shard.machine.holders.step(request, START_MS) is None


def test_an_unknown_id_has_no_holder(shard: Any) -> None:
    request = ProducerHeartbeatRequest(transactional_id="x", producer_id=7, producer_epoch=0)
    refusal = shard.machine.holders.step(request, START_MS)
    assert refusal is not None
    assert refusal[0] is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_an_id_that_is_heard_does_not_expire(shard: Any) -> None:
    shard.install(state=TransactionState.COMPLETE_COMMIT)
    week_ms = 604_800_000
    shard.now_ms += week_ms
    upkeep, holders = shard.machine.upkeep, shard.machine.holders
    assert upkeep.idle_ids(shard.now_ms, START_MS + week_ms) == ("loader",)
    holders.heard("loader", START_MS + 5)
    assert upkeep.idle_ids(shard.now_ms, START_MS + week_ms) == ()
    assert upkeep.idle_ids(shard.now_ms, START_MS + week_ms + 6) == ("loader",)


def test_forgotten_ids_are_not_remembered_beyond_a_bound(shard: Any) -> None:
    shard.install()
    holders = shard.machine.holders
    for number in range(10 * SPARE_MAX):
        holders.heard(f"gone {number}", START_MS)
        assert len(holders) <= 2 + SPARE_MAX
    holders.heard("loader", START_MS)
    assert holders.was_heard_since("loader", START_MS)


@pytest.mark.parametrize(
    "holder",
    [
        Holder(id="", timeout_ms=1),
        Holder(id="x" * 300, timeout_ms=1),
        Holder(id="x", timeout_ms=0),
        Holder(id="x", timeout_ms=3_600_001),
        structs.replace(ME, process=structs.replace(PROCESS, machine="x" * 10_000)),
        structs.replace(ME, process=structs.replace(PROCESS, process_id=-1)),
    ],
)
def test_an_impossible_holder_is_refused(shard: Any, holder: Holder) -> None:
    shard.install()
    world = World.__new__(World)
    world.shard, world.now_ms = shard, START_MS
    assert world.init(holder) == "INVALID_REQUEST"
