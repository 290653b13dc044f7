"""What a machine may ask its shell for.

A durable machine *decides* (records and a reply, nothing changed yet) and later *applies* each
record, once it is committed to the log: the same ``apply`` live and on reload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from oncelog.actors.protocol.messages import ReplyT


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of an internal log; ``value`` ``None`` is a tombstone."""

    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[ReplyT]):
    """What to write before answering, and the answer.

    With no records the reply may be sent at once: nothing changes. Otherwise the shell appends
    all records as one batch, waits until it is committed, applies each and then replies.
    """

    reply: ReplyT
    records: tuple[LogRecord, ...] = ()
