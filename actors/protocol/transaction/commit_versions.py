"""Commit tokens that name a version of an application's writes, and their order.

Such a token is the JSON text ``{"txnAppId": "nightly", "txnVersion": 7}``. The committed versions
of one application increase: a version that is not above the last one is never committed again.
Tokens of any other form have no order.
"""

from __future__ import annotations

import msgspec


class CommitVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One version of an application's writes, as a commit token names it."""

    app_id: str = msgspec.field(name="txnAppId")
    version: int = msgspec.field(name="txnVersion")


_DECODER = msgspec.json.Decoder(CommitVersion)


def version_token(app_id: str, version: int) -> bytes:
    """The commit token of one version of an application's writes: JSON, for people to read."""
    return msgspec.json.encode(CommitVersion(app_id, version))


def version_in(token: bytes) -> CommitVersion | None:
    """The version that a commit token names, or ``None``."""
    try:
        return _DECODER.decode(token)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def is_same_commit(token: bytes | None, committed_token: bytes | None) -> bool:
    """Whether both tokens name the same commit; an empty one names none.

    One version may be written in several ways, so versions are compared too, not only bytes.
    """
    if not token or not committed_token:
        return False
    if token == committed_token:
        return True
    version = version_in(token)
    return version is not None and version == version_in(committed_token)


def passed_version(token: bytes | None, committed_token: bytes | None) -> CommitVersion | None:
    """The committed version if it is above the one in ``token``, of the same application."""
    if not token or not committed_token or token == committed_token:
        return None
    wanted, committed = version_in(token), version_in(committed_token)
    if wanted is None or committed is None or wanted.app_id != committed.app_id:
        return None
    return committed if wanted.version < committed.version else None


def drops_version(token: bytes | None, committed_token: bytes | None) -> CommitVersion | None:
    """The committed version if a commit of ``token`` would make the id forget it."""
    if not committed_token:
        return None
    committed = version_in(committed_token)
    if committed is None:
        return None
    wanted = version_in(token or b"")
    return committed if wanted is None or wanted.app_id != committed.app_id else None
