"""How a producer's partitions are enrolled in its transactions: on demand, by habit, or ahead.

Nothing is sent to a partition before its enrolment is known to be durable. If a producer runs
transactions back to back on the same partitions, its commit *enrols ahead*: the coordinator begins
the next transaction with them. The first record or offset of the next transaction takes it over.
If none comes soon it is aborted, at the latest before anything is enrolled by a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnReply,
    EndTxnReply,
    EndTxnRequest,
    PartitionEnrolment,
)
from oncelog.api.config import ProducerSettings
from oncelog.api.transacting.producer_transaction import ProducerIdentity, ProducerTransaction
from oncelog.api.transacting.requests import TransactionRequests
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

TIMEOUT_SHARE: Final = 10
"""Take over only while at most one part in this many of the transaction timeout has passed."""

END_WITHIN_MS: Final = 1_000
"""How long an end in the background may take before it is left to the next enrolment."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A transaction that the coordinator has begun, at ``asked_s`` or later, and its tickets."""

    asked_s: float
    tickets: Mapping[TopicPartition, bytes]


class ProducerEnrolments:
    """The enrolments of one transactional producer. Belongs to one event loop.

    ``is_known`` says whether the metadata of a partition's topic is cached.
    """

    def __init__(
        self,
        *,
        state: ProducerTransaction,
        requests: TransactionRequests,
        loop: asyncio.AbstractEventLoop,
        settings: ProducerSettings,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        is_known: Callable[[TopicPartition], bool],
    ) -> None:
        self._state = state
        self._requests = requests
        self._loop = loop
        self._spawn = spawn
        self._is_known = is_known
        self._age_max_s: Final = settings.transaction_timeout_ms / TIMEOUT_SHARE / 1_000
        self._ahead_s: Final = settings.enrol_ahead_ms / 1_000
        self._habit = EnrolmentHabit()
        self._is_prompt = False
        """Whether the open transaction enrolled its first partitions right after the last one."""
        self._asked_s: float | None = None
        """When the commit of the open transaction was first sent."""
        self._ended_s: float | None = None
        self._begun: _Begun | None = None
        """Begun ahead and untouched since: to be taken over, or ended."""
        self._must_end = False
        """Whether it must be ended: it may no longer be taken over."""
        self._ending = asyncio.Lock()
        self._expiry_timer: asyncio.TimerHandle | None = None

    def expected(self) -> Collection[TopicPartition]:
        """What a transaction that has enrolled nothing yet will probably write to."""
        if self._state.tickets:
            return ()
        return [tp for tp in self._habit.expected if self._is_known(tp)]

    def follows_closely(self) -> bool:
        """Whether a transaction has begun to write, or would soon after the last one.

        It then costs less in partitions that are enrolled, now or by the last commit. Any thread
        may ask.
        """
        return bool(self._state.tickets) or self._is_soon()

    def _is_soon(self) -> bool:
        ended_s = self._ended_s
        return ended_s is not None and self._loop.time() - ended_s <= self._ahead_s

    async def enrol(self, partitions: Collection[TopicPartition]) -> AddPartitionsToTxnReply:
        """Enrol ``partitions`` in the open transaction and keep their tickets."""
        state = self._state
        if not state.tickets:
            self._begin()
        wanted = [tp for tp in partitions if tp not in state.tickets]
        if not wanted:
            return AddPartitionsToTxnReply()
        end = await self.end_ahead()
        if end.error is not ErrorCode.NONE:
            return AddPartitionsToTxnReply(error=end.error, detail=end.detail)
        reply = await self._requests.add_partitions(
            state.transactional_id, state.identity, wanted, expected=self.expected()
        )
        if reply.error is ErrorCode.NONE:
            state.enrolled(_tickets(reply.enrolments))
        return reply

    def _begin(self) -> None:
        """Begin the transaction, with what was begun ahead if that is recent enough.

        Not at ``begin_transaction``: an application may wait longer than the timeout after that.
        """
        self._is_prompt = self._is_soon()
        begun = self._begun
        if begun is None or not self._is_fresh(begun):
            return
        self._begun = None
        # Without its ticket a partition is enrolled again, which changes nothing.
        self._state.enrolled({tp: ticket for tp, ticket in begun.tickets.items() if ticket})

    def _is_fresh(self, begun: _Begun) -> bool:
        return self._loop.time() - begun.asked_s <= self._age_max_s

    # --- ahead --------------------------------------------------------------------------------

    def wanted_ahead(self, written: Collection[TopicPartition]) -> tuple[TopicPartition, ...]:
        """What the commit of a transaction that wrote to ``written`` is to enrol in the next.

        Call it whenever the commit is sent or resent.
        """
        if self._asked_s is None:
            self._asked_s = self._loop.time()
        is_wanted = self._is_prompt and 0 < self._ahead_s <= self._age_max_s
        return tuple(sorted(self._habit.following(written))) if is_wanted else ()

    def ended(self, written: Collection[TopicPartition], reply: EndTxnReply | None = None) -> None:
        """Note that a transaction that wrote ``written`` has ended, with a ``reply`` if called."""
        asked_s, self._asked_s = self._asked_s, None
        self._is_prompt = False
        self._habit.ended(written)
        self._ended_s = self._loop.time()
        if reply is None:
            return
        self.close()
        self._begun, self._must_end = None, False
        if reply.enrolments and asked_s is not None:
            self._begun = _Begun(asked_s, _tickets(reply.enrolments))
            patience_s = self._ahead_s if self._is_fresh(self._begun) else 0
            self._expiry_timer = self._loop.call_later(patience_s, self._on_expiry)

    async def end_ahead(self, *, within_ms: int | None = None) -> EndTxnReply:
        """Abort a transaction begun ahead and not taken over, if any; safe to repeat."""
        async with self._ending:
            if self._begun is None and not self._must_end:
                return EndTxnReply()
            self._begun, self._must_end = None, True
            state = self._state
            reply = await self._requests.end(
                EndTxnRequest(
                    transactional_id=state.transactional_id,
                    committed=False,
                    producer_id=state.identity.producer_id,
                    producer_epoch=state.identity.producer_epoch,
                ),
                within_ms=within_ms,
            )
            if reply.error is ErrorCode.NONE:
                self._must_end = False
                state.identity = ProducerIdentity(
                    producer_id=reply.producer_id, producer_epoch=reply.producer_epoch
                )
            return reply

    def close(self) -> None:
        """Cancel the timer that ends a transaction begun ahead."""
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()

    def _on_expiry(self) -> None:
        if self._begun is not None:
            self._spawn(self._end_expired())

    async def _end_expired(self) -> None:
        # If this fails, the next enrolment ends it first and reports a failure.
        await self.end_ahead(within_ms=END_WITHIN_MS)


def _tickets(enrolments: Iterable[PartitionEnrolment]) -> dict[TopicPartition, bytes]:
    return {enrolment.topic_partition: enrolment.ticket for enrolment in enrolments}


# --- habit ----------------------------------------------------------------------------------------


EXPECTED_MAX: Final = 64
"""No more partitions are expected: needless markers would cost more than the wait."""


class EnrolmentHabit:
    """The partitions that a transaction will probably write: those of both of the last two. Pure.

    A producer that writes the same partitions again and again can enrol all of them with its first
    record, while other records are still being accumulated.
    """

    __slots__ = ("_last", "expected")

    def __init__(self) -> None:
        self._last: frozenset[TopicPartition] = frozenset()
        self.expected: frozenset[TopicPartition] = frozenset()
        """Of the next transaction; empty if unknown or too many."""

    def following(self, written: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """The partitions expected of the transaction after one that writes ``written``."""
        both = self._last.intersection(written)
        return both if len(both) <= EXPECTED_MAX else frozenset()

    def ended(self, written: Collection[TopicPartition]) -> None:
        """Note that a transaction that wrote ``written`` has ended."""
        self.expected = self.following(written)
        self._last = frozenset(written)
