"""What a machine asks of its shell.

A durable machine first *decides*: it returns records and a reply and changes nothing. Once a record
is committed to the log the machine *applies* it, by the same ``apply`` live and on reload.
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

    Without records nothing changes, and the reply may be sent at once. Otherwise the shell appends
    all records as one batch, waits until it is committed, applies each and then replies.
    """

    reply: ReplyT
    records: tuple[LogRecord, ...] = ()


def refused(request: Request[ReplyT], error: ErrorCode, detail: str = "") -> Decision[ReplyT]:
    """Answer ``request`` with a code; nothing changes."""
    return Decision(reply=request.failed(error, detail))
