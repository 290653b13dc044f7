"""Who holds a transactional id, and whether that producer lives: single writers by choice.

Rules. A producer that takes an id over may ask to be refused while another one lives, instead of
putting it out. For that the holder sends heartbeats; its id and timeout are in the id's record, and
when it was heard is in memory only. So a coordinator that starts counts each holder as heard at its
start: it never takes a living holder for a dead one. Every call that only the current holder can
make counts as a heartbeat.

| event | no holder with heartbeats | heard within its timeout | silent, or gone |
|---|---|---|---|
| heartbeat, current | heard | heard | heard |
| heartbeat, fenced | PRODUCER_FENCED | PRODUCER_FENCED | PRODUCER_FENCED |
| farewell, current | gone | gone | gone |
| its process has ended | - | gone | gone |
| init, may replace | replaced | replaced | replaced |
| init, refuse if alive | replaced | TRANSACTIONAL_ID_IN_USE | replaced |
| the same holder's init again | - | as at first | as at first |
| the coordinator starts | - | heard | heard |

*Current* is also who has the epoch before, if nobody has taken over: its transaction timed out, or
it missed a reply. An id that was heard is not idle and so does not expire, whoever holds it. That a
process has ended is news, and may be wrong: then its producer is fenced, as by a takeover without
the question.

Volatile: times are in milliseconds of any monotonic clock. Source: KIP-98, "Future work", has the
heartbeat; the rest is oncelog's own.
"""

from __future__ import annotations

from typing import Final

from oncelog.actors.protocol.messages.transaction import (
    Holder,
    InitProducerIdRequest,
    ProducerHeartbeatRequest,
)
from oncelog.actors.protocol.transaction.checks import Refusal
from oncelog.actors.protocol.transaction.end import EndAge, end_age, outdated
from oncelog.actors.protocol.transaction.ids import TransactionalIds
from oncelog.actors.protocol.transaction.transaction_state import (
    DECIDED,
    EpochCause,
    TransactionMetadata,
    next_producer,
)
from oncelog.storage.errors import ErrorCode

SPARE_MAX: Final = 64
"""Forgotten ids that may be remembered here, beyond as many as there are ids."""

_STILL_ITS_OWN: Final = frozenset({EpochCause.OWNER, EpochCause.TIMEOUT, EpochCause.OPERATOR})


class Holders:
    """When each id of the shard was last heard, or that its holder has gone."""

    def __init__(self, ids: TransactionalIds) -> None:
        self._ids = ids
        self._heard_ms: dict[str, int] = {}
        self._gone: set[str] = set()
        self._started_ms = 0

    def __len__(self) -> int:
        """How many ids are remembered."""
        return len(self._heard_ms)

    def started(self, now_ms: int) -> None:
        """The coordinator has loaded its log."""
        self._started_ms = now_ms

    def heard(self, transactional_id: str, now_ms: int) -> None:
        """The current holder has made a call."""
        self._gone.discard(transactional_id)
        self._heard_ms[transactional_id] = now_ms
        if len(self._heard_ms) > 2 * len(self._ids) + SPARE_MAX:
            known = self._ids.metadata
            self._heard_ms = {name: ms for name, ms in self._heard_ms.items() if known(name)}
            self._gone.intersection_update(self._heard_ms)

    def step(self, request: ProducerHeartbeatRequest, now_ms: int) -> Refusal | None:
        """Note a heartbeat, or a farewell; a code and a sentence if it is not the holder's."""
        name = request.transactional_id
        metadata = self._ids.metadata(name)
        if metadata is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, ""
        caller = (request.producer_id, request.producer_epoch)
        if not _is_holder(metadata, caller):
            return outdated(metadata, *caller)
        self.heard(name, now_ms)
        if request.is_leaving:
            self._gone.add(name)
        return None

    def ended(self, transactional_id: str, holder: Holder) -> None:
        """The process of ``holder`` has ended. No effect if another one has the id by now."""
        metadata = self._ids.metadata(transactional_id)
        if metadata is not None and metadata.holder == holder:
            self._gone.add(transactional_id)

    def is_alive(self, metadata: TransactionMetadata, now_ms: int) -> bool:
        """Whether the holder of an id sends heartbeats and was heard within its timeout."""
        name, holder = metadata.transactional_id, metadata.holder
        if holder is None or name in self._gone:
            return False
        heard_ms = max(self._heard_ms.get(name, self._started_ms), self._started_ms)
        return now_ms - heard_ms < holder.timeout_ms

    def refusal(self, request: InitProducerIdRequest, now_ms: int) -> Refusal | None:
        """Reject a takeover that is not to put out a living holder."""
        metadata = self._ids.metadata(request.transactional_id or "")
        if not request.refuse_if_alive or metadata is None or metadata.holder is None:
            return None
        is_same = request.holder is not None and request.holder.id == metadata.holder.id
        if is_same or not self.is_alive(metadata, now_ms):
            return None
        return ErrorCode.TRANSACTIONAL_ID_IN_USE, (
            f"another producer of {request.transactional_id!r} lives, with producer id "
            f"{metadata.producer_id} and epoch {metadata.producer_epoch}; it is replaced after "
            f"{metadata.holder.timeout_ms} ms of silence"
        )

    def was_heard_since(self, transactional_id: str, moment_ms: int) -> bool:
        """Whether an id was heard at that moment or later, so that it is not idle."""
        return self._heard_ms.get(transactional_id, moment_ms - 1) >= moment_ms


def _is_holder(metadata: TransactionMetadata, caller: tuple[int, int]) -> bool:
    if metadata.state in DECIDED and caller == next_producer(metadata):
        return True
    age = end_age(metadata, producer_id=caller[0], producer_epoch=caller[1])
    if age is EndAge.RETRY:
        return metadata.epoch_cause in _STILL_ITS_OWN
    return age is EndAge.CURRENT
