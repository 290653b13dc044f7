from __future__ import annotations

import pytest

from oncelog.api.consuming.fetch_buffer import VisibleBatches, visible_batches
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import AbortedTransaction
from oncelog.storage.records.batch import seal
from oncelog.storage.records.codec import decode_records

A, B = 11, 22


def read(log, fetch_offset=0, end=None, is_committed=True):
    """The filter over what a leader would answer."""
    end = log.last_stable_offset if end is None else end
    aborted = tuple(
        item
        for marker_offset, item in log.aborted
        if marker_offset >= fetch_offset and item.first_offset < end
    )
    records = log.read(fetch_offset, end, 2**30)
    visible = visible_batches(
        records,
        fetch_offset=fetch_offset,
        aborted_transactions=aborted if is_committed else None,
    )
    return visible, offsets(records, visible)


def offsets(records: bytes, visible: VisibleBatches) -> list[int]:
    return [
        record.offset
        for batch in visible.batches
        for record in decode_records(records, batch.header, batch.position)
    ]


@pytest.fixture
def interleaved(new_log):
    """Scenario 72: A data@0-1, B data@2-3, ABORT A@4, COMMIT B@5, A data@6, COMMIT A@7."""
    log = new_log()
    log.append(b"0", b"1", producer_id=A)
    log.append(b"2", b"3", producer_id=B)
    log.mark(A, committed=False)
    log.mark(B, committed=True)
    log.append(b"6", producer_id=A)
    log.mark(A, committed=True)
    return log


def test_aborted_data_and_markers_are_hidden_and_the_end_is_past_the_last_marker(interleaved):
    visible, seen = read(interleaved)

    assert seen == [2, 3, 6]
    assert visible.next_offset == 8


def test_read_uncommitted_shows_aborted_data_but_no_markers(interleaved):
    visible, seen = read(interleaved, is_committed=False)

    assert seen == [0, 1, 2, 3, 6]
    assert visible.next_offset == 8


def test_records_of_aborted_transactions_are_counted(interleaved):
    visible, _ = read(interleaved)

    assert visible.aborted_record_count == 2


def test_a_fetch_into_the_middle_of_an_aborted_transaction_hides_its_rest(new_log):
    log = new_log()
    log.append(b"0", producer_id=A)
    log.append(b"1", producer_id=A)
    log.append(b"2")
    log.append(b"3", producer_id=A)
    log.mark(A, committed=False)

    _, seen = read(log, fetch_offset=1)

    assert seen == [2]


def test_one_producer_aborted_committed_and_aborted_again_loses_only_the_aborted(new_log):
    log = new_log()
    for committed in (False, True, False, True):
        log.append(b"x", producer_id=A)
        log.mark(A, committed=committed)

    _, seen = read(log)

    assert seen == [2, 6]


def test_the_abort_marker_of_one_producer_leaves_another_aborted_one_hidden(new_log):
    log = new_log()
    log.append(b"0", producer_id=A)
    log.append(b"1", producer_id=B)
    log.mark(A, committed=False)
    log.append(b"3", producer_id=B)
    log.append(b"4")
    log.mark(B, committed=False)

    _, seen = read(log)

    assert seen == [4]


def test_non_transactional_data_of_a_producer_with_an_aborted_transaction_is_shown():
    record = b"\x0e\x00\x00\x00\x01\x01\x00"
    batch = seal(
        record,
        codec=0,
        record_count=1,
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        producer_id=A,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=False,
    )

    visible = visible_batches(
        bytes(batch),
        fetch_offset=0,
        aborted_transactions=(AbortedTransaction(producer_id=A, first_offset=0),),
    )

    assert len(visible.batches) == 1


def test_a_reply_of_nothing_but_markers_moves_the_end_without_records(new_log):
    log = new_log()
    log.append(b"0", producer_id=A)
    log.mark(A, committed=True)

    visible, seen = read(log, fetch_offset=1)

    assert seen == []
    assert visible.next_offset == 2


def test_a_compacted_gap_at_the_end_of_a_batch_is_stepped_over():
    batch = seal(
        b"\x0e\x00\x00\x00\x01\x01\x00",
        codec=0,
        record_count=1,
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        is_transactional=False,
        last_offset_delta=9,
    )

    visible = visible_batches(bytes(batch), fetch_offset=0, aborted_transactions=())

    assert visible.next_offset == 10


@pytest.mark.parametrize("is_control", [False, True])
def test_an_emptied_batch_delivers_nothing_and_is_stepped_over(is_control):
    batch = seal(
        b"",
        codec=0,
        record_count=0,
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        producer_id=A,
        producer_epoch=0,
        base_sequence=-1,
        is_transactional=True,
        is_control=is_control,
        last_offset_delta=3,
    )

    visible = visible_batches(bytes(batch), fetch_offset=0, aborted_transactions=())

    assert visible.batches == ()
    assert visible.next_offset == 4


def test_an_empty_reply_ends_where_the_fetch_began():
    visible = visible_batches(b"", fetch_offset=5, aborted_transactions=())

    assert visible.next_offset == 5


def test_a_damaged_first_batch_is_refused(new_log):
    log = new_log()
    log.append(b"0")
    damaged = bytearray(log.batches[0])
    damaged[-1] ^= 1

    with pytest.raises(CorruptDataError, match="offset 0"):
        visible_batches(bytes(damaged), fetch_offset=0, aborted_transactions=())


def test_a_damaged_later_batch_ends_the_reply_before_it(new_log):
    log = new_log()
    log.append(b"0")
    log.append(b"1")
    damaged = bytearray(b"".join(log.batches))
    damaged[-1] ^= 1

    visible = visible_batches(bytes(damaged), fetch_offset=0, aborted_transactions=())

    assert len(visible.batches) == 1
    assert visible.next_offset == 1


def test_a_truncated_last_batch_is_left_for_the_next_fetch(new_log):
    log = new_log()
    log.append(b"0")
    log.append(b"1")

    visible = visible_batches(b"".join(log.batches)[:-1], fetch_offset=0, aborted_transactions=())

    assert visible.next_offset == 1
