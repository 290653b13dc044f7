"""Runs a durable machine on the log it leads: decide, append, wait, apply, reply.

One transition is in flight per key. A reply leaves only after its records are committed, and the
machine changes only through ``apply``, which reload uses as well. A transition needs no task: it is
decided and appended in the caller's turn of the event loop, and applied in the turn in which it is
committed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from msgspec import structs

from oncelog.actors.interfaces import Clock
from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.base import ReplyT
from oncelog.actors.replica.replica import Replica
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_LEADER_EPOCH

WAITING_PER_KEY_MAX: Final = 1_000
"""Maximum requests that wait for earlier ones of their key: some seconds' worth of syncs."""

APPEND_ERRORS: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.REPLICA_OFFLINE: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
"""Error of an append to an internal log → the client's error (KIP-98)."""


def client_error_of_append(error: ErrorCode) -> ErrorCode:
    """The code a client gets when an internal record could not be written with ``error``."""
    return APPEND_ERRORS.get(error, ErrorCode.UNKNOWN_SERVER_ERROR)


@dataclasses.dataclass(slots=True, kw_only=True)
class _Transition:
    """A request on its way through the machine; its caller may stop waiting for ``answer``."""

    key: str
    decide: Callable[[int], Decision[Any]]
    is_durable_before_reply: bool
    answer: asyncio.Future[Any]
    epoch: int = NO_LEADER_EPOCH


class CoordinatorRuntime:
    """The only way from a request to a durable machine and back.

    ``on_failure`` gets the exception of a committed record that could not be applied. Then the
    machine differs from its log, so the process must die and load again.
    """

    def __init__(
        self,
        *,
        replica: Replica,
        clock: Clock,
        apply: Callable[[LogRecord], None],
        abandon: Callable[[str], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.replica = replica
        self.is_loaded = False
        self._clock = clock
        self._apply = apply
        self._abandon = abandon
        self._on_failure = on_failure
        self._reported: BaseException | None = None
        self._queues: dict[str, deque[_Transition]] = {}
        """Key → the transition in flight and those that wait for it, oldest first."""

    @property
    def coordinator_epoch(self) -> int:
        """The leader epoch of the log partition this coordinator leads."""
        return self.replica.leader_epoch

    def unavailable(self) -> ErrorCode:
        """``NONE`` if requests can be served, else the error to answer."""
        error = self.replica.availability()
        if error is not ErrorCode.NONE:
            return client_error_of_append(error)
        return ErrorCode.NONE if self.is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    async def execute(
        self,
        key: str,
        decide: Callable[[int], Decision[ReplyT]],
        *,
        refused: Callable[[ErrorCode, str], ReplyT] | None = None,
        is_durable_before_reply: bool = True,
    ) -> ReplyT:
        """Run one transition of ``key``: ``decide(now_ms)``, append, wait, apply, reply.

        It begins at once, or after earlier ones of its key, first come, first served. Beyond
        ``WAITING_PER_KEY_MAX`` the reply is ``refused`` (a request's ``failed``) with a retriable
        error. Without ``refused`` it always waits: for this process's own transitions, at most one
        per key at a time.

        Without an error the records are durable, unless ``is_durable_before_reply`` is false: then
        they are in the log, before whatever this coordinator logs later. If the append fails the
        reply carries the error and the machine's pending mark is taken back; the next coordinator
        may still find the record.

        If the caller is cancelled the transition runs to its end, since what is in the log must be
        applied. An exception then goes to ``on_failure``.
        """
        queue = self._queues.get(key)
        if refused is not None and queue is not None and len(queue) > WAITING_PER_KEY_MAX:
            reason = f"{len(queue) - 1} requests wait already for one of the same key"
            return refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, reason)
        answer: asyncio.Future[ReplyT] = asyncio.get_running_loop().create_future()
        transition = _Transition(
            key=key,
            decide=decide,
            is_durable_before_reply=is_durable_before_reply,
            answer=answer,
        )
        if queue is None:
            self._queues[key] = deque((transition,))
            self._begin(transition)
        else:
            queue.append(transition)
        try:
            return await answer
        except asyncio.CancelledError:
            # It may have failed in the same turn in which its caller was cancelled.
            if not answer.cancelled() and (failure := answer.exception()) is not None:
                self._report(failure)
            raise

    def _begin(self, transition: _Transition) -> None:
        """Decide and append in one turn."""
        try:
            now_ms = self._clock.now_ms()
            decision = transition.decide(now_ms)
            if not decision.records:
                self._reply(transition, decision.reply)
                return
            transition.epoch = self.coordinator_epoch
            try:
                outcome = self.replica.append(
                    decision.records,
                    now_ms=now_ms,
                    is_awaited=transition.is_durable_before_reply,
                )
            except BaseException:
                self._abandon(transition.key)
                raise
        except BaseException as failure:
            self._fail(transition, failure)
            return
        if outcome.error is ErrorCode.NONE and transition.is_durable_before_reply:
            conclude = functools.partial(self._conclude, transition, decision)
            self.replica.when_committed(outcome.next_offset, conclude)
        else:
            self._conclude(transition, decision, outcome.error)

    def _conclude(self, transition: _Transition, decision: Decision[Any], error: ErrorCode) -> None:
        """The records are committed, or as far as this coordinator knows will not be."""
        if error is ErrorCode.NONE and transition.epoch != self.coordinator_epoch:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if error is not ErrorCode.NONE:
            self._abandon(transition.key)
            reply = structs.replace(decision.reply, error=client_error_of_append(error))
            self._reply(transition, reply)
            return
        try:
            for record in decision.records:
                self._apply(record)
        except BaseException as failure:
            self._report(failure)
            if not transition.answer.done():
                transition.answer.set_exception(failure)
            self._end(transition.key)
        else:
            self._reply(transition, decision.reply)

    def _reply(self, transition: _Transition, reply: Any) -> None:
        if not transition.answer.done():
            transition.answer.set_result(reply)
        self._end(transition.key)

    def _fail(self, transition: _Transition, failure: BaseException) -> None:
        """Raise a bug to the caller, or if that has gone, to ``on_failure``."""
        if not transition.answer.done():
            transition.answer.set_exception(failure)
        else:
            self._report(failure)
        self._end(transition.key)

    def _report(self, failure: BaseException) -> None:
        if failure is not self._reported:
            self._reported = failure
            self._on_failure(failure)

    def _end(self, key: str) -> None:
        """Begin the next transition of the key, in its own turn."""
        queue = self._queues[key]
        queue.popleft()
        if queue:
            asyncio.get_running_loop().call_soon(self._begin, queue[0])
        else:
            del self._queues[key]
