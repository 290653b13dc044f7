"""Enrolment tickets: proof that a partition belongs to a producer's open transaction.

The coordinator enrols a partition durably and only then issues a ticket: a MAC under the cluster
key. The partition's leader asks for it with the first transactional batch of a (producer id,
epoch), and so knows without a call what KIP-890 makes a broker ask its coordinator.
``docs/adr/0002-enrolment-tickets.md`` proves that a ticket is dead once its transaction has ended.

======  ====  ==============================================================
offset  size  field (big-endian)
======  ====  ==============================================================
0       1     version: 1
1       8     issued_ms: the coordinator's clock
9       4     transaction_timeout_ms
13      32    HMAC-SHA256 over label, these fields, producer and partition
======  ====  ==============================================================

Source: KIP-890, "Server side verification"; KIP-98, "Future work" (hijacked producer ids).
"""

from __future__ import annotations

import hmac
import struct
from typing import Final

TICKET_BYTES: Final = 45
TICKET_GRACE_MS: Final = 3_600_000
"""How long after the transaction timeout a ticket is still honoured."""

TICKET_LIFETIME_MAX_MS: Final = 43_200_000
"""No ticket lives longer, whatever the timeout: half of what a leader remembers a producer for."""

_VERSION: Final = 1
_LABEL: Final = b"oncelog enrolment ticket\x00"
_TICKET = struct.Struct(">Bqi32s")
_CLAIM = struct.Struct(">Bqiqhi")


def issue_ticket(
    *,
    cluster_key: bytes,
    producer_id: int,
    producer_epoch: int,
    topic_id: str,
    partition: int,
    issued_ms: int,
    transaction_timeout_ms: int,
) -> bytes:
    """The ticket of one partition; issue it only once the enrolment is durable.

    ``producer_epoch`` is that of the transaction's data. ``issued_ms`` is milliseconds since the
    Unix epoch. The topic is named by id, so that a topic made anew under an old name is another.
    """
    claim = _CLAIM.pack(
        _VERSION, issued_ms, transaction_timeout_ms, producer_id, producer_epoch, partition
    )
    mac = _mac(cluster_key, claim, topic_id)
    return _TICKET.pack(_VERSION, issued_ms, transaction_timeout_ms, mac)


def check_ticket(
    ticket: bytes,
    *,
    cluster_key: bytes,
    producer_id: int,
    producer_epoch: int,
    topic_id: str,
    partition: int,
    now_ms: int,
) -> bool:
    """Whether ``ticket`` was issued for exactly this producer, epoch and partition, and is alive.

    Alive: not older than its transaction timeout plus an hour, by the caller's clock. Bytes of
    any length and content may be given. The comparison takes the same time for every wrong MAC.
    """
    if len(ticket) != TICKET_BYTES:
        return False
    version, issued_ms, transaction_timeout_ms, mac = _TICKET.unpack(ticket)
    if version != _VERSION:
        return False
    claim = _CLAIM.pack(
        version, issued_ms, transaction_timeout_ms, producer_id, producer_epoch, partition
    )
    if not hmac.compare_digest(mac, _mac(cluster_key, claim, topic_id)):
        return False
    lifetime_ms = min(transaction_timeout_ms + TICKET_GRACE_MS, TICKET_LIFETIME_MAX_MS)
    return bool(now_ms - issued_ms <= lifetime_ms)


def _mac(cluster_key: bytes, claim: bytes, topic_id: str) -> bytes:
    """Every field but the last has a fixed size, so no two claims have the same bytes."""
    return hmac.digest(cluster_key, _LABEL + claim + topic_id.encode(), "sha256")
