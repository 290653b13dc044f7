from __future__ import annotations

from collections.abc import Callable

from oncelog.actors.protocol.partition.producers import NO_CRC, AppendedBatch, ProducerEntry
from oncelog.storage.model import ProducerSnapshotEntry
from oncelog.storage.records.batch import BatchHeader

HeaderOf = Callable[..., BatchHeader]


def entry_with(header_of: HeaderOf, *sequences: int) -> ProducerEntry:
    entry = ProducerEntry(7)
    for sequence in sequences:
        entry.add_batch(header_of(base_offset=100 + sequence, base_sequence=sequence))
    return entry


def sequences(entry: ProducerEntry) -> list[int]:
    return [batch.last_sequence for batch in entry.batches]


def test_only_the_newest_five_batches_are_remembered(header_of: HeaderOf) -> None:
    assert sequences(entry_with(header_of, *range(8))) == [3, 4, 5, 6, 7]


def test_data_of_another_epoch_clears_the_remembered_batches(header_of: HeaderOf) -> None:
    entry = entry_with(header_of, 0, 1)
    entry.add_batch(header_of(base_offset=102, base_sequence=4, producer_epoch=1))
    assert (entry.producer_epoch, entry.batches_epoch, sequences(entry)) == (1, 1, [4])


def test_batches_of_an_older_epoch_are_no_sequences_of_this_one(header_of: HeaderOf) -> None:
    entry = entry_with(header_of, 0, 1)
    entry.producer_epoch = 1
    assert (entry.batches_epoch, sequences(entry), entry.last_sequence) == (0, [0, 1], -1)
    for epoch in (0, 1):
        assert entry.duplicate_of(header_of(base_sequence=1, producer_epoch=epoch)) is None
    assert [entry.first_sequence(chain_epoch) for chain_epoch in (-1, 0, 1)] == [0, 2, 0]


def test_snapshot_of_an_entry_keeps_the_epoch_of_its_batch(header_of: HeaderOf) -> None:
    entry = entry_with(header_of, 0, 1)
    entry.producer_epoch = 4
    stored = entry.to_snapshot()
    assert (stored.producer_epoch, stored.batch_epoch, stored.last_sequence) == (4, 0, 1)
    restored = ProducerEntry.from_snapshot(stored)
    for sequence in range(2):
        restored.add_older_batch(header_of(base_offset=100 + sequence, base_sequence=sequence))
    assert restored == entry


def test_batch_across_the_wrap_knows_its_first_sequence() -> None:
    batch = AppendedBatch(last_sequence=9, last_offset=120, offset_delta=20, timestamp_ms=0)
    assert (batch.first_sequence, batch.base_offset) == (2**31 - 11, 100)


def test_duplicate_needs_both_ends_of_the_batch(header_of: HeaderOf) -> None:
    entry = ProducerEntry(7)
    entry.add_batch(header_of(base_offset=100, base_sequence=4, count=3))
    assert entry.duplicate_of(header_of(base_sequence=4, count=3)) == entry.batches[0]
    assert entry.duplicate_of(header_of(base_sequence=4, count=2)) is None
    assert entry.duplicate_of(header_of(base_sequence=5, count=2)) is None


def test_coordinators_batch_raises_the_epoch_and_is_not_remembered(header_of: HeaderOf) -> None:
    entry = entry_with(header_of, 0)
    entry.add_batch(header_of(base_offset=101, base_sequence=-1))
    assert sequences(entry) == [0]
    entry.add_batch(header_of(base_offset=102, base_sequence=-1, producer_epoch=1))
    assert (entry.producer_epoch, sequences(entry)) == (1, [])


def test_snapshot_of_an_entry_keeps_everything_but_older_batches(header_of: HeaderOf) -> None:
    entry = ProducerEntry(7, coordinator_epoch=4, current_txn_first_offset=101)
    entry.add_batch(header_of(base_offset=101, base_sequence=0, timestamp_ms=5))
    entry.add_batch(header_of(base_offset=102, base_sequence=1, count=4, timestamp_ms=6))
    stored = entry.to_snapshot()
    assert stored == ProducerSnapshotEntry(
        producer_id=7,
        producer_epoch=0,
        last_sequence=4,
        last_offset=105,
        offset_delta=3,
        timestamp_ms=6,
        coordinator_epoch=4,
        current_txn_first_offset=101,
    )
    restored = ProducerEntry.from_snapshot(stored)
    entry.batches.popleft()
    entry.batches[0] = entry.batches[0]._replace(crc=NO_CRC)
    assert restored == entry


def test_snapshot_of_an_entry_known_only_by_a_marker_has_no_batch() -> None:
    entry = ProducerEntry(7, producer_epoch=3, coordinator_epoch=2, last_timestamp_ms=9)
    stored = entry.to_snapshot()
    assert (stored.last_sequence, stored.last_offset, stored.timestamp_ms) == (-1, -1, 9)
    assert ProducerEntry.from_snapshot(stored) == entry


def test_older_batches_are_restored_before_the_newest_one(header_of: HeaderOf) -> None:
    restored = ProducerEntry.from_snapshot(entry_with(header_of, *range(8)).to_snapshot())
    for sequence in range(8):
        restored.add_older_batch(header_of(base_offset=100 + sequence, base_sequence=sequence))
    assert sequences(restored) == [3, 4, 5, 6, 7]


def test_newest_batch_gets_its_own_timestamp_back(header_of: HeaderOf) -> None:
    entry = entry_with(header_of, 0)
    entry.last_timestamp_ms = 99
    restored = ProducerEntry.from_snapshot(entry.to_snapshot())
    restored.add_older_batch(header_of(base_offset=100, base_sequence=0))
    assert restored == entry


def test_older_batch_of_another_epoch_is_not_restored(header_of: HeaderOf) -> None:
    restored = ProducerEntry.from_snapshot(entry_with(header_of, 3).to_snapshot())
    restored.add_older_batch(header_of(base_offset=100, base_sequence=2, producer_epoch=1))
    assert sequences(restored) == [3]


def test_older_batch_without_sequence_is_not_restored(header_of: HeaderOf) -> None:
    restored = ProducerEntry.from_snapshot(entry_with(header_of, 3).to_snapshot())
    restored.add_older_batch(header_of(base_offset=100, base_sequence=-1))
    assert sequences(restored) == [3]


def test_older_batch_of_an_entry_without_batches_is_not_restored(header_of: HeaderOf) -> None:
    entry = ProducerEntry(7, producer_epoch=0)
    entry.add_older_batch(header_of(base_sequence=2))
    assert sequences(entry) == []
