"""Transactions over their time, and ids that nobody uses any more."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.actors.protocol.transaction.transaction_state import TransactionState
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

FLIGHTS = [TopicPartition("flights", number) for number in range(6)]
S = TransactionState


def begin(shard: Any) -> tuple[int, int]:
    """Init and enrol; returns the producer id and epoch of the open transaction."""
    reply = shard.init()
    assert shard.add(reply.producer_id, reply.producer_epoch).error is ErrorCode.NONE
    return reply.producer_id, reply.producer_epoch


# --- timeouts and expiry ----------------------------------------------------------------------


def test_a_transaction_over_its_time_is_aborted_with_a_higher_epoch(shard: Any) -> None:
    producer_id, epoch = begin(shard)
    shard.now_ms += 60_000
    assert shard.machine.upkeep.expired_transactions(shard.now_ms) == ()
    shard.now_ms += 1
    assert shard.machine.upkeep.expired_transactions(shard.now_ms) == ("loader",)
    shard.commit(shard.machine.upkeep.decide_timeout("loader", shard.now_ms))
    assert shard.known.state is S.PREPARE_ABORT
    assert shard.end(producer_id, epoch).error is ErrorCode.TRANSACTION_TIMED_OUT
    shard.complete()
    assert shard.end(producer_id, epoch).error is ErrorCode.TRANSACTION_TIMED_OUT
    reply = shard.end(producer_id, epoch, committed=False)
    assert (reply.error, reply.producer_epoch) == (ErrorCode.NONE, epoch + 1)
    assert shard.add(producer_id, epoch + 1).error is ErrorCode.NONE


def test_the_timeout_goes_on_from_the_logged_start_after_failover(shard: Any) -> None:
    begin(shard)
    shard.fail_over()
    assert shard.machine.upkeep.expired_transactions(shard.now_ms + 60_001) == ("loader",)


def test_a_commit_on_its_way_wins_against_the_timeout(shard: Any) -> None:
    producer_id, epoch = begin(shard)
    commit = shard.end_decision(producer_id, epoch)
    late_ms = shard.now_ms + 60_001
    assert shard.machine.upkeep.expired_transactions(late_ms) == ()
    assert not shard.machine.upkeep.decide_timeout("loader", late_ms).records
    shard.commit(commit)
    assert not shard.machine.upkeep.decide_timeout("loader", late_ms).records
    assert shard.known.state is S.PREPARE_COMMIT


def test_the_timeout_of_a_last_epoch_needs_a_producer_id(shard: Any) -> None:
    shard.install(state=S.ONGOING, producer_epoch=32_766, partitions=frozenset(FLIGHTS[:1]))
    while shard.producer_ids.remaining:
        shard.producer_ids.take()
    decision = shard.machine.upkeep.decide_timeout("loader", shard.now_ms + 60_001)
    assert decision.reply.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not decision.records


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_an_id_idle_for_a_week_is_forgotten(shard: Any, state: TransactionState) -> None:
    shard.install(state=state)
    week_later_ms = shard.now_ms + 604_800_000
    assert shard.machine.upkeep.idle_ids(week_later_ms - 1) == ()
    assert shard.machine.upkeep.idle_ids(week_later_ms) == ("loader",)
    shard.commit(shard.machine.upkeep.decide_expire("loader", week_later_ms))
    assert shard.machine.ids.metadata("loader") is None
    assert shard.reload().ids.metadata("loader") is None
    assert shard.add(7, 5).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert shard.init().producer_id == 1_000


@pytest.mark.parametrize("state", [S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_an_unfinished_id_is_never_forgotten(shard: Any, state: TransactionState) -> None:
    shard.install(state=state)
    late_ms = shard.now_ms + 10 * 604_800_000
    assert shard.machine.upkeep.idle_ids(late_ms) == ()
    assert not shard.machine.upkeep.decide_expire("loader", late_ms).records


def test_an_id_with_a_token_is_never_forgotten(shard: Any) -> None:
    shard.install(state=S.COMPLETE_COMMIT, commit_token=b"batch-42")
    assert shard.machine.upkeep.idle_ids(shard.now_ms + 10 * 604_800_000) == ()


def test_scans_read_only_what_is_unsettled_or_long_at_rest(shard: Any) -> None:
    """Beside many idle ids a scan must not hold up the coordinator."""
    for number in range(50):
        shard.install(transactional_id=f"idle-{number}", state=S.EMPTY)
    shard.install(state=S.ONGOING, partitions=frozenset(FLIGHTS[:1]))
    read: list[str] = []

    class Watched(dict):
        def __getitem__(self, transactional_id: str) -> Any:
            read.append(transactional_id)
            return super().__getitem__(transactional_id)

    shard.machine.ids._transactions = Watched(shard.machine.ids._transactions)
    assert shard.machine.upkeep.unfinished() == ()
    assert shard.machine.upkeep.expired_transactions(shard.now_ms + 60_001) == ("loader",)
    assert set(read) == {"loader"}
    del read[:]
    assert shard.machine.upkeep.idle_ids(shard.now_ms) == ()
    assert read == []


def test_an_id_that_was_used_again_waits_behind_those_that_were_not(shard: Any) -> None:
    shard.install(transactional_id="first", state=S.EMPTY)
    shard.install(transactional_id="second", state=S.EMPTY)
    shard.now_ms += 1_000
    shard.install(transactional_id="first", state=S.COMPLETE_COMMIT, last_update_ms=shard.now_ms)
    week_later_ms = shard.now_ms + 604_800_000
    assert shard.machine.upkeep.idle_ids(week_later_ms - 1) == ("second",)
    assert shard.machine.upkeep.idle_ids(week_later_ms) == ("second", "first")


def test_an_id_from_a_clock_that_was_ahead_keeps_no_other_from_being_forgotten(shard: Any) -> None:
    ahead_ms = shard.now_ms + 3 * 604_800_000
    shard.install(transactional_id="ahead", state=S.EMPTY, last_update_ms=ahead_ms)
    shard.install(transactional_id="behind", state=S.EMPTY)
    week_later_ms = shard.now_ms + 604_800_000
    assert shard.machine.upkeep.idle_ids(week_later_ms) == ("behind",)
    shard.commit(shard.machine.upkeep.decide_expire("behind", week_later_ms))
    assert shard.machine.upkeep.idle_ids(ahead_ms) == ()
    assert shard.machine.upkeep.idle_ids(ahead_ms + 604_800_000) == ("ahead",)


def test_an_id_stays_usable_when_its_tombstone_cannot_be_written(shard: Any) -> None:
    shard.install()
    shard.machine.upkeep.decide_expire("loader", shard.now_ms + 604_800_000)
    assert shard.add(7, 5).error is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.machine.ids.abandon("loader")
    assert shard.add(7, 5).error is ErrorCode.NONE
