"""What the log remembers of one producer, as a producer snapshot carries it.

Pure: the partition's machine makes these entries, ``producer_snapshot`` gives them bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncelog.storage.model import (
    NO_COORDINATOR_EPOCH,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSnapshotEntry:
    """One producer at one offset: its epoch, its newest batch and its open transaction.

    ``last_sequence``, ``last_offset`` (inclusive) and ``offset_delta`` are those of the newest
    data batch, -1, -1 and 0 if there is none; ``offset_delta`` is the batch's last offset less
    its first. ``timestamp_ms`` is of the newest batch or marker. ``current_txn_first_offset`` is
    -1 while no transaction is open.

    Source: KIP-98, "Producer state"; the duplicate window is 1 batch right after a reload.
    """

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_sequence: int = NO_SEQUENCE
    last_offset: int = NO_OFFSET
    offset_delta: int = 0
    timestamp_ms: int = NO_TIMESTAMP
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    current_txn_first_offset: int = NO_OFFSET

    @property
    def has_batch(self) -> bool:
        """Whether the producer's newest data batch is known, for duplicate detection."""
        return self.last_sequence != NO_SEQUENCE

    @property
    def has_open_transaction(self) -> bool:
        """Whether a transaction of this producer waits for its marker."""
        return self.current_txn_first_offset != NO_OFFSET
