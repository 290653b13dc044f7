"""All transactional ids of one coordinator shard: their logged state, and pending changes.

Rules. Only ``apply`` changes state, live and on reload. A *pending mark* is set from the decision
of a transition until its record is applied or abandoned; meanwhile nothing else may change the id
(I-18). A transition outside the table of legal states ends the process (I-12). Source: KIP-98,
"Transaction Coordinator".
"""

from __future__ import annotations

import heapq
from typing import Final

from msgspec import structs

from oncelog.actors.protocol.effects import Decision, LogRecord, refused
from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.transaction.checks import BUSY, Refusal, holds_prepared
from oncelog.actors.protocol.transaction.members import RunMember, with_member
from oncelog.actors.protocol.transaction.producer_ids import ProducerIdBlocks
from oncelog.actors.protocol.transaction.transaction_records import (
    decode_key,
    decode_member_key,
    decode_member_value,
    decode_value,
    encode_key,
    encode_member_key,
    encode_member_value,
    encode_value,
)
from oncelog.actors.protocol.transaction.transaction_state import (
    AT_REST,
    DECIDED,
    LEGAL_PREDECESSORS,
    EpochCause,
    TransactionMetadata,
    TransactionState,
    aborted,
    told_anew,
)


class TransactionalIds:
    """The state of each id, from its log records, and which ids have a pending change."""

    def __init__(self) -> None:
        self._transactions: dict[str, TransactionMetadata] = {}
        self._pending: set[str] = set()
        # Subsets of ``_transactions``, kept by ``apply``: a scan must not read 100,000 idle ids.
        self._not_at_rest: dict[str, None] = {}
        self._forgettable = RestingIds()

    # --- apply ------------------------------------------------------------------------------

    def apply(self, record: LogRecord) -> None:
        """Apply one committed record; the only way an id changes, live and on reload.

        Raises ``CorruptDataError`` for bytes that do not fit their version.
        """
        if record.key is None:
            return
        transactional_id = decode_key(record.key)
        if transactional_id is None:
            self._apply_member(record.key, record.value)
            return
        self._pending.discard(transactional_id)
        if record.value is None:
            self._transactions.pop(transactional_id, None)
            self._classify(transactional_id, None)
            return
        metadata = decode_value(transactional_id, record.value)
        if metadata is not None:
            self._transactions[transactional_id] = metadata
            self._classify(transactional_id, metadata)

    def _apply_member(self, encoded_key: bytes, value: bytes | None) -> None:
        """One member of the open run; a member of any other run is ignored."""
        key = decode_member_key(encoded_key)
        if key is None or value is None:
            return
        self._pending.discard(key.transactional_id)
        metadata = self._transactions.get(key.transactional_id)
        found = decode_member_value(key.producer_id, value)
        if metadata is None or found is None:
            return
        owner = (metadata.producer_id, metadata.producer_epoch)
        is_open = metadata.state is TransactionState.ONGOING and metadata.is_run_current
        if is_open and owner == (found.owner_producer_id, found.owner_epoch):
            self._transactions[key.transactional_id] = structs.replace(
                metadata,
                members=with_member(metadata.members, found.member),
                last_update_ms=found.last_update_ms,
            )

    def _classify(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        """Update the subsets: open or prepared ids, and ids that may expire."""
        self._not_at_rest.pop(transactional_id, None)
        self._forgettable.discard(transactional_id)
        if metadata is None:
            return
        if metadata.state not in AT_REST:
            self._not_at_rest[transactional_id] = None
        elif metadata.commit_token is None:
            self._forgettable.add(transactional_id, metadata.last_update_ms)

    def abandon(self, transactional_id: str) -> None:
        """Remove the pending mark: the records were not committed under this coordinator."""
        self._pending.discard(transactional_id)

    # --- questions --------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of ids of the shard."""
        return len(self._transactions)

    def metadata(self, transactional_id: str) -> TransactionMetadata | None:
        """The state of an id, or ``None``."""
        return self._transactions.get(transactional_id)

    def all(self) -> tuple[TransactionMetadata, ...]:
        """The state of every id, sorted by id."""
        return tuple(metadata for _, metadata in sorted(self._transactions.items()))

    def not_at_rest(self) -> tuple[TransactionMetadata, ...]:
        """The ids with a transaction that is open, or prepared and not complete."""
        return tuple(self._transactions[transactional_id] for transactional_id in self._not_at_rest)

    def holds_readers(self, transactional_id: str) -> bool:
        """Whether the id has a transaction with partitions that is not complete."""
        metadata = self._transactions.get(transactional_id)
        if metadata is None or transactional_id not in self._not_at_rest:
            return False
        members = metadata.members.values()
        return bool(metadata.partitions) or any(member.partitions for member in members)

    def forgettable(self, bound_ms: int) -> tuple[TransactionMetadata, ...]:
        """The ids without a token that have been at rest since ``bound_ms`` or longer."""
        found = self._forgettable.until(bound_ms)
        return tuple(self._transactions[transactional_id] for transactional_id in found)

    def is_pending(self, transactional_id: str) -> bool:
        """Whether a record that changes the id is being appended to the log."""
        return transactional_id in self._pending

    def check_not_pending(self, transactional_id: str) -> Refusal | None:
        """Reject a change of the id while one is pending."""
        return BUSY if self.is_pending(transactional_id) else None

    # --- moves ------------------------------------------------------------------------------

    def move(self, reply: ReplyT, *steps: TransactionMetadata) -> Decision[ReplyT]:
        """Take one id through ``steps``, each a record of the whole id; it is pending meanwhile."""
        transactional_id = steps[-1].transactional_id
        stored = self._transactions.get(transactional_id)
        state = TransactionState.EMPTY if stored is None else stored.state
        for step in steps:
            invariant(
                state in LEGAL_PREDECESSORS[step.state],
                "I-12",
                f"{transactional_id!r} cannot go from {state.value} to {step.state.value}",
            )
            state = step.state
        self._pending.add(transactional_id)
        key = encode_key(transactional_id)
        records = tuple(LogRecord(key, encode_value(step)) for step in steps)
        return Decision(reply=reply, records=records)

    def abort_ongoing(
        self,
        request: Request[ReplyT],
        metadata: TransactionMetadata,
        cause: EpochCause,
        now_ms: int,
        producer_ids: ProducerIdBlocks,
        told: tuple[int, int] | None = None,
    ) -> Decision[ReplyT]:
        """Abort the open transaction of an id that ``request`` takes over; the caller retries.

        A prepared one may be committed elsewhere already, so nobody aborts it in passing. ``told``
        is the pair of a version 1 client that aborts its own: with it, it retries.
        """
        if metadata.state in DECIDED:
            return refused(request, *BUSY)
        if metadata.state is TransactionState.PREPARED:
            return refused(request, *holds_prepared(metadata.transactional_id))
        spare = producer_ids.spare(metadata)
        following = aborted(metadata, cause, now_ms, spare)
        if told is not None:
            following = told_anew(following, told)
        return self.move(request.failed(*BUSY), following)

    def move_member(
        self, reply: ReplyT, metadata: TransactionMetadata, member: RunMember, now_ms: int
    ) -> Decision[ReplyT]:
        """Add or change one member of the open run of ``metadata``, with a record of its own."""
        self._pending.add(metadata.transactional_id)
        key = encode_member_key(metadata.transactional_id, member.producer_id)
        value = encode_member_value(metadata, member, now_ms)
        return Decision(reply=reply, records=(LogRecord(key, value),))

    def forget(self, reply: ReplyT, transactional_id: str) -> Decision[ReplyT]:
        """Remove an id at rest, with a tombstone."""
        self._pending.add(transactional_id)
        tombstone = LogRecord(encode_key(transactional_id), None)
        return Decision(reply=reply, records=(tombstone,))


_OUTDATED_MIN: Final = 64
"""Stale heap entries that never cause a rebuild."""


class RestingIds:
    """The ids at rest, and since when; the longest at rest come first.

    Times are of an id's last change, in milliseconds since the Unix epoch. Ids are ordered by time,
    not by record: after a clock was ahead for a while, later ids must still be forgotten in time. A
    query reads only what it returns.
    """

    __slots__ = ("_order", "_since_ms")

    def __init__(self) -> None:
        self._since_ms: dict[str, int] = {}
        # A heap; an id that changed leaves a stale entry, skipped later.
        self._order: list[tuple[int, str]] = []

    def __len__(self) -> int:
        """Number of ids at rest."""
        return len(self._since_ms)

    def add(self, transactional_id: str, since_ms: int) -> None:
        """The id is at rest since ``since_ms``, which replaces an earlier time."""
        self._since_ms[transactional_id] = since_ms
        heapq.heappush(self._order, (since_ms, transactional_id))
        if len(self._order) > 2 * len(self._since_ms) + _OUTDATED_MIN:
            self._order = [(time_ms, name) for name, time_ms in self._since_ms.items()]
            heapq.heapify(self._order)

    def discard(self, transactional_id: str) -> None:
        """The id is no longer at rest, or unknown."""
        self._since_ms.pop(transactional_id, None)

    def until(self, bound_ms: int) -> tuple[str, ...]:
        """Every id at rest since ``bound_ms`` (inclusive) or longer, the longest first."""
        found: dict[str, int] = {}
        while self._order and self._order[0][0] <= bound_ms:
            since_ms, transactional_id = heapq.heappop(self._order)
            if self._since_ms.get(transactional_id) == since_ms:
                found[transactional_id] = since_ms
        for transactional_id, since_ms in found.items():
            heapq.heappush(self._order, (since_ms, transactional_id))
        return tuple(found)
