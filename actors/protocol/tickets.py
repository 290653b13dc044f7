"""Tickets: proof that a producer id is the sender's, for a transaction or for plain produces.

*Enrolment tickets.* The coordinator enrols a partition durably and only then issues a ticket: a MAC
under the cluster key. The partition's leader requires it with each transactional batch. So it needs
no call to the coordinator, unlike a broker in KIP-890. ``docs/adr/0002-enrolment-tickets.md``
proves that a ticket is useless once its transaction has ended.

*Plain tickets.* A producer without transactions gets one with its id, for every partition and
epoch. An id with a plain ticket is never used for transactions, so neither can write as the other.

*Chained tickets.* A Kafka client of transactions' version 1 goes on with its sequences in its next
transaction, though that has a higher epoch here. Its enrolment tickets say from which epoch on the
batches of its producer id are its own: ``chain_epoch``. Other tickets have no such field.

======  ====  ==============================================================
offset  size  field (big-endian)
======  ====  ==============================================================
0       1     version: 3, or 4 in a chained ticket
1       4     key version: under which cluster key
5       8     issued_ms: the coordinator's clock
13      4     transaction_timeout_ms; 0 in a plain ticket
17      2     chain_epoch: in a chained ticket only
17, 19  32    HMAC-SHA256 over label, these fields, producer, partition and names
======  ====  ==============================================================

The names are the transactional id and the topic id: whoever has a ticket may write for that id. A
plain ticket has its own label, no epoch or partition (both -1) and empty names. It proves who owns
the producer id, which never changes, so it does not expire by age. It expires with its key: the
producer renews it when a leader says that the key is no longer current.

The cluster key can be rotated. Tickets under the previous key stay valid until the last of them
would have expired. A ticket under a newer key than the leader knows need not be forged: the leader
asks for the newer key, and the client retries.

Source: KIP-890, "Server side verification"; KIP-98, "Future work" (hijacked producer ids).
"""

from __future__ import annotations

import enum
import hmac
import struct
from typing import Final

import msgspec

TICKET_BYTES: Final = 49
CHAINED_TICKET_BYTES: Final = 51
NO_CHAIN: Final = -1
"""``chain_epoch`` of a ticket that is not chained: the sequences of each epoch begin at 0."""

TICKET_GRACE_MS: Final = 3_600_000
"""How long after the transaction timeout a ticket is still accepted."""

TICKET_LIFETIME_MAX_MS: Final = 43_200_000
"""Maximum age of a ticket, whatever the timeout: half the expiration time of producer ids."""

TRANSACTION_TIMEOUT_LIMIT_MS: Final = TICKET_LIFETIME_MAX_MS - TICKET_GRACE_MS
"""Maximum transaction timeout: tickets, valid from its start, must outlive a transaction."""

_VERSION: Final = 3
_CHAINED_VERSION: Final = 4
_LABEL: Final = b"oncelog enrolment ticket\x00"
_PLAIN_LABEL: Final = b"oncelog plain ticket\x00"
_ANY_EPOCH_AND_PARTITION: Final = (-1, -1)
_NO_NAMES: Final = ("", "")
_FIELDS = struct.Struct(">BIqi")
_CLAIM = struct.Struct(">BIqiqhi")
"""What the MAC covers: the fields, then producer id, epoch and partition."""

_CHAIN_EPOCH = struct.Struct(">h")
_MAC_BYTES: Final = 32
_SIZES: Final = {_VERSION: TICKET_BYTES, _CHAINED_VERSION: CHAINED_TICKET_BYTES}
_LENGTH = struct.Struct(">I")


class TicketVerdict(enum.Enum):
    """A leader's verdict on a ticket."""

    VALID = "valid"
    INVALID = "invalid"
    """Forged, expired, for something else, or under a retired key."""

    NEWER_KEY = "newer key"
    """Under a key that this leader does not know yet."""


class ClusterKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The current cluster key, which signs tickets, and the previous one.

    ``version`` counts the rotations. ``rotated_ms`` is when ``previous`` was replaced: it is
    accepted until every ticket made with it has expired.
    """

    version: int = 0
    current: bytes = b""
    previous: bytes = b""
    rotated_ms: int = 0

    def __repr__(self) -> str:
        """Without the keys: it may be logged."""
        return f"ClusterKeys(version={self.version}, rotated_ms={self.rotated_ms})"

    def key_of(self, version: int, now_ms: int) -> bytes | None:
        """The key of a version not above the current one; ``None`` once it is retired."""
        if version == self.version:
            return self.current
        is_previous = version == self.version - 1 and bool(self.previous)
        if is_previous and now_ms <= self.rotated_ms + TICKET_LIFETIME_MAX_MS:
            return self.previous
        return None

    def rotated(self, cluster_key: bytes, now_ms: int) -> ClusterKeys:
        """The keys after ``cluster_key`` becomes the current one."""
        return ClusterKeys(
            version=self.version + 1,
            current=cluster_key,
            previous=self.current,
            rotated_ms=now_ms,
        )


NO_KEYS: Final = ClusterKeys()
"""The keys of a replica that has not asked the controller yet."""


def issue_ticket(
    *,
    cluster_key: bytes,
    producer_id: int,
    producer_epoch: int,
    transactional_id: str,
    topic_id: str,
    partition: int,
    issued_ms: int,
    transaction_timeout_ms: int,
    key_version: int = 0,
    chain_epoch: int = NO_CHAIN,
) -> bytes:
    """The ticket of one partition; issue it only once the enrolment is durable.

    ``producer_epoch`` is that of the transaction's data. ``issued_ms`` is milliseconds since the
    Unix epoch. The topic is given by id, so a recreated topic of the same name does not match.
    ``chain_epoch`` is the first epoch of the producer id whose sequences this producer continues,
    at most ``producer_epoch``; -1 if it begins each epoch at 0.
    """
    version, chain = _VERSION, b""
    if chain_epoch != NO_CHAIN:
        version, chain = _CHAINED_VERSION, _CHAIN_EPOCH.pack(chain_epoch)
    claim = _CLAIM.pack(
        version,
        key_version,
        issued_ms,
        transaction_timeout_ms,
        producer_id,
        producer_epoch,
        partition,
    )
    mac = _mac(cluster_key, _LABEL, claim + chain, (transactional_id, topic_id))
    return claim[: _FIELDS.size] + chain + mac


def check_ticket(
    ticket: bytes,
    *,
    keys: ClusterKeys,
    producer_id: int,
    producer_epoch: int,
    transactional_id: str,
    topic_id: str,
    partition: int,
    now_ms: int,
) -> TicketVerdict:
    """Whether ``ticket`` was issued for exactly this producer, id and partition, and is valid.

    Valid: not older than its transaction timeout plus an hour, by the caller's clock. ``ticket``
    may be any bytes. The comparison takes constant time.
    """
    verdict = _check_mac(
        ticket,
        keys=keys,
        label=_LABEL,
        owner=(producer_id, producer_epoch, partition),
        names=(transactional_id, topic_id),
        now_ms=now_ms,
    )
    if verdict is not TicketVerdict.VALID:
        return verdict
    _, _, issued_ms, transaction_timeout_ms = _FIELDS.unpack_from(ticket)
    lifetime_ms = min(transaction_timeout_ms + TICKET_GRACE_MS, TICKET_LIFETIME_MAX_MS)
    is_alive = now_ms - issued_ms <= lifetime_ms
    return TicketVerdict.VALID if is_alive else TicketVerdict.INVALID


def issue_plain_ticket(
    *, cluster_key: bytes, producer_id: int, issued_ms: int, key_version: int = 0
) -> bytes:
    """The ticket of a producer without transactions; its id must never be used for them."""
    claim = _CLAIM.pack(_VERSION, key_version, issued_ms, 0, producer_id, *_ANY_EPOCH_AND_PARTITION)
    return claim[: _FIELDS.size] + _mac(cluster_key, _PLAIN_LABEL, claim, _NO_NAMES)


def check_plain_ticket(
    ticket: bytes, *, keys: ClusterKeys, producer_id: int, now_ms: int
) -> TicketVerdict:
    """Whether ``ticket`` allows plain produces with ``producer_id``, under a key still accepted.

    ``ticket`` may be any bytes, as for ``check_ticket``.
    """
    return _check_mac(
        ticket,
        keys=keys,
        label=_PLAIN_LABEL,
        owner=(producer_id, *_ANY_EPOCH_AND_PARTITION),
        names=_NO_NAMES,
        now_ms=now_ms,
    )


def _check_mac(
    ticket: bytes,
    *,
    keys: ClusterKeys,
    label: bytes,
    owner: tuple[int, int, int],
    names: tuple[str, str],
    now_ms: int,
) -> TicketVerdict:
    """Check the MAC, at any age. ``owner``: producer id, epoch and partition."""
    if not ticket or len(ticket) != _SIZES.get(ticket[0]):
        return TicketVerdict.INVALID
    version, key_version, issued_ms, transaction_timeout_ms = _FIELDS.unpack_from(ticket)
    if key_version > keys.version:
        return TicketVerdict.NEWER_KEY
    cluster_key = keys.key_of(key_version, now_ms)
    if cluster_key is None:
        return TicketVerdict.INVALID
    claim = _CLAIM.pack(version, key_version, issued_ms, transaction_timeout_ms, *owner)
    claim += ticket[_FIELDS.size : -_MAC_BYTES]
    mac = ticket[-_MAC_BYTES:]
    is_ours = hmac.compare_digest(mac, _mac(cluster_key, label, claim, names))
    return TicketVerdict.VALID if is_ours else TicketVerdict.INVALID


def key_version_of(ticket: bytes) -> int:
    """The key version under which a well-formed ticket was made."""
    version: int = _FIELDS.unpack_from(ticket)[1]
    return version


def chain_epoch_of(ticket: bytes) -> int:
    """The chain epoch of a well-formed ticket, -1 if it is not chained. Check the ticket first."""
    if ticket[0] != _CHAINED_VERSION:
        return NO_CHAIN
    epoch: int = _CHAIN_EPOCH.unpack_from(ticket, _FIELDS.size)[0]
    return epoch


def _mac(cluster_key: bytes, label: bytes, claim: bytes, names: tuple[str, str]) -> bytes:
    """The MAC. Names have their length before them, so no two claims have the same bytes."""
    encoded = [name.encode() for name in names]
    named = b"".join(_LENGTH.pack(len(name)) + name for name in encoded)
    return hmac.digest(cluster_key, label + claim + named, "sha256")
