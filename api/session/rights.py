"""The right that a caller lacks: servers tell which call they refuse, and this what it takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from oncelog.storage.exceptions import (
    GroupAuthorizationFailedError,
    OncelogError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)

ADVICE: Final = "ask an operator for an ACL"

_REFUSALS: Final = (
    GroupAuthorizationFailedError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)


@contextmanager
def needing(*, topic: str = "", group: str = "", transactional_id: str = "") -> Iterator[None]:
    """Say in the error of a call that is not allowed what it takes, as "Read on topic 't'".

    A refusal behind another error is raised instead: what spoils a transaction is its cause.
    """
    try:
        yield
    except OncelogError as error:
        refusal = _behind(error)
        if refusal is None:
            raise
        right = {
            GroupAuthorizationFailedError: group,
            TopicAuthorizationFailedError: topic,
            TransactionalIdAuthorizationFailedError: transactional_id,
        }.get(type(refusal))
        if right:
            # A reply has the whole text of an error, the advice with it.
            what = f"{refusal.what.removesuffix(f'; {ADVICE}')}: it takes {right}"
            raise type(refusal)(what, advice=ADVICE) from None
        if refusal is error:
            raise
        raise refusal from None


def _behind(error: BaseException | None) -> OncelogError | None:
    """The refusal that led to ``error``, itself included; the first one, whose text is its own."""
    found = None
    while error is not None:
        found = error if isinstance(error, _REFUSALS) else found
        error = error.__cause__
    return found
