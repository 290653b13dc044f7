"""The errors an application sees when part of its transaction fails."""

from __future__ import annotations

from oncelog.actors.protocol.messages.base import Reply
from oncelog.storage.exceptions import (
    OncelogError,
    RequestTimedOutError,
    TransactionAbortableError,
    exception_for,
)


def unanswered(call: str, reply: Reply, max_block_ms: int) -> RequestTimedOutError:
    """No final reply came in time; ``call`` may be repeated. ``reply`` is the last one."""
    return RequestTimedOutError(
        f"{call} got no answer within max_block_ms={max_block_ms} (last: {reply.error.name} "
        f"{reply.detail}) and may have taken effect; call {call} again"
    )


def abort_after(error: OncelogError, *, in_another_part: bool = False) -> TransactionAbortableError:
    """The transaction can only be aborted after ``error``."""
    failed = "another part of the transaction failed" if in_another_part else None
    abortable = TransactionAbortableError(
        f"{failed or 'the transaction has failed'} ({error}); call abort_transaction()"
    )
    abortable.__cause__ = error
    return abortable


def for_the_others(error: OncelogError, *, is_fatal: bool) -> OncelogError:
    """The error of the transaction's other records when one failed with ``error``."""
    if not is_fatal:
        return abort_after(error, in_another_part=True)
    others = exception_for(error.code, str(error))
    others.__cause__ = error
    return others
