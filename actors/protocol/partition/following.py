"""The follower's side of replication: what to append of a push, and what to cut first.

Rules. A follower appends batches only where its log agrees with the leader's at the batch before
(log matching). It keeps what both have and cuts only what the leader cannot have: a batch that
conflicts with one of the leader's, or one of an older epoch at or after the start of the leader's
epoch. So a late or repeated push cuts nothing. It never cuts below its high watermark. What it
acknowledges is synced, and its high watermark covers nothing else.

A follower adopts a newer leader epoch from the push itself: the controller gave it to the leader
before that could push. A follower that forgot it could accept batches from an older leader again,
and cut what the newer one relies on. So a replica that starts is LOADING until the controller has
told it the current epoch, which is not older than that of any push it accepted. How far the logs
agree is only in memory: a replica that restarts begins anew.

=========  ============================================  ========================================
role       push                                          answer
=========  ============================================  ========================================
LOADING    any                                           NOT_LEADER_OR_FOLLOWER
any        of another topic id                           UNKNOWN_TOPIC_ID
any        of an older epoch than is known               FENCED_LEADER_EPOCH, and which is known
any        of a newer epoch                              adopts it and follows
LEADER     of its own epoch                              INVALID_REQUEST: an epoch has one leader
FOLLOWER   of its epoch, by another leader               INVALID_REQUEST
FOLLOWER   with a batch that is damaged, out of order,   CORRUPT_MESSAGE
           or of a newer epoch than the push
FOLLOWER   from beyond the log end                       diverging: where its log ends
FOLLOWER   where the epoch before is another             diverging: where that epoch ends in its log
FOLLOWER   where its log knows no epoch                  diverging: cut to the high watermark
FOLLOWER   from the leader's log start, beyond the log   drops its log and restarts there
           end or with a first batch that it lacks,
           unless the logs are known to agree
FOLLOWER   else                                          cuts what conflicts, appends what it lacks
FOLLOWER   that would cut below the high watermark       KAFKA_STORAGE_ERROR, for an operator
=========  ============================================  ========================================

Source: KIP-101, KIP-279; raft's AppendEntries, which also cuts at conflicts only.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition.bounds import Role
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_LEADER_EPOCH, NO_OFFSET
from oncelog.storage.records.batch import BatchHeader, crc_matches, iterate_batches
from oncelog.storage.segments.leader_epochs import (
    UNDEFINED_END,
    LeaderEpochPairs,
    end_of_epoch,
    epoch_span,
)


class ReplicateVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with a push, in this order, in one turn; then sync, and ``acknowledge``.

    ``adopts_epoch``: become a follower in the push's epoch. ``restart_offset``: drop the whole log;
    the new one begins and ends there. ``truncate_offset`` (exclusive): cut every batch that reaches
    beyond it. Both rebuild the machine from what is left. ``append_position``: where in ``batches``
    the bytes to append begin. ``agreed_offset`` (exclusive): up to there the log then equals the
    leader's. With an ``error`` there is nothing to do but answer.
    """

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    adopts_epoch: bool = False
    restart_offset: int = NO_OFFSET
    truncate_offset: int = NO_OFFSET
    append_position: int = 0
    agreed_offset: int = NO_OFFSET
    diverging_epoch: int = NO_LEADER_EPOCH
    diverging_end_offset: int = NO_OFFSET


class _Log(NamedTuple):
    """The follower's log before it is cut."""

    start_offset: int
    end_offset: int
    high_watermark: int
    epochs: LeaderEpochPairs

    def epoch_at(self, offset: int) -> int | None:
        return epoch_span(self.epochs, offset)[0]


class FollowerReplication:
    """A replica that follows; ``machine`` is its own. ``decide`` changes nothing."""

    __slots__ = ("_agreed_epoch", "_agreed_offset", "_leader", "_machine", "_topic_id")

    def __init__(self, machine: PartitionMachine, topic_id: str) -> None:
        self._machine = machine
        self._topic_id = topic_id
        self._agreed_epoch = NO_LEADER_EPOCH
        self._agreed_offset = NO_OFFSET
        """Exclusive: up to here the log equals that of the leader in ``_agreed_epoch``."""
        self._leader = -1

    @property
    def known_epoch(self) -> int:
        """The newest leader epoch that this replica knows, from the controller or its log."""
        return max(self._machine.leader_epoch, self._machine.leader_epochs.latest_epoch)

    # --- decide ------------------------------------------------------------------------------

    def decide(self, request: ReplicateRequest) -> ReplicateVerdict:
        """Decide about a push. Changes nothing."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        try:
            batches = _checked_batches(request)
        except CorruptDataError as error:
            return ReplicateVerdict(error=ErrorCode.CORRUPT_MESSAGE, detail=str(error))
        machine = self._machine
        log = _Log(
            machine.log_start_offset,
            machine.log_end_offset,
            machine.high_watermark,
            machine.leader_epochs.entries,
        )
        adopts = machine.leader_epoch < request.leader_epoch
        if log.end_offset < request.log_start_offset == request.previous_end_offset:
            return _restarted(request, batches, adopts=adopts)
        if not _agrees(log, request):
            return _diverged(log, request, adopts=adopts)
        verdict = _taken(log, request, batches, adopts=adopts)
        takes_first = bool(batches) and verdict.append_position == 0
        if verdict.error is ErrorCode.NONE and takes_first and self._is_unproven(log, request):
            return _restarted(request, batches, adopts=adopts)
        return verdict

    def _is_unproven(self, log: _Log, request: ReplicateRequest) -> bool:
        """Whether only the leader's log start, and no batch, shows that the logs agree there.

        Unless the first batch is there already, what is below may be from another log, and producer
        state from it must not be trusted.
        """
        offset = request.previous_end_offset
        if self._agreed_epoch == request.leader_epoch and offset <= self._agreed_offset:
            return False
        return log.start_offset < offset == request.log_start_offset

    def _refusal(self, request: ReplicateRequest) -> ReplicateVerdict | None:
        machine, known = self._machine, self.known_epoch
        if machine.role is Role.LOADING:
            return ReplicateVerdict(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if request.topic_id != self._topic_id:
            return ReplicateVerdict(error=ErrorCode.UNKNOWN_TOPIC_ID)
        if request.leader_epoch < known:
            return ReplicateVerdict(error=ErrorCode.FENCED_LEADER_EPOCH)
        if request.leader_epoch > known:
            return None
        if machine.role is Role.LEADER:
            detail = f"this replica leads in epoch {known}, {request.leader} says it does"
            return ReplicateVerdict(error=ErrorCode.INVALID_REQUEST, detail=detail)
        if self._agreed_epoch == known and request.leader != self._leader:
            detail = f"{self._leader} leads in epoch {known}, {request.leader} says it does"
            return ReplicateVerdict(error=ErrorCode.INVALID_REQUEST, detail=detail)
        return None

    # --- done --------------------------------------------------------------------------------

    def done(self, request: ReplicateRequest, verdict: ReplicateVerdict) -> None:
        """All of ``verdict`` has been done, in the turn in which it was decided."""
        if verdict.error is not ErrorCode.NONE:
            return
        if self._agreed_epoch != request.leader_epoch:
            self._agreed_epoch, self._agreed_offset = request.leader_epoch, NO_OFFSET
            self._leader = request.leader
        self._agreed_offset = max(self._agreed_offset, verdict.agreed_offset)

    def acknowledge(
        self, request: ReplicateRequest, verdict: ReplicateVerdict, synced_end_offset: int
    ) -> ReplicateReply:
        """The answer, once the log is synced up to ``synced_end_offset`` (exclusive).

        Moves the high watermark and the log start. If another epoch came during the sync, what
        was appended may be gone already.
        """
        machine = self._machine
        if verdict.error is not ErrorCode.NONE:
            return ReplicateReply(
                error=verdict.error, detail=verdict.detail, leader_epoch=self.known_epoch
            )
        if machine.role is Role.LOADING:
            return ReplicateReply(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.known_epoch != request.leader_epoch or machine.role is Role.LEADER:
            return ReplicateReply(
                error=ErrorCode.FENCED_LEADER_EPOCH, leader_epoch=self.known_epoch
            )
        if verdict.diverging_end_offset != NO_OFFSET:
            return ReplicateReply(
                log_end_offset=machine.log_end_offset,
                diverging_epoch=verdict.diverging_epoch,
                diverging_end_offset=verdict.diverging_end_offset,
            )
        safe_offset = min(synced_end_offset, self._agreed_offset)
        machine.advance_log_start(min(request.log_start_offset, safe_offset))
        machine.advance_high_watermark(min(request.high_watermark, safe_offset))
        return ReplicateReply(log_end_offset=safe_offset)


# --- rules -----------------------------------------------------------------------------------


def _checked_batches(request: ReplicateRequest) -> list[tuple[int, BatchHeader]]:
    """Position and header of each batch; ``CorruptDataError`` if one is damaged or misplaced."""
    found: list[tuple[int, BatchHeader]] = []
    end_offset, epoch, position = request.previous_end_offset, request.previous_leader_epoch, 0
    for position, header in iterate_batches(request.batches):
        # The first batch may begin before the log start: records of a batch go one by one.
        reaches_back = not found and end_offset == request.log_start_offset < header.next_offset
        if header.base_offset < end_offset and not reaches_back:
            raise CorruptDataError(f"batch at {header.base_offset} after {end_offset}")
        if not epoch <= header.leader_epoch <= request.leader_epoch:
            raise CorruptDataError(f"batch of epoch {header.leader_epoch} after {epoch}")
        if not crc_matches(request.batches, header, position):
            raise CorruptDataError(f"batch at {header.base_offset} does not match its CRC")
        found.append((position, header))
        end_offset, epoch = header.next_offset, header.leader_epoch
        position += header.size_bytes
    if position != len(request.batches):
        raise CorruptDataError(f"{len(request.batches) - position} bytes are not a whole batch")
    return found


def _agrees(log: _Log, request: ReplicateRequest) -> bool:
    """Whether the log equals the leader's up to where the push begins.

    Two batches of one epoch at one offset are the same, and so is everything before them. Below
    either log start everything was committed.
    """
    offset = request.previous_end_offset
    if offset > log.end_offset:
        return False
    if offset <= max(log.start_offset, request.log_start_offset):
        return True
    epoch = log.epoch_at(offset - 1)
    if epoch is None:
        return offset <= log.high_watermark
    return epoch == request.previous_leader_epoch


def _diverged(log: _Log, request: ReplicateRequest, *, adopts: bool) -> ReplicateVerdict:
    """Tell the leader where to probe; without epochs only committed batches are known to agree."""
    offset = request.previous_end_offset
    if not log.epochs or (offset <= log.end_offset and log.epoch_at(offset - 1) is None):
        cuts = log.high_watermark < log.end_offset
        return ReplicateVerdict(
            adopts_epoch=adopts,
            truncate_offset=log.high_watermark if cuts else NO_OFFSET,
            append_position=len(request.batches),
            diverging_end_offset=log.high_watermark,
        )
    latest_epoch = log.epochs[-1][0]
    epoch, end_offset = latest_epoch, log.end_offset
    if offset <= log.end_offset:
        known = end_of_epoch(
            log.epochs, request.previous_leader_epoch, log_end_offset=log.end_offset
        )
        epoch, end_offset = (latest_epoch, log.end_offset) if known == UNDEFINED_END else known
    return ReplicateVerdict(
        adopts_epoch=adopts,
        append_position=len(request.batches),
        diverging_epoch=epoch,
        diverging_end_offset=end_offset,
    )


def _restarted(
    request: ReplicateRequest, batches: list[tuple[int, BatchHeader]], *, adopts: bool
) -> ReplicateVerdict:
    """The leader no longer has anything of this log: restart at the leader's log start."""
    start_offset, end_offset = request.log_start_offset, request.previous_end_offset
    if batches:
        start_offset = min(start_offset, batches[0][1].base_offset)
        end_offset = batches[-1][1].next_offset
    return ReplicateVerdict(
        adopts_epoch=adopts, restart_offset=start_offset, agreed_offset=end_offset
    )


def _taken(
    log: _Log, request: ReplicateRequest, batches: list[tuple[int, BatchHeader]], *, adopts: bool
) -> ReplicateVerdict:
    """Cut from the first conflict on, and append from the first batch that is not there."""
    end_offset = batches[-1][1].next_offset if batches else request.previous_end_offset
    position, truncate_offset = _first_missing(log, request, batches)
    if truncate_offset == NO_OFFSET and position == len(request.batches):
        older = max(end_offset, request.epoch_start_offset)
        if older < log.end_offset and log.epoch_at(older) != request.leader_epoch:
            truncate_offset = older
    if NO_OFFSET < truncate_offset < log.high_watermark:
        detail = (
            f"the log of leader {request.leader} in epoch {request.leader_epoch} has other "
            f"records from {truncate_offset} on, below the high watermark {log.high_watermark}"
        )
        return ReplicateVerdict(error=ErrorCode.KAFKA_STORAGE_ERROR, detail=detail)
    return ReplicateVerdict(
        adopts_epoch=adopts,
        truncate_offset=truncate_offset,
        append_position=position,
        agreed_offset=end_offset,
    )


def _first_missing(
    log: _Log, request: ReplicateRequest, batches: list[tuple[int, BatchHeader]]
) -> tuple[int, int]:
    """Position of the first batch to append, and where to cut before that (-1: nowhere)."""
    for position, header in batches:
        if header.base_offset >= log.end_offset:
            return position, NO_OFFSET
        if header.next_offset <= log.start_offset:
            continue
        # Of one epoch at one offset there is one batch, so the epoch tells whether it is there.
        if log.epoch_at(max(header.base_offset, log.start_offset)) != header.leader_epoch:
            return position, header.base_offset
    return len(request.batches), NO_OFFSET
