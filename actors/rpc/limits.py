"""Limits per principal at the door of an actor: ``protocol/quotas.py`` decides, ``Dispatch`` asks.

A throttled call is answered at once and says for how long its caller must wait; the listener reads
nothing of that connection meanwhile. Ray's own queue cannot be held: what Ray carries is counted
and told, no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from msgspec import structs

from oncelog.actors.process.clock import loop_ms
from oncelog.actors.process.metrics import THROTTLE_MS, THROTTLED_CALLS
from oncelog.actors.protocol.access import RAY, Principal
from oncelog.actors.protocol.messages.access import NO_LIMITS, Limits
from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.messages.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
)
from oncelog.actors.protocol.quotas import (
    OpenTransactions,
    Quotas,
    timeout_refusal,
)
from oncelog.actors.protocol.transaction.checks import check_transactional_id
from oncelog.actors.rpc.call_meter import CallReports
from oncelog.storage.errors import ErrorCode

AnyReply = TypeVar("AnyReply", bound=Reply)

Refusal = tuple[ErrorCode, str]
"""A rejection: the code, and a sentence for people."""

OnThrottle = Callable[[int], None]
"""Gets for how many ms the caller is to be read no further."""


def not_held(throttle_ms: int) -> None:
    """For a caller whose connection is not ours to hold."""


class Throttle:
    """What one call owes: its reply says how much of that is left when it goes out."""

    __slots__ = ("_until_ms",)

    def __init__(self, throttle_ms: int = 0) -> None:
        self._until_ms = loop_ms() + throttle_ms if throttle_ms else 0

    def told(self, reply: AnyReply) -> AnyReply:
        """``reply``, with what is left to wait; rounded up, so that the door is open by then."""
        if not self._until_ms:
            return reply
        left_ms = self._until_ms + 1 - loop_ms()
        return structs.replace(reply, throttle_ms=left_ms) if left_ms > 0 else reply


_FREE: Final = Throttle()


class PrincipalLimits:
    """The limits of all who call one actor."""

    def __init__(self, reports: CallReports) -> None:
        self._quotas = Quotas()
        self._reports = reports

    def spend(
        self, principal: Principal, limits: Limits, size_bytes: int, on_throttle: OnThrottle
    ) -> Throttle:
        """Count a request; if its principal is over a rate, ``on_throttle`` is called."""
        if limits is NO_LIMITS:
            return _FREE
        throttle_ms = self._quotas.spend(
            principal.name, limits, size_bytes=size_bytes, now_ms=loop_ms()
        )
        if not throttle_ms:
            return _FREE
        on_throttle(throttle_ms)
        # Names would be labels without a bound.
        tags = {"principal": "ray" if principal.name == RAY.name else "user"}
        self._reports.metrics.add(THROTTLED_CALLS, 1, tags)
        self._reports.metrics.add(THROTTLE_MS, throttle_ms, tags)
        return Throttle(throttle_ms)

    def owed_ms(self, principal: Principal, limits: Limits) -> int:
        """For how long a new connection is not read: to connect again repays no debt."""
        return self._quotas.owed_ms(principal.name, limits, loop_ms())

    @contextmanager
    def within(
        self, server: object, request: Request[Any], principal: Principal, limits: Limits
    ) -> Iterator[Request[Any] | Refusal]:
        """What of ``request`` its principal may ask of ``server``, or why nothing of it."""
        reason = timeout_refusal(request, principal.name, limits)
        if reason:
            yield ErrorCode.INVALID_TRANSACTION_TIMEOUT, reason
            return
        counted = open_transactions_of(server)
        limit = limits.open_transactions
        transactional_id = _may_open(request)
        if counted is None or limit is None or check_transactional_id(transactional_id):
            # It opens nothing, or the coordinator refuses its id.
            yield request
        elif not counted.begin(principal.name, transactional_id, limit):
            yield _without_opening(request) or (
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{principal.name} has {limit} open transactions at this coordinator, which is "
                f"its limit (open_transactions): {transactional_id!r} may begin once one has ended",
            )
        else:
            try:
                yield request
            finally:
                counted.end(transactional_id)


def open_transactions_of(server: object) -> OpenTransactions | None:
    """Who has transactions open at ``server``, if it coordinates any."""
    found = getattr(getattr(server, "shell", None), "open_transactions", None)
    return found if isinstance(found, OpenTransactions) else None


def _may_open(request: Request[Any]) -> str:
    """The id whose transaction ``request`` may open, or "": a commit may enrol for the next one."""
    if isinstance(request, AddPartitionsToTxnRequest | AddOffsetsToTxnRequest):
        return request.transactional_id
    if isinstance(request, EndTxnRequest) and request.next_partitions:
        return request.transactional_id
    return ""


def _without_opening(request: Request[Any]) -> Request[Any] | None:
    """An end counts; it only enrols nothing ahead."""
    if isinstance(request, EndTxnRequest):
        return structs.replace(request, next_partitions=())
    return None
