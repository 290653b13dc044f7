"""The right that a caller lacks: servers tell which call they refuse, and this what it takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from oncelog.storage.exceptions import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)

_REFUSALS = (
    TopicAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    ClusterAuthorizationFailedError,
)


@contextmanager
def needing(right: str) -> Iterator[None]:
    """Say in the error of a call that is not allowed what it takes, as "Read on topic 't'"."""
    try:
        yield
    except _REFUSALS as error:
        what = f"{error.what}: it takes {right}"
        raise type(error)(what, advice="ask an operator for an ACL") from None
