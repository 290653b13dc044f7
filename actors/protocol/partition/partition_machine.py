"""One replica of a partition: its role and offsets, and what may be appended and read.

Rules. ``decide_append`` and ``decide_marker`` change nothing; only ``apply`` applies log content,
the same live, on recovery and on a follower. The shell checks, writes and applies in one turn of
its loop, without a wait, so the next batch sees the result. What may be read, and the offsets that
bound it, are in ``partition.bounds``.

========  ====================  =================================================================
role      event                 answer
========  ====================  =================================================================
any       load                  LOADING, at the snapshot's offset
LOADING   apply, at the end     log end and producers follow the batch
LOADING   apply, before the     only what a snapshot cannot hold is restored
          snapshot
LOADING   become_leader         LEADER: the epoch begins at the log end
LOADING   become_follower       FOLLOWER
LEADER    decide_append         duplicate, accept, or the first code that applies, in this order:
                                INVALID_TOPIC_EXCEPTION, INVALID_RECORD,
                                TRANSACTIONAL_ID_AUTHORIZATION_FAILED; duplicate; in a
                                transaction INVALID_PRODUCER_EPOCH, CONCURRENT_TRANSACTIONS and
                                INVALID_TXN_STATE of enrolment, outside one INVALID_TXN_STATE and
                                UNKNOWN_PRODUCER_ID; the table of ``partition.producers``
LEADER    decide_marker         the table of ``partition.producers``
LEADER    apply                 only its own epoch, exactly at the log end
LEADER    become_leader         LEADER of the newer epoch
LEADER    become_follower       FOLLOWER
FOLLOWER  apply                 as the leader's log has it, gaps of compaction included
FOLLOWER  become_leader         LEADER
FOLLOWER  check_reader          NONE in its epoch, FENCED_LEADER_EPOCH for an older one,
                                UNKNOWN_LEADER_EPOCH for a newer one
LOADING   check_reader          NOT_LEADER_OR_FOLLOWER
not       decide, check_leader  NOT_LEADER_OR_FOLLOWER
LEADER
========  ====================  =================================================================

Source: KIP-98, KIP-101, KIP-890; enrolment tickets are ours (ADR 0002).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.messages.partition import (
    AbortHangingRequest,
    ProducerDescription,
    TxnMarker,
    WriteTxnMarkersRequest,
)
from oncelog.actors.protocol.partition.bounds import LEADER, LOADING, PartitionBounds, Role
from oncelog.actors.protocol.partition.open_transactions import CompletedTransaction
from oncelog.actors.protocol.partition.producers import PRODUCER_ID_EXPIRATION_MS, BatchEnrolment
from oncelog.actors.protocol.tickets import (
    NO_CHAIN,
    NO_KEYS,
    ClusterKeys,
    TicketVerdict,
    chain_epoch_of,
    check_plain_ticket,
    check_ticket,
    key_version_of,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    INTERNAL_TOPICS,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    AppendOrigin,
    ProducerSnapshotEntry,
    TopicPartition,
)
from oncelog.storage.records.batch import BatchHeader, Buffer
from oncelog.storage.records.control import ControlRecord

__all__ = ["ACCEPTED", "AppendVerdict", "CompletedTransaction", "PartitionMachine", "Role"]


class AppendVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a leader must do with a batch.

    ``duplicate_base_offset`` is set when the batch is already in the log, up to
    ``duplicate_next_offset`` (exclusive): nothing is appended, and with acks -1 the reply still
    waits until the high watermark has reached that offset. ``is_early``: earlier batches may still
    be in flight. The shell may hold this one back for a short, bounded time and ask again after
    each append, before it answers with ``error``. ``needs_keys``: the ticket's cluster key is
    unknown, and the shell must ask for it. ``is_ticket_old``: accepted, but the plain ticket's key
    is not the current one.
    """

    error: ErrorCode = ErrorCode.NONE
    duplicate_base_offset: int | None = None
    duplicate_next_offset: int = NO_OFFSET
    duplicate_timestamp_ms: int = NO_TIMESTAMP
    is_early: bool = False
    needs_keys: bool = False
    is_ticket_old: bool = False


ACCEPTED: Final = AppendVerdict()
"""Append it now."""

VERIFIED_TICKETS_MAX: Final = 10_000
"""Verified tickets that a leader remembers; beyond that it forgets all and verifies again."""

_NONE: Final = ErrorCode.NONE
_CLIENT: Final = AppendOrigin.CLIENT


_Proof: TypeAlias = tuple[bytes | None, str | None]
"""A batch's ticket and transactional id."""


class PartitionMachine(PartitionBounds):
    """The state of one replica; its offsets and what may be read are ``PartitionBounds``."""

    __slots__ = ("_is_internal", "_keys", "_latest_ms", "_topic_id", "_verified", "leader_epoch")

    def __init__(self, topic_partition: TopicPartition) -> None:
        super().__init__(topic_partition)
        self.leader_epoch = NO_LEADER_EPOCH
        self._is_internal = topic_partition.topic in INTERNAL_TOPICS
        self._topic_id = ""
        self._keys = NO_KEYS
        self._latest_ms = NO_TIMESTAMP
        self._verified: dict[int, _Proof] = {}
        """Producer id → what was verified for its epoch under the current key; a cache."""

    # --- role --------------------------------------------------------------------------------

    def become_leader(self, leader_epoch: int, topic_id: str, keys: ClusterKeys) -> None:
        """Lead from now on; the epoch begins at the log end, even if no batch follows.

        Nothing is truncated; the high watermark stays. The shell makes the epoch's start durable.
        """
        newest = max(self.leader_epoch, self.leader_epochs.latest_epoch)
        invariant(
            leader_epoch > newest, "I-08", f"{self} is to lead in {leader_epoch} after {newest}"
        )
        self._take_role(Role.LEADER)
        self.leader_epoch = leader_epoch
        self.leader_epochs.assign(leader_epoch, self._log_end_offset)
        self._topic_id = topic_id
        self._keys = keys

    def learn_keys(self, keys: ClusterKeys) -> None:
        """Verify tickets with these keys from now on, unless newer ones are known."""
        if keys.version > self._keys.version:
            self._keys = keys
            self._verified.clear()

    def become_follower(self, leader_epoch: int) -> None:
        """Follow the leader of ``leader_epoch``; the shell must fail waiting client requests.

        An epoch that this replica led without writing is dropped: batches from the new leader may
        be of an older epoch.
        """
        invariant(
            leader_epoch >= self.leader_epoch,
            "I-08",
            f"{self} is to follow {leader_epoch} after {self.leader_epoch}",
        )
        self._take_role(Role.FOLLOWER)
        self.leader_epoch = leader_epoch
        self.leader_epochs.truncate_end(self._log_end_offset)

    def check_leader(self, leader_epoch: int = NO_LEADER_EPOCH) -> ErrorCode:
        """Whether this replica leads, in the epoch that a client assumes (-1: any)."""
        if self.role is not Role.LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return self._check_epoch(leader_epoch)

    def check_reader(self, leader_epoch: int) -> ErrorCode:
        """Whether a consumer that its leader sent here may read, in the epoch that it assumes.

        A follower does not know whether it is still in sync, or whether another leads. What is
        below its high watermark is committed in any case. Source: KIP-392.
        """
        if self.role is Role.LOADING:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return self._check_epoch(leader_epoch)

    def _check_epoch(self, leader_epoch: int) -> ErrorCode:
        if leader_epoch in (NO_LEADER_EPOCH, self.leader_epoch):
            return ErrorCode.NONE
        if leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    # --- decide ------------------------------------------------------------------------------

    def decide_append(
        self,
        header: BatchHeader,
        *,
        origin: AppendOrigin,
        transactional_id: str | None = None,
        ticket: bytes | None = None,
        batch: Buffer | None = None,
        now_ms: int,
    ) -> AppendVerdict:
        """Decide about a whole data batch whose bytes have been checked. Changes nothing.

        ``batch``: see ``find_duplicate``.
        """
        if self.role is not LEADER:
            return AppendVerdict(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if origin is _CLIENT and (self._is_internal or not header.is_plain):
            error = self._check_client(header, transactional_id)
            if error is not _NONE:
                return AppendVerdict(error=error)
        if header.producer_id < 0:
            return ACCEPTED
        proof = (ticket, transactional_id)
        is_verified = ticket is not None and self._verified.get(header.producer_id) == proof
        if is_verified and self.producers.is_continued_by(header):
            return ACCEPTED
        if origin is AppendOrigin.CLIENT or header.base_sequence != NO_SEQUENCE:
            duplicate = self.producers.find_duplicate(header, batch)
            if duplicate is not None:
                return AppendVerdict(
                    duplicate_base_offset=duplicate.base_offset,
                    duplicate_next_offset=duplicate.last_offset + 1,
                    duplicate_timestamp_ms=duplicate.timestamp_ms,
                )
        if header.is_transactional:
            refusal = self._check_enrolment(header, proof, is_verified, now_ms)
        else:
            refusal = self._check_owner(header, proof, is_verified, now_ms)
        if refusal is not None:
            return refusal
        chain_epoch = chain_epoch_of(ticket) if ticket is not None else NO_CHAIN
        error, is_early = self.producers.check_data(header, origin, chain_epoch)
        is_old = not header.is_transactional and self._verified.get(header.producer_id) != proof
        if error is ErrorCode.NONE and not is_old:
            return ACCEPTED
        return AppendVerdict(error=error, is_early=is_early, is_ticket_old=is_old)

    def decide_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> ErrorCode:
        """Whether to append a marker. ``producer_epoch`` is one above that of the data."""
        if self.role is not Role.LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)

    def _check_client(self, header: BatchHeader, transactional_id: str | None) -> ErrorCode:
        """Reject what only a coordinator may write, and a transaction without its id."""
        if self._is_internal:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if header.is_control:
            return ErrorCode.INVALID_RECORD
        if header.producer_id < 0:
            return ErrorCode.INVALID_RECORD
        if not transactional_id:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return ErrorCode.NONE

    def _check_owner(
        self, header: BatchHeader, proof: _Proof, is_verified: bool, now_ms: int
    ) -> AppendVerdict | None:
        """None if the plain batch's producer id is the sender's and not transactional."""
        if self.producers.is_transactional(header.producer_id):
            return AppendVerdict(error=ErrorCode.INVALID_TXN_STATE)
        # If the id has not written here yet, the verified ticket may be that of a transaction.
        if is_verified and self.producers.is_known(header.producer_id):
            return None
        if proof[0] is None:
            return AppendVerdict(error=ErrorCode.UNKNOWN_PRODUCER_ID)
        verdict = check_plain_ticket(
            proof[0], keys=self._keys, producer_id=header.producer_id, now_ms=now_ms
        )
        return self._refusal(header, proof, verdict, ErrorCode.UNKNOWN_PRODUCER_ID)

    def _check_enrolment(
        self, header: BatchHeader, proof: _Proof, is_verified: bool, now_ms: int
    ) -> AppendVerdict | None:
        """None if the batch may belong to an open or a properly enrolled transaction.

        The time used is never before the last scan that forgot producers: a ticket too old for that
        scan stays too old.
        """
        enrolment = self.producers.check_enrolment(header)
        if enrolment is BatchEnrolment.OPEN and is_verified:
            return None
        if enrolment is BatchEnrolment.FENCED:
            return AppendVerdict(error=ErrorCode.INVALID_PRODUCER_EPOCH)
        if enrolment is BatchEnrolment.OLDER_OPEN:
            return AppendVerdict(error=ErrorCode.CONCURRENT_TRANSACTIONS)
        ticket, transactional_id = proof
        if ticket is None:
            return AppendVerdict(error=ErrorCode.INVALID_TXN_STATE)
        verdict = check_ticket(
            ticket,
            keys=self._keys,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            transactional_id=transactional_id or "",
            topic_id=self._topic_id,
            partition=self.topic_partition.partition,
            now_ms=max(now_ms, self._latest_ms),
        )
        return self._refusal(header, proof, verdict, ErrorCode.INVALID_TXN_STATE)

    def _refusal(
        self, header: BatchHeader, proof: _Proof, verdict: TicketVerdict, invalid: ErrorCode
    ) -> AppendVerdict | None:
        """The verdict on a checked ticket; ``invalid`` is the code for an invalid one."""
        if verdict is TicketVerdict.NEWER_KEY:
            # As in KIP-890 while verification is impossible: the client retries the batch.
            return AppendVerdict(error=ErrorCode.NOT_ENOUGH_REPLICAS, needs_keys=True)
        if verdict is TicketVerdict.INVALID:
            return AppendVerdict(error=invalid)
        if proof[0] is not None and key_version_of(proof[0]) == self._keys.version:
            if len(self._verified) >= VERIFIED_TICKETS_MAX:
                self._verified.clear()
            self._verified[header.producer_id] = proof
        return None

    # --- apply -------------------------------------------------------------------------------

    def apply(
        self, header: BatchHeader, control: ControlRecord | None
    ) -> CompletedTransaction | None:
        """Apply a batch in the log at ``header.base_offset``; ``control`` is a marker's content.

        Returns the transaction that a marker closed. An aborted one must be in the aborted index
        before the high watermark may pass the marker. A control batch with ``control`` ``None``
        is one that compaction emptied: it only moves the log end.
        """
        if self.role is LOADING and header.base_offset < self._snapshot_offset:
            self.producers.apply_history(header)
            return None
        self._check_place(header)
        self._log_end_offset = header.base_offset + header.last_offset_delta + 1
        completed = None
        if header.producer_id >= 0:
            if header.is_plain:
                self.producers.apply_plain_data(header)
            elif not header.is_control:
                self.producers.apply_data(header)
            elif control is not None and control.committed is not None:
                completed = self.producers.apply_marker(header, control)
        self._check_bounds()
        return completed

    # --- producers ---------------------------------------------------------------------------

    def expire(self, now_ms: int, expiration_ms: int = PRODUCER_ID_EXPIRATION_MS) -> int:
        """Forget producers silent for ``expiration_ms``; return how many. Call it periodically."""
        expired_count = self.producers.expire(now_ms, expiration_ms)
        if expired_count:
            self._latest_ms = max(self._latest_ms, now_ms)
            self._verified.clear()
        return expired_count

    @property
    def producer_count(self) -> int:
        """Number of remembered producers."""
        return len(self.producers)

    @property
    def open_transaction_count(self) -> int:
        """Number of transactions that wait for their marker here."""
        return len(self.producers.transactions)

    def snapshot(self) -> list[ProducerSnapshotEntry]:
        """The producers' state before ``log_end_offset``, for a producer snapshot file."""
        return self.producers.snapshot()

    def describe_producers(
        self, producer_ids: Iterable[int] | None
    ) -> tuple[ProducerDescription, ...]:
        """Describe the requested producers, or all; unknown ones are left out."""
        return self.producers.describe(producer_ids)

    def markers_for(self, request: AbortHangingRequest) -> WriteTxnMarkersRequest | None:
        """The abort of just the transaction that is named; ``None`` if that is not open.

        The marker's epoch is one above that of the data, so it can end only that transaction or an
        older one. Its coordinator epoch is the one known here, so it fences no coordinator. Where
        nothing is open since that transaction the marker is written again, which changes nothing:
        the reply to the first call may be lost.
        """
        for one in self.producers.describe((request.producer_id,)):
            ended = (NO_OFFSET, request.producer_epoch + 1)
            found = (one.current_txn_first_offset, one.producer_epoch)
            if found in {(request.start_offset, request.producer_epoch), ended}:
                marker = TxnMarker(
                    producer_id=one.producer_id,
                    producer_epoch=request.producer_epoch + 1,
                    committed=False,
                    partitions=(self.topic_partition,),
                )
                epoch = max(one.coordinator_epoch, 0)
                return WriteTxnMarkersRequest(coordinator_epoch=epoch, markers=(marker,))
        return None

    def __str__(self) -> str:
        return (
            f"{self.topic_partition} ({self.role.value} in {self.leader_epoch}, "
            f"start {self._log_start_offset}, stable {self.last_stable_offset}, "
            f"watermark {self._high_watermark}, end {self._log_end_offset})"
        )

    # --- invariants --------------------------------------------------------------------------

    def _check_place(self, header: BatchHeader) -> None:
        """Check I-02 and I-08: a leader writes its own epoch at its log end; replay may have gaps.

        On replay an epoch begins with its first batch, unless it is known to have begun earlier.
        """
        base_offset, log_end_offset = header.base_offset, self._log_end_offset
        is_leader = self.role is LEADER
        if base_offset != log_end_offset and (is_leader or base_offset < log_end_offset):
            invariant(False, "I-02", f"{self}: batch at {base_offset}")
        if is_leader:
            if header.leader_epoch != self.leader_epoch:
                invariant(False, "I-08", f"{self}: batch of leader epoch {header.leader_epoch}")
        elif header.leader_epoch > self.leader_epochs.latest_epoch:
            self.leader_epochs.assign(header.leader_epoch, base_offset)
