"""Idempotence at the leader: duplicates, sequences, epochs, expiry."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from oncelog.actors.protocol.partition.partition_machine import ACCEPTED
from oncelog.actors.protocol.partition.producers import (
    PRODUCER_ID_EXPIRATION_MS,
    BatchEnrolment,
    ProducerStates,
)
from oncelog.actors.protocol.tickets import ClusterKeys
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import SEQUENCE_MAX, AppendOrigin
from oncelog.storage.records.batch import BatchHeader
from oncelog.storage.records.control import ControlRecord

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
STALE_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.fixture
def seven(leader: Any) -> Any:
    """A leader that holds [0], [1], [2], [3], [4], [5], [6..8] of one producer, at 0 to 8."""
    for sequence in range(6):
        assert leader.send(sequence) == ACCEPTED
    assert leader.send(6, 8) == ACCEPTED
    return leader


@pytest.mark.parametrize(("first", "last"), [(6, 8), (2, 2), (3, 3), (4, 4), (5, 5)])
def test_retry_of_one_of_the_last_five_batches_gets_the_original_offset(
    seven: Any, first: int, last: int
) -> None:
    verdict = seven.send(first, last)
    assert verdict.error is ErrorCode.NONE
    assert verdict.duplicate_base_offset == first
    assert verdict.duplicate_next_offset == last + 1
    assert seven.end == 9


def test_retry_older_than_the_window_is_out_of_order_and_not_early(seven: Any) -> None:
    verdict = seven.send(1)
    assert (verdict.error, verdict.is_early) == (OUT_OF_ORDER, False)
    assert seven.end == 9


@pytest.mark.parametrize(("first", "last"), [(7, 8), (5, 6), (8, 9), (6, 9), (6, 7)])
def test_batch_that_overlaps_an_appended_one_is_out_of_order(
    seven: Any, first: int, last: int
) -> None:
    assert seven.send(first, last).error is OUT_OF_ORDER
    assert seven.end == 9


def test_next_sequence_is_accepted(seven: Any) -> None:
    assert seven.send(9) == ACCEPTED
    assert seven.end == 10


def test_duplicate_tells_the_timestamp_of_the_original(leader: Any) -> None:
    leader.send(0, timestamp_ms=1234)
    assert leader.send(0, timestamp_ms=9999).duplicate_timestamp_ms == 1234


def test_sequence_wraps_to_zero(leader: Any) -> None:
    leader.send(0, 1)
    assert leader.send(2, SEQUENCE_MAX) == ACCEPTED
    assert leader.send(1).error is OUT_OF_ORDER
    assert leader.send(0) == ACCEPTED


def test_batch_across_the_wrap_is_followed_by_its_last_sequence_plus_one(
    leader: Any, header_of: Callable[..., BatchHeader]
) -> None:
    leader.send(0, SEQUENCE_MAX - 11)
    leader.send(SEQUENCE_MAX - 10, SEQUENCE_MAX - 10 + 20)
    assert leader.machine.describe_producers([7])[0].last_sequence == 9
    ticket = leader.plain_ticket()
    assert leader.decide(header_of(base_sequence=11), ticket=ticket).error is OUT_OF_ORDER
    assert leader.decide(header_of(base_sequence=10), ticket=ticket) == ACCEPTED
    assert (
        leader.decide(header_of(base_sequence=SEQUENCE_MAX - 10, count=21)).duplicate_base_offset
        == SEQUENCE_MAX - 10
    )


def test_unknown_producer_begins_at_zero_whatever_comes_first(leader: Any) -> None:
    """1. The producer sends 0, then 1. 2. The call with 1 overtakes: taking it would shut out 0."""
    early = leader.send(1)
    assert (early.error, early.is_early) == (OUT_OF_ORDER, True)
    assert leader.send(0) == ACCEPTED
    assert leader.send(1) == ACCEPTED


@pytest.mark.parametrize(
    ("sequence", "is_early"), [(7, True), (6 + 2**30 - 1, True), (6 + 2**30, False), (3, False)]
)
def test_sequence_is_early_when_it_lies_ahead_of_the_next(
    leader: Any, sequence: int, is_early: bool
) -> None:
    leader.send(0, 5)
    verdict = leader.send(sequence)
    assert (verdict.error, verdict.is_early) == (OUT_OF_ORDER, is_early)


def test_higher_epoch_must_begin_at_zero_and_fences_the_lower(leader: Any) -> None:
    leader.send(0, 4)
    refused = leader.send(5, producer_epoch=1)
    assert (refused.error, refused.is_early) == (OUT_OF_ORDER, True)
    assert leader.send(0, producer_epoch=1) == ACCEPTED
    stale = leader.send(5)
    assert (stale.error, stale.is_early) == (STALE_EPOCH, False)


def test_same_sequences_under_a_higher_epoch_are_a_new_append(leader: Any) -> None:
    leader.send(0, 1)
    assert leader.send(0, 1, producer_epoch=1) == ACCEPTED
    assert leader.end == 4


def test_marker_without_data_raises_the_epoch(leader: Any) -> None:
    leader.mark(producer_epoch=3)
    ticket = leader.ticket(producer_epoch=3)
    assert leader.send_transactional(1, producer_epoch=3, ticket=ticket).error is OUT_OF_ORDER
    assert leader.send_transactional(0, producer_epoch=2, ticket=ticket).error is STALE_EPOCH
    assert leader.send_transactional(0, producer_epoch=3, ticket=ticket) == ACCEPTED


def test_coordinators_append_has_no_sequence_and_is_fenced_by_epoch(leader: Any) -> None:
    leader.send(0, producer_epoch=1)
    for _ in range(2):
        verdict = leader.send(-1, producer_epoch=1, origin=AppendOrigin.COORDINATOR)
        assert verdict == ACCEPTED
    stale = leader.send(-1, producer_epoch=0, origin=AppendOrigin.COORDINATOR)
    assert stale.error is STALE_EPOCH
    assert leader.end == 3


def test_coordinators_append_does_not_disturb_a_clients_sequence(leader: Any) -> None:
    leader.send(0)
    leader.send(-1, origin=AppendOrigin.COORDINATOR)
    assert leader.send(0).duplicate_base_offset == 0
    assert leader.send(1) == ACCEPTED


def test_coordinators_append_needs_no_earlier_entry(leader: Any) -> None:
    assert leader.send(-1, origin=AppendOrigin.COORDINATOR) == ACCEPTED


def test_record_without_producer_is_always_accepted(leader: Any) -> None:
    leader.fill(10)
    assert leader.end == 10
    assert leader.machine.producer_count == 0


def test_refused_batch_changes_nothing(seven: Any) -> None:
    before = copy.deepcopy(seven.machine.producers.entries[7])
    seven.send(1)
    seven.send(20)
    seven.send(3, producer_epoch=5)
    assert seven.machine.producers.entries[7] == before


# --- reload -----------------------------------------------------------------------------------


def test_snapshot_remembers_the_newest_batch_only(leader: Any) -> None:
    for sequence in range(5):
        leader.send(sequence)
    leader.machine = leader.reload(5, leader.machine.snapshot())
    leader.machine.become_leader(2, "topic-id-1", ClusterKeys(current=b"k" * 32))
    assert leader.send(4).duplicate_base_offset == 4
    assert leader.send(3).error is OUT_OF_ORDER
    assert leader.send(5) == ACCEPTED


def test_replay_from_before_the_snapshot_remembers_all_five(leader: Any) -> None:
    for sequence in range(6):
        leader.send(sequence)
    machine = leader.reload(6, leader.machine.snapshot())
    for header, control in leader.log:
        machine.apply(header, control)
    assert machine.producers.entries == leader.machine.producers.entries
    assert machine.log_end_offset == 6


def test_truncated_log_is_loaded_as_if_the_rest_had_never_been(leader: Any) -> None:
    leader.send(0)
    leader.open(producer_id=8)
    cut_at = leader.end
    before = leader.reload().producers.entries
    leader.send(1)
    leader.mark(producer_id=8)
    leader.log = [entry for entry in leader.log if entry[0].base_offset < cut_at]
    after = leader.reload()
    assert after.producers.entries == before
    assert after.open_transaction_count == 1


def test_producer_outlives_its_data(leader: Any) -> None:
    leader.send(0, 4)
    leader.machine.advance_high_watermark(5)
    leader.machine.advance_log_start(5)
    assert leader.send(5) == ACCEPTED
    assert leader.send(0, 4).duplicate_base_offset == 0
    assert leader.machine.log_start_offset == 5


# --- expiry -----------------------------------------------------------------------------------


def test_producer_is_forgotten_after_a_day_of_silence(leader: Any) -> None:
    leader.send(0)
    assert leader.machine.expire(1_000) == 0
    assert leader.machine.expire(1_000 + PRODUCER_ID_EXPIRATION_MS - 1) == 0
    assert leader.machine.expire(1_000 + PRODUCER_ID_EXPIRATION_MS) == 1
    assert leader.machine.producer_count == 0


def test_forgotten_producer_repeats_nothing_and_continues_under_its_next_epoch(leader: Any) -> None:
    """1. The reply to 1 is lost. 2. The leader forgets the producer. 3. The retry is refused: the
    leader cannot know that it has it. 4. The next epoch begins at 0, and is checked again.
    """
    leader.send(0)
    leader.send(1)
    leader.machine.expire(1_000)
    leader.machine.expire(1_000 + PRODUCER_ID_EXPIRATION_MS)
    assert leader.send(1).error is OUT_OF_ORDER
    assert leader.end == 2
    assert leader.send(0, producer_epoch=1) == ACCEPTED
    assert leader.send(0, producer_epoch=1).duplicate_base_offset == 2
    assert leader.send(2, producer_epoch=1).error is OUT_OF_ORDER


def test_silence_counts_from_the_last_batch_and_not_from_its_timestamp(leader: Any) -> None:
    leader.send(0, timestamp_ms=5)
    leader.machine.expire(1_000)
    leader.send(1, timestamp_ms=5)
    assert leader.machine.expire(1_000 + PRODUCER_ID_EXPIRATION_MS) == 0
    assert leader.machine.expire(1_000 + 2 * PRODUCER_ID_EXPIRATION_MS) == 1


def test_marker_breaks_the_silence(leader: Any) -> None:
    leader.send(0)
    leader.machine.expire(1_000)
    leader.mark()
    assert leader.machine.expire(1_000 + PRODUCER_ID_EXPIRATION_MS) == 0


def test_producer_with_an_open_transaction_is_never_forgotten(leader: Any) -> None:
    leader.open()
    leader.machine.expire(0)
    assert leader.machine.expire(10 * PRODUCER_ID_EXPIRATION_MS) == 0
    assert leader.machine.open_transaction_count == 1


def test_clock_that_steps_back_begins_the_silence_anew(leader: Any) -> None:
    leader.send(0)
    leader.machine.expire(5 * PRODUCER_ID_EXPIRATION_MS)
    leader.machine.expire(0)
    assert leader.machine.expire(PRODUCER_ID_EXPIRATION_MS - 1) == 0
    assert leader.machine.expire(PRODUCER_ID_EXPIRATION_MS) == 1


# --- describe ---------------------------------------------------------------------------------


def test_describe_leaves_out_producers_it_does_not_know(leader: Any) -> None:
    leader.send(0, producer_id=7)
    leader.send(0, producer_id=8)
    assert [one.producer_id for one in leader.machine.describe_producers([8, 9])] == [8]
    assert [one.producer_id for one in leader.machine.describe_producers(None)] == [7, 8]


# --- the short way ----------------------------------------------------------------------------


def test_batch_that_takes_the_short_way_is_one_that_the_table_accepts(
    header_of: Callable[..., BatchHeader],
) -> None:
    """Whatever is remembered, whatever comes: no duplicate, no gap, no ticket needed."""
    taken = 0
    for last, has_open, verdict, epoch, first, is_transactional in itertools.product(
        (None, 0, 4, SEQUENCE_MAX),
        (False, True),
        (None, ControlRecord(True, 0), ControlRecord(True, -1)),
        (0, 1, 2),
        (0, 1, 4, 5, 6),
        (False, True),
    ):
        producers = ProducerStates()
        if last is not None:
            stored = header_of(base_sequence=last, producer_epoch=1, is_transactional=has_open)
            producers.apply_data(stored)
        if verdict is not None:
            marker = header_of(base_offset=1, producer_epoch=2, is_control=True)
            producers.apply_marker(marker, verdict)
        header = header_of(
            base_sequence=first, producer_epoch=epoch, is_transactional=is_transactional
        )
        if not producers.is_continued_by(header):
            continue
        taken += 1
        assert producers.find_duplicate(header) is None
        for origin in AppendOrigin:
            assert producers.check_data(header, origin) == (ErrorCode.NONE, False)
        if is_transactional:
            assert producers.check_enrolment(header) is BatchEnrolment.OPEN
    assert taken == 4
