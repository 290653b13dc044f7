"""Tickets: proof that a producer id is its sender's, for a transaction or for plain production.

*Enrolment tickets.* The coordinator enrols a partition durably and only then issues a ticket: a MAC
under the cluster key. The partition's leader requires it with each transactional batch, and so
knows without a call what KIP-890 makes a broker ask its coordinator.
``docs/adr/0002-enrolment-tickets.md`` proves that a ticket is dead once its transaction has ended.

*Plain tickets.* A producer without transactions gets one with its id, for every partition and
epoch. Ids with plain tickets are never those of transactions, so neither can write as the other.

======  ====  ==============================================================
offset  size  field (big-endian)
======  ====  ==============================================================
0       1     version: 2
1       4     key version: under which cluster key
5       8     issued_ms: the coordinator's clock
13      4     transaction_timeout_ms; 0 in a plain ticket
17      32    HMAC-SHA256 over label, these fields, producer and partition
======  ====  ==============================================================

A plain ticket has a label of its own, and no epoch or partition (-1) and no topic. It never
expires by age: it proves whose the id is, which never changes. It expires with its key, so its
producer renews it when a leader says that the key is no longer the current one.

The cluster key can be changed. Tickets under the previous key stay valid until every one of them
would have expired. One under a key newer than any the leader knows is not yet a forgery: the
leader asks for the newer key, and the client retries.

Source: KIP-890, "Server side verification"; KIP-98, "Future work" (hijacked producer ids).
"""

from __future__ import annotations

import enum
import hmac
import struct
from typing import Final

import msgspec

TICKET_BYTES: Final = 49
TICKET_GRACE_MS: Final = 3_600_000
"""How long after the transaction timeout a ticket is still honoured."""

TICKET_LIFETIME_MAX_MS: Final = 43_200_000
"""No ticket lives longer, whatever the timeout: half of what a leader remembers a producer for."""

TRANSACTION_TIMEOUT_LIMIT_MS: Final = TICKET_LIFETIME_MAX_MS - TICKET_GRACE_MS
"""No transaction may last longer: its tickets, valid from its start, must outlive it."""

_VERSION: Final = 2
_LABEL: Final = b"oncelog enrolment ticket\x00"
_PLAIN_LABEL: Final = b"oncelog plain ticket\x00"
_ANY_EPOCH_AND_PARTITION: Final = (-1, -1)
_TICKET = struct.Struct(">BIqi32s")
_CLAIM = struct.Struct(">BIqiqhi")


class TicketVerdict(enum.Enum):
    """What a leader makes of a ticket."""

    VALID = "valid"
    INVALID = "invalid"
    """Forged, expired, for something else, or under a retired key."""

    NEWER_KEY = "newer key"
    """Under a key that this leader does not know yet."""


class ClusterKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The secret that tickets are made with, and the one before it.

    ``version`` counts the changes of the key. ``rotated_ms`` is when ``previous`` was replaced:
    it is honoured until every ticket made with it before has expired.
    """

    version: int = 0
    current: bytes = b""
    previous: bytes = b""
    rotated_ms: int = 0

    def key_of(self, version: int, now_ms: int) -> bytes | None:
        """The key of a version not above the current one; ``None`` once it is retired."""
        if version == self.version:
            return self.current
        is_previous = version == self.version - 1 and bool(self.previous)
        if is_previous and now_ms <= self.rotated_ms + TICKET_LIFETIME_MAX_MS:
            return self.previous
        return None

    def rotated(self, cluster_key: bytes, now_ms: int) -> ClusterKeys:
        """These keys once ``cluster_key`` has become the current one."""
        return ClusterKeys(
            version=self.version + 1,
            current=cluster_key,
            previous=self.current,
            rotated_ms=now_ms,
        )


NO_KEYS: Final = ClusterKeys()
"""What a replica knows before it has asked the controller."""


def issue_ticket(
    *,
    cluster_key: bytes,
    producer_id: int,
    producer_epoch: int,
    topic_id: str,
    partition: int,
    issued_ms: int,
    transaction_timeout_ms: int,
    key_version: int = 0,
) -> bytes:
    """The ticket of one partition; issue it only once the enrolment is durable.

    ``producer_epoch`` is that of the transaction's data. ``issued_ms`` is milliseconds since the
    Unix epoch. The topic is named by id, so that a topic recreated under an old name is another.
    """
    claim = _CLAIM.pack(
        _VERSION,
        key_version,
        issued_ms,
        transaction_timeout_ms,
        producer_id,
        producer_epoch,
        partition,
    )
    mac = _mac(cluster_key, _LABEL, claim, topic_id)
    return _TICKET.pack(_VERSION, key_version, issued_ms, transaction_timeout_ms, mac)


def check_ticket(
    ticket: bytes,
    *,
    keys: ClusterKeys,
    producer_id: int,
    producer_epoch: int,
    topic_id: str,
    partition: int,
    now_ms: int,
) -> TicketVerdict:
    """Whether ``ticket`` was issued for exactly this producer, epoch and partition, and is alive.

    Alive: not older than its transaction timeout plus an hour, by the caller's clock. Bytes of
    any length and content may be given. The comparison takes the same time for every wrong MAC.
    """
    verdict = _check_mac(
        ticket,
        keys=keys,
        label=_LABEL,
        owner=(producer_id, producer_epoch, partition),
        topic_id=topic_id,
        now_ms=now_ms,
    )
    if verdict is not TicketVerdict.VALID:
        return verdict
    _, _, issued_ms, transaction_timeout_ms, _ = _TICKET.unpack(ticket)
    lifetime_ms = min(transaction_timeout_ms + TICKET_GRACE_MS, TICKET_LIFETIME_MAX_MS)
    is_alive = now_ms - issued_ms <= lifetime_ms
    return TicketVerdict.VALID if is_alive else TicketVerdict.INVALID


def issue_plain_ticket(
    *, cluster_key: bytes, producer_id: int, issued_ms: int, key_version: int = 0
) -> bytes:
    """The ticket of a producer without transactions; its id must never be one of transactions."""
    claim = _CLAIM.pack(_VERSION, key_version, issued_ms, 0, producer_id, *_ANY_EPOCH_AND_PARTITION)
    mac = _mac(cluster_key, _PLAIN_LABEL, claim, "")
    return _TICKET.pack(_VERSION, key_version, issued_ms, 0, mac)


def check_plain_ticket(
    ticket: bytes, *, keys: ClusterKeys, producer_id: int, now_ms: int
) -> TicketVerdict:
    """Whether ``ticket`` gives ``producer_id`` to plain production, under a key that still counts.

    Bytes of any length and content may be given, as to ``check_ticket``.
    """
    return _check_mac(
        ticket,
        keys=keys,
        label=_PLAIN_LABEL,
        owner=(producer_id, *_ANY_EPOCH_AND_PARTITION),
        topic_id="",
        now_ms=now_ms,
    )


def _check_mac(
    ticket: bytes,
    *,
    keys: ClusterKeys,
    label: bytes,
    owner: tuple[int, int, int],
    topic_id: str,
    now_ms: int,
) -> TicketVerdict:
    """Whether the MAC covers these, whatever its age. ``owner``: id, epoch and partition."""
    if len(ticket) != TICKET_BYTES:
        return TicketVerdict.INVALID
    version, key_version, issued_ms, transaction_timeout_ms, mac = _TICKET.unpack(ticket)
    if version != _VERSION:
        return TicketVerdict.INVALID
    if key_version > keys.version:
        return TicketVerdict.NEWER_KEY
    cluster_key = keys.key_of(key_version, now_ms)
    if cluster_key is None:
        return TicketVerdict.INVALID
    claim = _CLAIM.pack(version, key_version, issued_ms, transaction_timeout_ms, *owner)
    is_ours = hmac.compare_digest(mac, _mac(cluster_key, label, claim, topic_id))
    return TicketVerdict.VALID if is_ours else TicketVerdict.INVALID


def key_version_of(ticket: bytes) -> int:
    """The key version under which a well-formed ticket was made."""
    version: int = _TICKET.unpack(ticket)[1]
    return version


def _mac(cluster_key: bytes, label: bytes, claim: bytes, topic_id: str) -> bytes:
    """Every field but the last has a fixed size, so no two claims have the same bytes."""
    return hmac.digest(cluster_key, label + claim + topic_id.encode(), "sha256")
