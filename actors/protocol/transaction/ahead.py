"""Enrolment ahead: a commit that enrols the partitions of the transaction after it.

Rules. PREPARE names them beside its decision, so they are durable with it. The next transaction
begins with them in the log batch that has COMPLETE, when every marker of the current one is
written; from then on it is open, and times out, like any other. Its owner may have missed the reply
to the commit: until it ends, a retry of that commit gets the same answer, even after a timeout
has aborted what it began.

Source: oncelog's own; Kafka's coordinator learns of a transaction from its first partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelog.actors.protocol.messages.transaction import EndTxnRequest
from oncelog.actors.protocol.transaction.checks import bad_partition
from oncelog.actors.protocol.transaction.state import TransactionMetadata
from oncelog.storage.model import PRODUCER_EPOCH_EXHAUSTED, TopicPartition

AHEAD_EPOCH_MAX: Final = PRODUCER_EPOCH_EXHAUSTED - 2
"""A commit with a higher epoch enrols nothing ahead: what follows must keep the producer id."""

AHEAD_PARTITIONS_MAX: Final = 256
"""Any more are left to the usual call: each costs a ticket in the reply to the commit."""


def ahead_partitions(
    metadata: TransactionMetadata, request: EndTxnRequest, partition_counts: Mapping[str, int]
) -> frozenset[TopicPartition]:
    """What the commit that ``request`` asks for enrols in the next transaction: all or nothing."""
    wanted = request.next_partitions
    is_possible = request.committed and metadata.producer_epoch <= AHEAD_EPOCH_MAX
    if not is_possible or len(wanted) > AHEAD_PARTITIONS_MAX:
        return frozenset()
    refused, _ = bad_partition(wanted, partition_counts)
    return frozenset() if refused else frozenset(wanted)
