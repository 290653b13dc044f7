"""What a machine may ask its shell for.

A durable machine *decides* (records and a reply, nothing changed yet) and later *applies* each
record, once it is committed to the log: the same ``apply`` live and on reload.
"""

from __future__ import annotations

from typing import Generic

import msgspec

from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.storage.errors import ErrorCode


class LogRecord(msgspec.Struct, frozen=True):
    """One record of an internal log; ``value`` ``None`` is a tombstone."""

    key: bytes | None
    value: bytes | None


class Decision(msgspec.Struct, Generic[ReplyT], frozen=True, kw_only=True):
    """What to write before answering, and the answer.

    With no records the reply may be sent at once: nothing changes. Otherwise the shell appends
    all records as one batch, waits until it is committed, applies each and then replies.
    """

    reply: ReplyT
    records: tuple[LogRecord, ...] = ()


def refused(request: Request[ReplyT], error: ErrorCode, detail: str = "") -> Decision[ReplyT]:
    """Answer ``request`` with a code; nothing changes."""
    return Decision(reply=request.failed(error, detail))
