"""The base of every request and reply.

Rules: a request names its actor method (``method``) and its reply (``reply_type``). A reply begins
with ``error`` and every other field has a default, so a lost call can be answered by
``request.failed(code)``. In a message about several partitions each has its own ``ErrorCode``.
Times are milliseconds since the Unix epoch, durations milliseconds, sizes bytes.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from oncelog.storage.errors import ErrorCode


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every reply: the error code of the whole request.

    ``detail`` is for people: it may name the rejected value. Programs never interpret it.
    ``throttle_ms`` is how long the caller must wait before its next call to this actor, since it
    is over its limits. ``UNSET`` is left out of the bytes, and is what nearly every reply has.
    """

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    throttle_ms: int | UnsetType = UNSET


ReplyT = TypeVar("ReplyT", bound=Reply)


class Request(msgspec.Struct, Generic[ReplyT], frozen=True, kw_only=True):
    """Base of every request: the actor method it calls and the reply that method gives."""

    method: ClassVar[str]
    reply_type: ClassVar[type[Any]]

    def failed(self, error: ErrorCode, detail: str = "") -> ReplyT:
        """A reply with only ``error``, for example if the call never reached its actor."""
        reply: ReplyT = self.reply_type(error=error, detail=detail)
        return reply
