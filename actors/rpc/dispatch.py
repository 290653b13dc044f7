"""Answers a call at the called actor, whether it came through Ray or over a connection.

A request arrives as bytes of ``message_codec``, a method of the actor's server answers it, and an
``Outcome`` goes back with the bytes that it describes. No method sees what its caller may not do
(``protocol/access.py``), or what exceeds its limits (``limits.py``). Log lines about faulty callers
are limited per minute.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from msgspec import structs

from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.access import Principal, Verdict
from oncelog.actors.protocol.messages.access import NO_LIMITS, Limits
from oncelog.actors.protocol.messages.base import Reply, ReplyT, Request
from oncelog.actors.protocol.messages.partition import FetchTogetherRequest
from oncelog.actors.rpc import message_codec
from oncelog.actors.rpc.call_meter import CALLEE, NO_REPORTS, CallMeter, CallReports, MeteredCall
from oncelog.actors.rpc.door import Door
from oncelog.actors.rpc.frames import Outcome
from oncelog.actors.rpc.limits import OnThrottle, PrincipalLimits, Throttle, not_held
from oncelog.storage.errors import ErrorCode, InvariantViolation

if TYPE_CHECKING:
    from oncelog.storage.records.batch import Buffer

_logger = logging.getLogger(__name__)

Answer: TypeAlias = "tuple[Outcome, tuple[Buffer, ...]]"
"""The outcome of a call and its bytes."""

LINES_PER_MINUTE_MAX: Final = 60
SHOWN_CHARS_MAX: Final = 249
"""Of a name or an error in such a line, which may be as long as its caller likes."""

_MINUTE_MS: Final = 60_000


class Audit(Protocol):
    """Is told what was decided about calls and logins; never raises and never waits."""

    def judged(self, who: Principal, host: str, method: str, verdicts: list[Verdict], /) -> None:
        """Take what was decided about one call; nothing if a server made it."""
        ...

    def login_refused(self, name: str, host: str, /) -> None:
        """Take that a caller was not believed to be the user ``name``."""
        ...


class _NoAudit:
    def judged(self, *_: object) -> None:
        """Do nothing."""

    def login_refused(self, *_: object) -> None:
        """Do nothing."""


NO_AUDIT: Final = _NoAudit()


class Dispatch:
    """Answers calls with the request methods of ``server``.

    A call of ``method/key`` is for a replica in ``server``, which ``find`` returns. ``on_bug`` ends
    the process if a call meets a broken invariant. ``door`` has the rules, and answers requests
    about them; ``directory`` those for what any actor of the cluster can tell.
    """

    def __init__(
        self,
        server: object,
        *,
        on_bug: Callable[[InvariantViolation], None],
        reports: CallReports = NO_REPORTS,
        find: Callable[[str], object | None] | None = None,
        door: Door | None = None,
        audit: Audit = NO_AUDIT,
        directory: object | None = None,
    ) -> None:
        self.server = server
        self.door = door or Door()
        self._directory = directory
        self._find = find
        self.answered_calls = 0
        self.warnings = LogBudget(_logger)
        self.meter = CallMeter(CALLEE, reports)
        self.limits = PrincipalLimits(reports)
        self._on_bug = on_bug
        self.audit: Audit = audit

    async def answer(
        self,
        name: str,
        message: bytes | memoryview,
        principal: Principal,
        host: str = "",
        on_throttle: OnThrottle = not_held,
    ) -> Answer:
        """Answer one call of the method ``name`` by ``principal``, which calls from ``host``.

        ``on_throttle`` is called before that if the principal is over its limits.
        """
        name, _, key = name.partition("/")
        call = self.meter.begin(name, len(message))
        limits = self.door.limits(principal)
        throttle = self.limits.spend(principal, limits, len(message), on_throttle)
        is_known = name in message_codec.REQUESTS
        server = self._shared(name) or self._server(key)
        method = getattr(server, name, None) if is_known else None
        if not is_known or (method is None and server is not None):
            return self._refused(call, f"it has no method {name!r}")
        try:
            request = message_codec.decode_request(name, message)
        except ValueError as error:
            return self._refused(call, f"not a request of {name!r}: {error}")
        verdicts: list[Verdict] = []
        asked = self.door.judge(request, principal, host, verdicts)
        self.audit.judged(principal, host, name, verdicts)
        if isinstance(asked, ErrorCode):
            return self._forbidden(call, principal, request, asked, verdicts, throttle)
        if method is None:
            # As if its actor did not exist: the caller then looks up where it is now.
            absent = throttle.told(request.reply_type(error=ErrorCode.NETWORK_EXCEPTION))
            encoded = message_codec.encode(absent)
            return self._ended(call, absent.error, Outcome.REPLY, (encoded,))
        self.answered_calls += 1
        try:
            allowed = self._own(asked.request, principal)
            if allowed is None:
                reply = request.reply_type()
            elif limits is NO_LIMITS:
                reply = await method(allowed)
            else:
                reply = await self._limited(server, method, allowed, principal, limits)
            reply = throttle.told(asked.join(reply))
            parts = message_codec.encode_in_parts(reply)
        except InvariantViolation as bug:
            self._on_bug(bug)
            raise
        except Exception as error:
            _logger.exception("%r.%s raised — this is a bug: report it with this log", server, name)
            parts = (repr(error).encode(),)
            return self._ended(call, ErrorCode.UNKNOWN_SERVER_ERROR, Outcome.FAILED, parts)
        return self._ended(call, reply.error, Outcome.REPLY, parts)

    def _own(self, request: Request[Any] | None, principal: Principal) -> Request[Any] | None:
        """Fetches wait beyond the call that was judged: under these rules, for who asked alone.

        Once rules change or another principal names the session, it is a new one: its fetches are
        asked for again, and judged.
        """
        if not isinstance(request, FetchTogetherRequest):
            return request
        session_id = f"{principal.name} {self.door.version} {request.session_id}"
        return structs.replace(request, session_id=session_id)

    async def _limited(
        self,
        server: object,
        method: Callable[[Any], Awaitable[Any]],
        request: Request[Any],
        principal: Principal,
        limits: Limits,
    ) -> Any:
        """Call ``method`` with what of ``request`` is within the limits of its principal."""
        with self.limits.within(server, request, principal, limits) as within:
            if isinstance(within, Request):
                return await method(within)
            return request.failed(*within)

    async def answer_here(self, key: str, request: Request[ReplyT]) -> ReplyT:
        """Answer a call from this same process."""
        server = self._server(key)
        if server is None:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        self.answered_calls += 1
        try:
            reply: ReplyT = await getattr(server, request.method)(request)
        except InvariantViolation as bug:
            self._on_bug(bug)
            raise
        except Exception as error:
            _logger.exception(
                "%r.%s raised — this is a bug: report it with this log", server, request.method
            )
            return request.failed(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error))
        return reply

    def _shared(self, name: str) -> object | None:
        """What answers requests of this name in every process."""
        if hasattr(Door, name):
            return self.door
        return self._directory if hasattr(self._directory, name) else None

    def _server(self, key: str) -> object | None:
        if not key:
            return self.server
        return None if self._find is None else self._find(key)

    def _refused(self, call: MeteredCall, reason: str) -> Answer:
        reason = _shown(reason)
        self.warnings.warn(
            "%r refused a call: %s — give both sides the same version of oncelog",
            *(self.server, reason),
        )
        return self._ended(call, ErrorCode.INVALID_REQUEST, Outcome.REFUSED, (reason.encode(),))

    def _forbidden(
        self,
        call: MeteredCall,
        principal: Principal,
        request: Request[Any],
        error: ErrorCode,
        verdicts: list[Verdict],
        throttle: Throttle,
    ) -> Answer:
        detail = f"{principal.name} may not call {request.method!r}"
        # The last one decided it. What it names the caller has named.
        for verdict in verdicts[-1:]:
            name = _shown(verdict.name)
            detail += f": no {verdict.operation.value} on {verdict.resource.value} {name!r}"
        self.warnings.warn(
            "%r refused a call: %s — see `oncelog acls check`; the audit log says from where",
            *(self.server, detail),
        )
        refused = message_codec.encode(throttle.told(request.failed(error, detail)))
        return self._ended(call, error, Outcome.REPLY, (refused,))

    def _ended(
        self, call: MeteredCall, error: ErrorCode, outcome: Outcome, parts: tuple[Buffer, ...]
    ) -> Answer:
        call.reply_bytes = sum(map(len, parts))
        self.meter.end(call, error)
        return outcome, parts


def read_answer(request: Request[Any], outcome: int, body: bytes | memoryview) -> Reply:
    """Decode the reply to ``request`` from the result of ``Dispatch.answer``."""
    if outcome == Outcome.REPLY:
        try:
            return message_codec.decode_reply(request.method, body)
        except ValueError as error:
            return _failed(request, ErrorCode.UNKNOWN_SERVER_ERROR, f"unreadable reply: {error}")
    is_refused = outcome == Outcome.REFUSED
    code = ErrorCode.INVALID_REQUEST if is_refused else ErrorCode.UNKNOWN_SERVER_ERROR
    return _failed(request, code, bytes(body).decode("utf-8", "replace"))


def _shown(text: str) -> str:
    """What a caller gets back, and the log, of what it has sent."""
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "…"


def _failed(request: Request[Any], error: ErrorCode, detail: str) -> Reply:
    reply: Reply = request.failed(error, detail)
    return reply


class LogBudget:
    """Limits warnings of one kind, which a faulty peer could repeat without end."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._minute_end_ms = 0.0
        self._line_count = 0

    def warn(self, line: str, *arguments: object) -> None:
        """Log a line, unless this minute had too many; the next line says how many were dropped."""
        if loop_ms() >= self._minute_end_ms:
            if self._line_count > LINES_PER_MINUTE_MAX:
                left_out = self._line_count - LINES_PER_MINUTE_MAX
                self._logger.warning(
                    "%d more lines like these were left out — do what those before say", left_out
                )
            self._minute_end_ms = loop_ms() + _MINUTE_MS
            self._line_count = 0
        self._line_count += 1
        if self._line_count <= LINES_PER_MINUTE_MAX:
            self._logger.warning(line, *arguments)
