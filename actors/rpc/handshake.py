"""How a connection begins: both ends prove that they know a secret, and neither sends it.

The listener's first frame is a nonce. What the caller answers says how it proves who it is:

=========  ==================================================  =================================
method     messages                                            principal
=========  ==================================================  =================================
``hello``  caller's nonce and proof; the listener's proof      ``User:ray``, or a server
``scram``  the four of ``protocol/scram.py``                   ``User:`` and the user's name
=========  ==================================================  =================================

With ``hello`` the caller's proof is an HMAC over both nonces, the listener's another one. Nothing
of this can be used again on another connection, and neither proof can be taken for the other. So
whoever reads the traffic learns nothing to call with. After that the connection itself is as safe
as TCP, or TLS where Ray uses it. A server of the cluster adds a second proof, of the secret that
only servers are given. Without it the caller is a program of the Ray cluster, and may not call what
is for servers only.

A user needs no token of Ray's. One that is refused is told so, whatever the reason, in as many
messages.

Source: RFC 5802; the challenge and response of it, without a password, for ``hello``.
"""

from __future__ import annotations

import enum
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Final, Protocol

from oncelog.actors.protocol.access import RAY, SERVER, Principal
from oncelog.actors.protocol.messages.access import USER_KIND
from oncelog.actors.protocol.scram import (
    REFUSED_ANSWER,
    Refusal,
    ScramClient,
    ScramServer,
    ScramState,
)
from oncelog.actors.rpc.door import Door
from oncelog.actors.rpc.frames import HELLO, Outcome

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
SCRAM: Final = "scram"
SCRAM_NONCE_BYTES: Final = 24
"""Random bytes of one side's nonce, sent as base64."""

_SERVER_PROOF_BEGIN: Final = NONCE_BYTES + PROOF_BYTES
_CALLER: Final = b"oncelog caller\x00"
_LISTENER: Final = b"oncelog listener\x00"
_SERVER: Final = b"oncelog server\x00"
_SERVER_BY_RAY: Final = b"oncelog server by Ray\x00"


def new_nonce() -> bytes:
    """Bytes that no other connection begins with."""
    return secrets.token_bytes(NONCE_BYTES)


def caller_proof(secret: bytes, listener_nonce: bytes, caller_nonce: bytes) -> bytes:
    """The proof by which a caller shows that it knows ``secret``."""
    return hmac.digest(secret, _CALLER + listener_nonce + caller_nonce, "sha256")


def listener_proof(secret: bytes, listener_nonce: bytes, caller_nonce: bytes) -> bytes:
    """The proof by which a listener answers."""
    return hmac.digest(secret, _LISTENER + listener_nonce + caller_nonce, "sha256")


def is_caller_proof(secret: bytes, listener_nonce: bytes, message: bytes) -> bool:
    """Whether ``message``, a nonce and one or two proofs, is of a caller that knows ``secret``."""
    caller_nonce, proof = message[:NONCE_BYTES], message[NONCE_BYTES:_SERVER_PROOF_BEGIN]
    is_whole = len(message) in {_SERVER_PROOF_BEGIN, _SERVER_PROOF_BEGIN + PROOF_BYTES}
    return is_whole and hmac.compare_digest(
        proof, caller_proof(secret, listener_nonce, caller_nonce)
    )


def server_proof(server_secret: bytes, listener_nonce: bytes, caller_nonce: bytes) -> bytes:
    """The second proof of a caller that is a server; b"" if it has been given no secret."""
    if not server_secret:
        return b""
    return hmac.digest(server_secret, _SERVER + listener_nonce + caller_nonce, "sha256")


def is_server_proof(server_secret: bytes, listener_nonce: bytes, message: bytes) -> bool:
    """Whether the caller of ``message``, which ``is_caller_proof`` accepts, is a server.

    Where the called process has no secret, whoever may call at all passes for one.
    """
    expected = server_proof(server_secret, listener_nonce, message[:NONCE_BYTES])
    return not expected or hmac.compare_digest(message[_SERVER_PROOF_BEGIN:], expected)


def server_proof_by_ray(server_secret: bytes, method: str) -> bytes:
    """What a server adds to a call of ``method`` that Ray carries; b"" without a secret.

    It can be used again, by whoever can read Ray's traffic: to them every call through Ray is open.
    """
    if not server_secret:
        return b""
    return hmac.digest(server_secret, _SERVER_BY_RAY + method.encode("ascii"), "sha256")


def _scram_nonce() -> str:
    return secrets.token_urlsafe(SCRAM_NONCE_BYTES)


# --- the caller -------------------------------------------------------------------------------


class Ending(enum.Enum):
    """How a handshake ends for the caller."""

    ACCEPTED = "accepted"
    """Both sides have proved what they must."""

    REFUSED = "refused"
    """The listener does not believe this user: another try would end alike."""

    FAILED = "failed"
    """The other side is not who it should be, or speaks another protocol."""


class Identity(Protocol):
    """Who a process is to those that it calls."""

    def greeting(self, token: bytes) -> Greeting:
        """The handshake of one connection, to a listener whose callers know ``token``."""
        ...


class Greeting(Protocol):
    """The caller's side of one handshake."""

    def receive(self, kind: int, body: bytes) -> tuple[str, bytes] | Ending:
        """The method and body of the next frame, or how it ended."""
        ...


@dataclass(frozen=True, slots=True)
class ProgramIdentity:
    """A program of the Ray cluster; with a ``server_secret`` one of the cluster's servers."""

    server_secret: bytes = field(default=b"", repr=False)

    def greeting(self, token: bytes) -> Greeting:
        """See ``Identity``."""
        return _TokenGreeting(token, self.server_secret)


class _TokenGreeting:
    def __init__(self, token: bytes, server_secret: bytes) -> None:
        self._token, self._server_secret = token, server_secret
        self._nonce, self._challenge = new_nonce(), b""

    def receive(self, kind: int, body: bytes) -> tuple[str, bytes] | Ending:
        if kind == Outcome.CHALLENGE and not self._challenge and body:
            self._challenge = body
            proof = caller_proof(self._token, body, self._nonce)
            second = server_proof(self._server_secret, body, self._nonce)
            return HELLO, self._nonce + proof + second
        expected = listener_proof(self._token, self._challenge, self._nonce)
        is_proved = bool(self._challenge) and hmac.compare_digest(body, expected)
        return Ending.ACCEPTED if is_proved and kind == Outcome.REPLY else Ending.FAILED


@dataclass(frozen=True, slots=True)
class UserIdentity:
    """A user that logs in with a password."""

    name: str
    password: str = field(repr=False)

    def greeting(self, token: bytes) -> Greeting:  # noqa: ARG002
        """See ``Identity``."""
        client = ScramClient(name=self.name, password=self.password, nonce=_scram_nonce())
        return _UserGreeting(client)


class _UserGreeting:
    def __init__(self, client: ScramClient) -> None:
        self._client = client

    def receive(self, kind: int, body: bytes) -> tuple[str, bytes] | Ending:
        client = self._client
        if kind == Outcome.REFUSED:
            return Ending.REFUSED
        if kind == Outcome.CHALLENGE and client.state is ScramState.START:
            step = client.first()
        else:
            step = client.receive(body)
        if isinstance(step, Refusal):
            return Ending.REFUSED if step is Refusal.PEER else Ending.FAILED
        if client.state is ScramState.DONE:
            return Ending.ACCEPTED if kind == Outcome.REPLY else Ending.FAILED
        return SCRAM, step


# --- the listener -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What the listener answers, and as whom it goes on; without ``principal`` it is not the end.

    ``reason`` is why a login is refused, and ``name`` the user that it was for: for the log.
    """

    kind: Outcome
    body: bytes
    principal: Principal | None = None
    reason: str = ""
    name: str = ""


class Reception:
    """The listener's side of one handshake; ``token`` is what programs of the Ray cluster know."""

    def __init__(self, token: bytes, server_secret: bytes, door: Door) -> None:
        self.nonce = new_nonce()
        self._token, self._server_secret, self._door = token, server_secret, door
        self._scram: ScramServer | None = None

    def receive(self, method: str, message: bytes) -> Admission | None:
        """What to answer a frame of the caller; ``None``: close the connection without a word."""
        if method == HELLO and self._scram is None:
            return self._hello(message)
        if method == SCRAM:
            return self._login(message)
        return None

    def _hello(self, message: bytes) -> Admission | None:
        token, nonce = self._token, self.nonce
        if not is_caller_proof(token, nonce, message):
            return None
        is_server = is_server_proof(self._server_secret, nonce, message)
        answer = listener_proof(token, nonce, message[:NONCE_BYTES])
        return Admission(kind=Outcome.REPLY, body=answer, principal=SERVER if is_server else RAY)

    def _login(self, message: bytes) -> Admission | None:
        if self._scram is None:
            self._scram = self._door.new_scram(_scram_nonce())
        scram = self._scram
        if scram is None:
            return None
        answer = scram.receive(message)
        if isinstance(answer, Refusal):
            return Admission(
                kind=Outcome.REFUSED,
                body=REFUSED_ANSWER,
                reason=answer.value,
                name=scram.claimed_name,
            )
        if scram.name is None:
            return Admission(kind=Outcome.CHALLENGE, body=answer)
        return Admission(
            kind=Outcome.REPLY, body=answer, principal=Principal(USER_KIND + scram.name)
        )
