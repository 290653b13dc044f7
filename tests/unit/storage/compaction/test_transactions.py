"""The table of the module, row by row."""

from __future__ import annotations

import pytest

from oncelog.storage.compaction.filter import CleanedTransactions
from oncelog.storage.records.batch import parse_header, patch
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.control import ControlRecord, encode_marker
from oncelog.storage.segments.aborted_index import AbortedIndexEntry

COMMIT, ABORT = ControlRecord(True, 1), ControlRecord(False, 1)


def data(offset: int, *, producer_id: int = 1, is_transactional: bool = True):
    batch = encode_records(
        [(b"k", b"v", 0, ())],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=is_transactional,
    )
    patch(batch, base_offset=offset, leader_epoch=0)
    return parse_header(batch)


def marker(offset: int, *, producer_id: int = 1):
    batch = encode_marker(
        producer_id=producer_id,
        producer_epoch=0,
        committed=True,
        coordinator_epoch=1,
        timestamp_ms=0,
    )
    patch(batch, base_offset=offset, leader_epoch=0)
    return parse_header(batch)


def entry(first_offset: int, last_offset: int, producer_id: int = 1) -> AbortedIndexEntry:
    return AbortedIndexEntry(
        producer_id=producer_id,
        first_offset=first_offset,
        last_offset=last_offset,
        last_stable_offset=last_offset + 1,
    )


def test_data_between_first_offset_and_abort_marker_is_aborted():
    transactions = CleanedTransactions([entry(2, 5)])
    assert not transactions.observe_data(data(1))
    assert transactions.observe_data(data(2))
    assert not transactions.observe_data(data(3, producer_id=2))
    assert not transactions.observe_data(data(4, is_transactional=False))
    assert not transactions.observe_control(marker(5), ABORT)
    assert not transactions.observe_data(data(6))


def test_abort_marker_with_data_is_needed_with_its_entry():
    transactions = CleanedTransactions([entry(2, 5)])
    transactions.observe_data(data(2))
    assert not transactions.observe_control(marker(5), ABORT)
    assert transactions.take_needed() == [entry(2, 5)]
    assert transactions.take_needed() == []


def test_abort_marker_without_data_is_removable_and_its_entry_goes():
    transactions = CleanedTransactions([entry(2, 5)])
    assert transactions.observe_control(marker(5), ABORT)
    assert transactions.take_needed() == []


def test_commit_marker_is_needed_just_while_data_was_met():
    transactions = CleanedTransactions([])
    transactions.observe_data(data(1))
    assert not transactions.observe_control(marker(2), COMMIT)
    assert transactions.observe_control(marker(3), COMMIT)
    assert transactions.observe_control(marker(4, producer_id=2), COMMIT)


def test_second_transaction_of_a_producer_is_judged_for_itself():
    transactions = CleanedTransactions([entry(6, 8), entry(1, 3)])
    assert transactions.observe_data(data(1))
    transactions.observe_control(marker(3), ABORT)
    assert not transactions.observe_data(data(4))
    assert not transactions.observe_control(marker(5), COMMIT)
    assert transactions.observe_data(data(6))
    transactions.observe_control(marker(8), ABORT)
    assert transactions.take_needed() == [entry(1, 3), entry(6, 8)]


def test_data_whose_abort_marker_lies_beyond_the_range_is_aborted():
    transactions = CleanedTransactions([entry(1, 1_000)])
    assert transactions.observe_data(data(7))


@pytest.mark.parametrize(("control", "removable"), [(None, True), (ControlRecord(None, -1), False)])
def test_control_batch_without_a_verdict(control, removable):
    assert CleanedTransactions([]).observe_control(marker(1), control) is removable
