"""Who a connection of a Kafka client is: by SASL, by its certificate, or nobody.

==============================  ================================================================
what a connection shows         whose its requests are
==============================  ================================================================
a login by SASL                 ``User:`` and the name of the password or token
else a certificate, over TLS    ``User:`` and the name that ``certificate_name_rules`` make of it
over TLS nothing                nobody's: it must log in
without TLS nothing             ``User:ANONYMOUS``
==============================  ================================================================

``User:ANONYMOUS`` may do what ACLs allow him, and everything while they do not count. Once they
count and none is for him or for anybody, a connection without a login is closed, as one of Kafka's
SASL listeners is: what it lacks is a password.

Over TLS a login needs no certificate of the client's. Others of the cluster show one (see
``rpc/certificates.py``), so who shows none is not let in without a password or token.

Mechanisms are SCRAM-SHA-256, for users with passwords, and OAUTHBEARER, for signed tokens and over
TLS only. Clients of today send their messages in SaslAuthenticate (version 1 of SaslHandshake).
After version 0 they follow bare, each in a frame of its own.

A proof that expires may be renewed on the same connection, by the same principal and mechanism
(KIP-368). A refused login is told so, but not why: the log and the audit log say it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from oncelog.actors.gateway.messages.sasl_authenticate import SaslAuthenticateResponse
from oncelog.actors.gateway.messages.sasl_handshake import SaslHandshakeResponse
from oncelog.actors.interfaces import Clock
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages.access import ANYBODY, USER_KIND, Rules
from oncelog.actors.protocol.scram import Refusal, ScramServer
from oncelog.actors.rpc.door import Door, Refused
from oncelog.actors.rpc.handshake import new_nonce
from oncelog.storage.errors import ErrorCode

SCRAM: Final = "SCRAM-SHA-256"
OAUTHBEARER: Final = "OAUTHBEARER"

UNSUPPORTED_SASL_MECHANISM: Final = 33
ILLEGAL_SASL_STATE: Final = 34
"""Kafka's codes; no actor of ours gives them."""

ANONYMOUS: Final = Principal(USER_KIND + "ANONYMOUS")
"""Who does not say who he is."""

_BEARER: Final = b"auth=bearer "
_SEPARATOR: Final = b"\x01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """A login that succeeded, ``answer`` to its last message, and until when it counts."""

    principal: Principal
    answer: bytes
    expires_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRefused:
    """A login that failed: why, and whose it was meant to be; for the log."""

    reason: str
    name: str = ""


def may_be_anonymous(rules: Rules) -> bool:
    """Whether ``ANONYMOUS`` may do anything."""
    if not rules.is_on or ANONYMOUS.name in rules.super_users:
        return True
    own = {ANYBODY, ANONYMOUS.name}
    return any(acl.is_allowed and acl.principal in own for acl in rules.acls)


def without_login(
    door: Door, *, is_secured: bool, peer: Mapping[str, Any] | None
) -> Proved | LoginRefused | None:
    """Who a connection is without a login; ``None``: it must log in.

    ``peer`` is the certificate that TLS has verified, as ``getpeercert`` tells it.
    """
    if not is_secured:
        rules = door.rules
        is_let_in = rules is not None and may_be_anonymous(rules)
        return Proved(principal=ANONYMOUS, answer=b"") if is_let_in else None
    if not peer:
        return None
    found = door.named_by(peer)
    if isinstance(found, Refused):
        return LoginRefused(reason=found.reason)
    principal = Principal(USER_KIND + found.name)
    return Proved(principal=principal, answer=b"", expires_at_ms=found.expires_at_ms)


class Login:
    """The server's side of the logins of one connection, one after the other."""

    def __init__(self, door: Door, *, is_secured: bool) -> None:
        self._door = door
        self._is_secured = is_secured
        self.mechanism = ""
        """What is logged in by now; "" if nothing goes on."""
        self._scram: ScramServer | None = None
        self._proved: tuple[str, Principal] | None = None
        """Mechanism and principal of the first login: any other must be the same."""
        self.is_bare = False
        """Whether the messages follow without a header."""

    @property
    def mechanisms(self) -> list[str]:
        """What a client may log in by."""
        return [SCRAM, OAUTHBEARER] if self._is_secured else [SCRAM]

    @property
    def is_going_on(self) -> bool:
        """Whether a mechanism is chosen, and the proof still to come."""
        return bool(self.mechanism)

    @property
    def has_succeeded(self) -> bool:
        """Whether a login on this connection has succeeded."""
        return self._proved is not None

    def choose(self, mechanism: str, version: int) -> SaslHandshakeResponse:
        """Begin a login; the answer says whether its mechanism is one of ours."""
        if mechanism not in self.mechanisms:
            return SaslHandshakeResponse(UNSUPPORTED_SASL_MECHANISM, self.mechanisms)
        self.mechanism = mechanism
        self._scram = None
        self.is_bare = version == 0
        return SaslHandshakeResponse(0, self.mechanisms)

    def receive(self, message: bytes) -> bytes | Proved | LoginRefused:
        """The answer to one message of the login that goes on, or how it has ended."""
        step = self._by_scram(message) if self.mechanism == SCRAM else self._by_token(message)
        if isinstance(step, bytes):
            return step
        mechanism, self.mechanism, self._scram = self.mechanism, "", None
        self.is_bare = False
        if isinstance(step, Proved):
            proved = (mechanism, step.principal)
            if self._proved not in (None, proved):
                reason = "a connection was to become another user's"
                return LoginRefused(reason=reason, name=_name(step.principal))
            self._proved = proved
        return step

    def _by_scram(self, message: bytes) -> bytes | Proved | LoginRefused:
        if self._scram is None:
            nonce = base64.urlsafe_b64encode(new_nonce()).decode().rstrip("=")
            self._scram = self._door.new_scram(nonce)
        scram = self._scram
        if scram is None:
            return LoginRefused(reason="the users are not known here yet")
        answer = scram.receive(message)
        if isinstance(answer, Refusal):
            return LoginRefused(reason=answer.value, name=scram.claimed_name)
        if scram.name is None:
            return answer
        if not self._door.is_current(scram):
            return LoginRefused(reason="the user has just changed", name=scram.name)
        return Proved(principal=Principal(USER_KIND + scram.name), answer=answer)

    def _by_token(self, message: bytes) -> Proved | LoginRefused:
        token = _token_in(message)
        if not token:
            return LoginRefused(reason="no bearer token in the first message")
        bearer = self._door.bearer_of(token)
        if isinstance(bearer, Refused):
            return LoginRefused(reason=bearer.reason)
        principal = Principal(USER_KIND + bearer.name)
        return Proved(principal=principal, answer=b"", expires_at_ms=bearer.expires_at_ms)


def _token_in(message: bytes) -> str:
    """The token in the first message of OAUTHBEARER, "" if there is none.

    It is ``n,,`` and then fields, each ended by a byte 1. Source: RFC 7628, section 3.1.
    """
    header, *fields = message.split(_SEPARATOR)
    if header.startswith(b"n,"):
        for field in fields:
            if field[: len(_BEARER)].lower() == _BEARER:
                return field[len(_BEARER) :].strip().decode("ascii", "replace")
    return ""


def _name(principal: Principal) -> str:
    return principal.name.removeprefix(USER_KIND)


def answered(
    step: bytes | Proved | LoginRefused, mechanism: str, clock: Clock
) -> SaslAuthenticateResponse:
    """What a client is told of a step of its login."""
    if isinstance(step, LoginRefused):
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=f"Authentication failed by {mechanism or 'SASL'}: the log of the "
            "broker's gateway says why",
        )
    if isinstance(step, bytes):
        return SaslAuthenticateResponse(error_message=None, auth_bytes=step)
    ends_at_ms = step.expires_at_ms
    left_ms = 0 if ends_at_ms is None else max(1, ends_at_ms - clock.now_ms())
    return SaslAuthenticateResponse(
        error_message=None, auth_bytes=step.answer, session_lifetime_ms=left_ms
    )
