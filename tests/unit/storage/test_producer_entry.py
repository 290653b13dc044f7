from __future__ import annotations

from oncelog.storage.model import ProducerSnapshotEntry


def test_entry_made_by_a_marker_has_no_batch_and_no_transaction():
    entry = ProducerSnapshotEntry(producer_id=1, producer_epoch=3)
    assert not entry.has_batch
    assert not entry.has_open_transaction


def test_transaction_that_begins_at_offset_zero_is_open():
    entry = ProducerSnapshotEntry(producer_id=1, last_sequence=0, current_txn_first_offset=0)
    assert entry.has_batch
    assert entry.has_open_transaction
