"""Runs a durable machine on top of the log it leads: decide, append, wait, apply, reply.

One transition is in flight per key. A reply leaves only after its records are committed, and the
machine changes only through ``apply``, which reload uses as well.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from oncelog.actors.interfaces import Clock
from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages import ReplyT
from oncelog.actors.replica import Replica
from oncelog.storage.errors import ErrorCode

APPEND_ERRORS: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.REPLICA_OFFLINE: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
"""What a failed append of an internal record means to the client (KIP-98)."""


def client_error_of_append(error: ErrorCode) -> ErrorCode:
    """The code a client gets when an internal record could not be written with ``error``."""
    return APPEND_ERRORS.get(error, ErrorCode.UNKNOWN_SERVER_ERROR)


class CoordinatorRuntime:
    """The one way from a request to a durable machine and back.

    ``on_failure`` is given what a committed record met when it was applied: the machine is then no
    longer what its log says, so the process has to die and load again.
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
        self._told: BaseException | None = None
        self._transitions: set[asyncio.Task[Any]] = set()
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @property
    def coordinator_epoch(self) -> int:
        """The leader epoch of the log partition this coordinator leads."""
        return self.replica.leader_epoch

    def unavailable(self) -> ErrorCode:
        """``NONE`` when requests can be served, else what to answer them with."""
        error = self.replica.availability()
        if error is not ErrorCode.NONE:
            return client_error_of_append(error)
        return ErrorCode.NONE if self.is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    async def execute(
        self,
        key: str,
        decide: Callable[[int], Decision[ReplyT]],
        *,
        is_durable_before_reply: bool = True,
    ) -> ReplyT:
        """Run one transition of ``key``: ``decide(now_ms)``, append, wait, apply, reply.

        On return with no error the records are durable, unless ``is_durable_before_reply`` is
        false: then they are in the log, ahead of whatever this coordinator logs later. When the
        append fails the reply carries why and the machine's pending mark is taken back; the
        record may still be found by the next coordinator. A caller that is cancelled leaves the
        transition to run to its end: what is in the log has to be applied. What it raises then is
        told to ``on_failure``, as there is nobody left to raise it to.
        """
        transition = asyncio.get_running_loop().create_task(
            self._execute(key, decide, is_durable_before_reply=is_durable_before_reply)
        )
        self._transitions.add(transition)
        transition.add_done_callback(self._transitions.discard)
        try:
            return await asyncio.shield(transition)
        except asyncio.CancelledError:
            transition.add_done_callback(self._ended_alone)
            raise

    def _ended_alone(self, transition: asyncio.Task[Any]) -> None:
        if not transition.cancelled() and (failure := transition.exception()) is not None:
            self._tell(failure)

    def _tell(self, failure: BaseException) -> None:
        if failure is not self._told:
            self._told = failure
            self._on_failure(failure)

    async def _execute(
        self,
        key: str,
        decide: Callable[[int], Decision[ReplyT]],
        *,
        is_durable_before_reply: bool,
    ) -> ReplyT:
        async with self._turn(key):
            now_ms = self._clock.now_ms()
            decision = decide(now_ms)
            if not decision.records:
                return decision.reply
            epoch = self.coordinator_epoch
            try:
                outcome = self.replica.append(
                    decision.records, now_ms=now_ms, is_awaited=is_durable_before_reply
                )
            except BaseException:
                self._abandon(key)
                raise
            error = outcome.error
            if error is ErrorCode.NONE and is_durable_before_reply:
                error = await self.replica.committed(outcome.next_offset)
            if error is ErrorCode.NONE and epoch != self.coordinator_epoch:
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if error is not ErrorCode.NONE:
                self._abandon(key)
                return dataclasses.replace(decision.reply, error=client_error_of_append(error))
            try:
                for record in decision.records:
                    self._apply(record)
            except BaseException as failure:
                self._tell(failure)
                raise
            return decision.reply

    @asynccontextmanager
    async def _turn(self, key: str) -> AsyncIterator[None]:
        """Hold the key's place in its queue; first come, first served."""
        lock, waiting = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._locks[key]
            if waiting == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, waiting - 1)
