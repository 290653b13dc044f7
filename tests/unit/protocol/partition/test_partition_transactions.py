"""Transactions at one replica: the last stable offset, markers, tickets."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.actors.protocol.partition.partition_machine import ACCEPTED
from oncelog.actors.protocol.partition.producers import PRODUCER_ID_EXPIRATION_MS
from oncelog.actors.protocol.tickets import TICKET_GRACE_MS, ClusterKeys
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import AppendOrigin

A, B = 7, 8
NOW_MS = 1_700_000_000_000
STALE_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH


# --- last stable offset -----------------------------------------------------------------------


def test_last_stable_offset_follows_the_oldest_undecided_transaction(leader: Any) -> None:
    """1. A opens at 99. 2. B opens at 105. 3. COMMIT A at 109. 4. ABORT B at 112."""
    machine = leader.machine
    leader.fill(99)
    leader.open(A)
    leader.fill(105)
    leader.open(B)
    leader.fill(109)
    leader.mark(A)
    machine.advance_high_watermark(109)
    assert machine.last_stable_offset == 99
    machine.advance_high_watermark(110)
    assert machine.last_stable_offset == 105
    leader.fill(112)
    leader.mark(B, committed=False)
    machine.advance_high_watermark(112)
    assert machine.last_stable_offset == 105
    machine.advance_high_watermark(113)
    assert machine.last_stable_offset == 113


def test_last_stable_offset_is_the_high_watermark_while_all_is_decided(leader: Any) -> None:
    leader.fill(10)
    leader.machine.advance_high_watermark(4)
    leader.open()
    assert leader.machine.last_stable_offset == 4


def test_aborted_transactions_tell_where_a_scan_of_the_index_may_stop(leader: Any) -> None:
    """1. A opens at 0. 2. B opens at 5. 3. ABORT A at 9. 4. ABORT B at 12."""
    leader.open(A)
    leader.fill(5)
    leader.open(B)
    leader.fill(9)
    leader.mark(A, committed=False)
    first = leader.completed
    leader.fill(12)
    leader.mark(B, committed=False)
    second = leader.completed
    assert (first.producer_id, first.first_offset, first.last_offset) == (A, 0, 9)
    assert (first.last_stable_offset, first.is_aborted) == (5, True)
    assert (second.producer_id, second.first_offset, second.last_offset) == (B, 5, 12)
    assert (second.last_stable_offset, second.is_aborted) == (13, True)


def test_committed_transaction_is_not_reported_as_aborted(leader: Any) -> None:
    leader.open()
    leader.mark(committed=True)
    assert leader.completed.is_aborted is False


def test_log_start_past_an_open_transaction_becomes_the_last_stable_offset(leader: Any) -> None:
    leader.open()
    leader.fill(20)
    leader.machine.advance_high_watermark(20)
    leader.machine.advance_log_start(10)
    assert leader.machine.last_stable_offset == 10
    assert leader.mark() is ErrorCode.NONE
    assert leader.completed.first_offset == 0
    leader.machine.advance_high_watermark(21)
    assert leader.machine.last_stable_offset == 21


def test_log_start_past_an_unreplicated_transaction_lets_it_go(leader: Any) -> None:
    leader.open()
    leader.mark()
    leader.fill(10)
    leader.machine.advance_log_start(5)
    assert leader.machine.first_unstable_offset == -1
    assert leader.machine.last_stable_offset == 5


# --- transactions and markers -----------------------------------------------------------------


def test_data_outside_the_open_transaction_is_refused(leader: Any) -> None:
    leader.open(A)
    assert leader.send(1, producer_id=A).error is ErrorCode.INVALID_TXN_STATE
    assert leader.send(0, producer_id=B) == ACCEPTED


def test_an_id_that_has_written_outside_transactions_begins_none(leader: Any) -> None:
    """Its batch would pass for the repeat of one that no verdict holds back."""
    leader.send(0, producer_id=A)
    for sequence, producer_epoch in ((0, 0), (1, 0), (0, 1)):
        refused = leader.send_transactional(
            sequence,
            producer_epoch=producer_epoch,
            ticket=leader.ticket(A, producer_epoch),
        )
        assert refused.error is ErrorCode.INVALID_TXN_STATE
    assert leader.send(1, producer_id=A) == ACCEPTED


def test_marker_without_open_transaction_only_fences(leader: Any) -> None:
    leader.fill(5)
    leader.machine.advance_high_watermark(5)
    assert leader.mark(producer_epoch=4) is ErrorCode.NONE
    assert leader.completed is None
    assert leader.machine.last_stable_offset == 5
    stale = leader.send_transactional(0, producer_epoch=3, ticket=leader.ticket(A, 3))
    assert stale.error is STALE_EPOCH


def test_marker_of_an_older_coordinator_is_fenced(leader: Any) -> None:
    leader.mark(producer_epoch=1, coordinator_epoch=2)
    fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert leader.mark(producer_epoch=1, coordinator_epoch=1) is fenced
    assert leader.mark(producer_epoch=1, coordinator_epoch=2) is ErrorCode.NONE
    assert leader.mark(producer_epoch=1, coordinator_epoch=3) is ErrorCode.NONE


@pytest.mark.parametrize("is_from_snapshot", [True, False])
def test_older_coordinator_is_fenced_after_a_reload(leader: Any, is_from_snapshot: bool) -> None:
    leader.mark(coordinator_epoch=2)
    if is_from_snapshot:
        leader.machine = leader.reload(leader.end, leader.machine.snapshot())
        leader.machine.become_leader(2, "topic-id-1", ClusterKeys(current=b"k"))
    else:
        leader.fail_over()
    assert leader.mark(coordinator_epoch=1) is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_marker_below_the_known_epoch_is_refused(leader: Any) -> None:
    leader.send(0, producer_epoch=5)
    assert leader.mark(producer_epoch=4) is STALE_EPOCH


def test_repeated_marker_is_harmless_until_the_next_transaction_has_data(leader: Any) -> None:
    leader.open(producer_epoch=5)
    assert leader.mark(producer_epoch=6) is ErrorCode.NONE
    assert leader.mark(producer_epoch=6) is ErrorCode.NONE
    assert leader.completed is None
    next_first = leader.open(producer_epoch=6)
    assert leader.mark(producer_epoch=6) is STALE_EPOCH
    assert leader.machine.open_transaction_count == 1
    assert leader.mark(producer_epoch=7) is ErrorCode.NONE
    assert leader.completed.first_offset == next_first


def test_open_transaction_counts_its_records_and_not_its_marker(leader: Any) -> None:
    leader.open(count=10)
    leader.send_transactional(10, count=5, ticket=leader.ticket(A))
    (described,) = leader.machine.describe_producers([A])
    assert (described.open_record_count, described.current_txn_first_offset) == (15, 0)
    leader.mark()
    (described,) = leader.machine.describe_producers([A])
    assert (described.open_record_count, described.current_txn_first_offset) == (0, -1)


# --- enrolment tickets ------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, b"", b"x" * 49], ids=["none", "empty", "noise"])
def test_every_batch_of_a_transaction_needs_its_ticket(leader: Any, wrong: bytes | None) -> None:
    for sequence in (0, 1, 2):
        refused = leader.send_transactional(sequence, ticket=wrong)
        assert (refused.error, refused.is_early) == (ErrorCode.INVALID_TXN_STATE, False)
        assert leader.send_transactional(sequence, ticket=leader.ticket()) == ACCEPTED


@pytest.mark.parametrize("holder", [(A + 1, 0), (A, 1)])
def test_ticket_of_another_producer_or_epoch_is_refused(
    leader: Any, holder: tuple[int, int]
) -> None:
    verdict = leader.send_transactional(0, ticket=leader.ticket(*holder))
    assert verdict.error is ErrorCode.INVALID_TXN_STATE
    assert leader.end == 0


def test_coordinators_transactional_batch_needs_a_ticket_too(leader: Any) -> None:
    origin = AppendOrigin.COORDINATOR
    assert leader.send_transactional(-1, origin=origin).error is ErrorCode.INVALID_TXN_STATE
    assert leader.send_transactional(-1, origin=origin, ticket=leader.ticket()) == ACCEPTED


def test_old_ticket_is_refused(leader: Any) -> None:
    too_late = NOW_MS + 60_000 + TICKET_GRACE_MS + 1
    verdict = leader.send_transactional(0, ticket=leader.ticket(), now_ms=too_late)
    assert verdict.error is ErrorCode.INVALID_TXN_STATE


def test_ticket_is_dead_once_the_marker_has_landed(leader: Any) -> None:
    """1. Ticket given, batch delayed. 2. ABORT lands. 3. The batch arrives, then once more."""
    ticket = leader.ticket()
    leader.mark(committed=False)
    assert leader.send_transactional(0, ticket=ticket).error is STALE_EPOCH
    leader.open(producer_epoch=1)
    assert leader.send_transactional(0, ticket=ticket).error is STALE_EPOCH
    assert leader.send_transactional(1, ticket=ticket).error is STALE_EPOCH


def test_fenced_producer_without_ticket_is_told_that_it_is_fenced(leader: Any) -> None:
    leader.mark(producer_epoch=1)
    assert leader.send_transactional(0).error is STALE_EPOCH


def test_ticket_stays_dead_when_the_clock_steps_back_after_an_expiry(leader: Any) -> None:
    """1. Ticket. 2. ABORT. 3. A day on, the producer is forgotten. 4. The clock steps back."""
    ticket = leader.ticket()
    leader.mark(committed=False)
    leader.machine.expire(NOW_MS)
    assert leader.machine.expire(NOW_MS + PRODUCER_ID_EXPIRATION_MS) == 1
    verdict = leader.send_transactional(0, ticket=ticket, now_ms=NOW_MS)
    assert verdict.error is ErrorCode.INVALID_TXN_STATE


def test_a_restart_mends_what_a_clock_that_was_ahead_has_done(leader: Any) -> None:
    """1. A scan with the clock years ahead. 2. The clock is right: tickets are too old. 3. After
    a restart they are judged by the clock alone, and nobody is forgotten before a day is over."""
    ahead_ms = NOW_MS + 1_000 * PRODUCER_ID_EXPIRATION_MS
    leader.mark(producer_id=9)
    leader.machine.expire(NOW_MS)
    assert leader.machine.expire(ahead_ms) == 1
    refused = leader.send_transactional(0, ticket=leader.ticket())
    assert refused.error is ErrorCode.INVALID_TXN_STATE
    leader.fail_over()
    assert leader.machine.expire(NOW_MS) == 0
    assert leader.machine.expire(NOW_MS + PRODUCER_ID_EXPIRATION_MS - 1) == 0
    assert leader.send_transactional(0, ticket=leader.ticket()) == ACCEPTED


def test_transactional_sequence_one_before_zero_is_early(leader: Any) -> None:
    """1. Sequences 0 and 1 are sent. 2. 1 arrives first. 3. 0 arrives. 4. 1 is tried again."""
    ticket = leader.ticket()
    early = leader.send_transactional(1, ticket=ticket)
    assert (early.error, early.is_early) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, True)
    assert leader.send_transactional(0, ticket=ticket) == ACCEPTED
    assert leader.send_transactional(1, ticket=ticket) == ACCEPTED


def test_newer_epoch_does_not_join_an_open_transaction_of_an_older_one(leader: Any) -> None:
    leader.open(producer_epoch=4)
    ticket = leader.ticket(A, 5)
    for sequence in (0, 1):
        verdict = leader.send_transactional(sequence, producer_epoch=5, ticket=ticket)
        assert verdict.error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert leader.end == 1
    leader.mark(producer_epoch=5)
    assert leader.send_transactional(0, producer_epoch=5, ticket=ticket) == ACCEPTED


def test_retry_inside_a_transaction_is_a_duplicate_without_ticket(leader: Any) -> None:
    leader.open(count=3)
    assert leader.send_transactional(0, count=3).duplicate_base_offset == 0
