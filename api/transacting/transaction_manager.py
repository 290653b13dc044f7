"""The producer id, transaction and enrolments of one producer: what its batches need to be sent.

Source: Kafka's ``TransactionManager``, whose rules are in ``producer_transaction`` here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from oncelog.actors.protocol.messages.base import Reply
from oncelog.api.config import ProducerSettings
from oncelog.api.transacting.enrolment import ProducerEnrolments
from oncelog.api.transacting.producer_transaction import (
    ProducerIdentity,
    ProducerTransaction,
    TransactionStatus,
    abort_after,
    error_of_others,
    severity,
    unanswered,
)
from oncelog.api.transacting.requests import Fencing, PlainIdentities, TransactionRequests
from oncelog.storage.errors import ErrorClass, ErrorCode
from oncelog.storage.exceptions import OncelogError, exception_for
from oncelog.storage.model import NO_PRODUCER_ID, TopicPartition


class TransactionManager:
    """Knows what may be sent where. Without ``state`` there are no transactions, only an id.

    ``on_failed`` is called when the transaction, or the producer, cannot go on, with the error of
    all records whose outcome is unknown. Belongs to one event loop.
    """

    def __init__(
        self,
        *,
        requests: TransactionRequests,
        state: ProducerTransaction | None,
        settings: ProducerSettings,
        loop: asyncio.AbstractEventLoop,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        is_known: Callable[[TopicPartition], bool],
        on_failed: Callable[[OncelogError], None],
    ) -> None:
        self.identities = PlainIdentities(requests, spawn)
        self.fencing = Fencing(state=state, requests=requests, loop=loop)
        self.enrolments: ProducerEnrolments | None = None
        self._state = state
        self._settings = settings
        self._on_failed = on_failed
        if state is not None:
            self.enrolments = ProducerEnrolments(
                state=state,
                requests=requests,
                loop=loop,
                settings=settings,
                spawn=spawn,
                is_known=is_known,
            )

    @property
    def identity(self) -> ProducerIdentity | None:
        """The producer id and epoch in use; ``None`` before there is one."""
        if self._state is None:
            return self.identities.current
        identity = self._state.identity
        return identity if identity.producer_id != NO_PRODUCER_ID else None

    @property
    def is_sending(self) -> bool:
        """Whether batches may be sent."""
        return self._state is None or self._state.is_sending

    @property
    def is_transactional(self) -> bool:
        """Whether batches are sent in transactions."""
        return self._state is not None

    def is_ready(self, topic_partition: TopicPartition) -> bool:
        """Whether batches may be sent to a partition: it is enrolled, or there is an id."""
        if self._state is None:
            return self.identities.current is not None
        return topic_partition in self._state.tickets

    def credentials(
        self, topic_partition: TopicPartition
    ) -> tuple[ProducerIdentity, bytes | None] | None:
        """The identity and ticket for batches to a partition; ``None`` until it ``is_ready``."""
        if self._state is not None:
            ticket = self._state.tickets.get(topic_partition)
            return None if ticket is None else (self._state.identity, ticket)
        identity = self.identities.current
        return None if identity is None else (identity, None)

    def is_enrolled_by_habit(self) -> bool:
        """Whether the first enrolment of the transaction will probably have all partitions."""
        return self.enrolments is not None and bool(self.enrolments.expected())

    def follows_closely(self) -> bool:
        """Whether a record now is best written where the last ones were; in any thread."""
        return self.enrolments is not None and self.enrolments.follows_closely()

    async def get_identity(self) -> None:
        """Get a producer id, for a producer without transactions; raises if there is none."""
        self.identities.current = await self.identities.fresh()

    async def enrol(self, partitions: Collection[TopicPartition]) -> bool:
        """Enrol partitions and keep their tickets; if it returns false, ``state`` says why."""
        state = self._state
        if state is None or self.enrolments is None or not state.is_sending:
            return False
        # The coordinator may know of the transaction from the first attempt on, even without a
        # reply, so it must be ended there.
        state.has_work = True
        reply = await self.enrolments.enrol(partitions)
        if reply.error is not ErrorCode.NONE:
            self.failed("add_partitions_to_txn", reply)
            return False
        return True

    # --- failures -----------------------------------------------------------------------------

    def fail(self, error: OncelogError, weight: ErrorClass) -> None:
        """The transaction cannot continue or, with a fatal ``weight``, the producer cannot."""
        if self._state is None:
            return
        self._state.fail(error, weight)
        is_fatal = self._state.status is TransactionStatus.FATAL_ERROR
        self._on_failed(error_of_others(error, is_fatal=is_fatal))

    def batch_failed(self, error: OncelogError) -> None:
        """A batch failed for good: its transaction, if there is one, cannot commit."""
        self.fail(error, severity("produce", error.code))

    def failed(
        self, method: str, reply: Reply, call_again: str = "", limit: str = ""
    ) -> OncelogError:
        """The exception for a final ``reply``; the transaction's state notes its weight.

        A retriable code means that time ran out. With ``call_again`` the state stays as it is, and
        the application repeats the call; without it the transaction is spoilt. ``limit`` is the
        time that the call had.
        """
        weight = severity(method, reply.error)
        if weight is ErrorClass.RETRIABLE and call_again:
            limit = limit or f"max_block_ms={self._settings.max_block_ms}"
            return unanswered(call_again, reply, limit)
        detail = f"{method}: {reply.detail or exception_for(reply.error)}"
        error = exception_for(reply.error, detail)
        self.fail(error, weight)
        is_over = self._state is None or self._state.status is not TransactionStatus.ABORTABLE_ERROR
        return error if is_over or error.abortable else abort_after(error)

    def crashed(self, crash: OncelogError) -> None:
        """The producer has met a bug: nothing of the transaction may be committed."""
        if self._state is not None:
            self._state.fail(crash, ErrorClass.FATAL)

    def close(self) -> None:
        """Cancel the timer of a transaction that was begun ahead."""
        if self.enrolments is not None:
            self.enrolments.close()
