"""How a connection begins: both ends prove that they know a secret, and neither sends it.

The listener's first frame is a nonce. What the caller answers says how it proves who it is:

=========  ==================================================  =================================
method     messages                                            principal
=========  ==================================================  =================================
``hello``  caller's nonce and proof; the listener's proof      ``User:ray``, or a server
``scram``  the four of ``protocol/scram.py``                   ``User:`` and the user's name
``token``  a signed token, over TLS only                       ``User:`` and the name in it
``cert``   none: TLS has shown the caller's certificate        ``User:`` and a name made of it
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from oncelog.actors.interfaces import Clock
from oncelog.actors.protocol.access import RAY, SERVER, Principal
from oncelog.actors.protocol.messages.access import USER_KIND
from oncelog.actors.protocol.scram import (
    REFUSED_ANSWER,
    Refusal,
    ScramClient,
    ScramServer,
    ScramState,
)
from oncelog.actors.rpc.certificates import Certificates
from oncelog.actors.rpc.door import Bearer, Door, Refused
from oncelog.actors.rpc.frames import HELLO, Outcome
from oncelog.storage.exceptions import SaslAuthenticationFailedError

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
SCRAM: Final = "scram"
TOKEN: Final = "token"  # noqa: S105
CERTIFICATE: Final = "cert"
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


def connection_secret(token: bytes, key: bytes) -> bytes:
    """What both ends of a connection prove to know: a listener's token, keyed with Ray's.

    A listener's token alone opens nothing: Ray carries it to callers. Ray's is used if the
    listener has it: a program may have one that its cluster does not ask for.
    """
    return hmac.digest(key, token, "sha256")


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
    """Who a process is to those that it calls.

    ``is_user``: not a program of the Ray cluster. ``needs_tls``: it can only prove it on a
    connection that is secured. ``refused``: what it is told if it is not believed, which never says
    why; the log of the called actor does.
    """

    is_user: bool
    needs_tls: bool
    refused: str

    def certificates(self, clock: Clock) -> Certificates:
        """What secures its connections."""
        ...

    def greeting(self, token: bytes) -> Greeting:
        """The handshake of one connection, to a listener whose callers know ``token``."""
        ...


class Greeting(Protocol):
    """The caller's side of one handshake."""

    def receive(self, kind: int, body: bytes) -> tuple[str, bytes] | Ending:
        """The method and body of the next frame, or how it ended."""
        ...


class _WithoutCertificate:
    """An identity whose connections are secured by the certificate of its process, if by any."""

    __slots__ = ()
    is_user = True
    needs_tls = False
    refused = str(SaslAuthenticationFailedError())

    def certificates(self, clock: Clock) -> Certificates:
        """See ``Identity``."""
        return Certificates(clock)


@dataclass(frozen=True, slots=True)
class ProgramIdentity(_WithoutCertificate):
    """A program of the Ray cluster; with a ``server_secret`` one of the cluster's servers."""

    server_secret: bytes = field(default=b"", repr=False)
    is_user = False

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
class UserIdentity(_WithoutCertificate):
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


@dataclass(frozen=True, slots=True)
class TokenIdentity(_WithoutCertificate):
    """A user whom a signed token names; ``read`` gives the token that is valid now."""

    read: Callable[[], str]
    needs_tls = True
    refused = (
        "The cluster does not accept the token; check that it has not expired, and that its key, "
        "issuer and audience are those of the cluster, whose log says why"
    )

    def greeting(self, token: bytes) -> Greeting:  # noqa: ARG002
        """See ``Identity``."""
        return _OneMessage(TOKEN, self.read)


@dataclass(frozen=True, slots=True)
class CertificateIdentity:
    """A user whom a certificate names: PEM files with it and its key."""

    certificate: Path
    key: Path
    is_user = True
    needs_tls = True
    refused = (
        "The cluster knows no user by the certificate; check its subject and the cluster's "
        "certificate_name_rules, whose log says why"
    )

    def certificates(self, clock: Clock) -> Certificates:
        """See ``Identity``."""
        return Certificates(clock, own=(self.certificate, self.key))

    def greeting(self, token: bytes) -> Greeting:  # noqa: ARG002
        """See ``Identity``."""
        return _OneMessage(CERTIFICATE, str)


class _OneMessage:
    """The greeting of an identity that TLS protects: one message, and one answer."""

    def __init__(self, method: str, message: Callable[[], str]) -> None:
        self._method, self._message = method, message
        self._has_sent = False

    def receive(self, kind: int, body: bytes) -> tuple[str, bytes] | Ending:  # noqa: ARG002
        if kind == Outcome.CHALLENGE and not self._has_sent:
            self._has_sent = True
            return self._method, self._message().encode()
        if kind == Outcome.REFUSED:
            return Ending.REFUSED
        return Ending.ACCEPTED if kind == Outcome.REPLY and self._has_sent else Ending.FAILED


# --- the listener -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What the listener answers, and as whom it goes on; without ``principal`` it is not the end.

    ``reason`` is why a login is refused, and ``name`` the user that it was for: for the log. At
    ``expires_at_ms`` in Unix time the principal is nobody any more.
    """

    kind: Outcome
    body: bytes
    principal: Principal | None = None
    reason: str = ""
    name: str = ""
    expires_at_ms: int | None = None


class Reception:
    """The listener's side of one handshake; ``token`` is what programs of the Ray cluster know.

    ``peer`` is what TLS knows of the caller: its certificate, as ``getpeercert`` tells it; ``None``
    on a connection that is not secured.
    """

    def __init__(
        self,
        token: bytes,
        server_secret: bytes,
        door: Door,
        peer: Mapping[str, Any] | None = None,
    ) -> None:
        self.nonce = new_nonce()
        self._peer = peer
        self._token, self._server_secret, self._door = token, server_secret, door
        self._scram: ScramServer | None = None

    def receive(self, method: str, message: bytes) -> Admission | None:
        """What to answer a frame of the caller; ``None``: close the connection without a word."""
        if method == HELLO and self._scram is None:
            return self._hello(message)
        if method == SCRAM:
            return self._login(message)
        if method in (TOKEN, CERTIFICATE) and self._scram is None:
            return self._identify(method, message)
        return None

    def _identify(self, method: str, message: bytes) -> Admission | None:
        """Admit whom a token or a certificate names, once the rules are known."""
        if self._door.rules is None:
            return None
        if self._peer is None:
            found: Bearer | Refused = Refused("the connection is not secured by TLS")
        elif method == TOKEN:
            found = self._door.bearer_of(message.decode("ascii", "replace"))
        else:
            found = self._door.named_by(self._peer)
        if isinstance(found, Refused):
            return Admission(kind=Outcome.REFUSED, body=REFUSED_ANSWER, reason=found.reason)
        return Admission(
            kind=Outcome.REPLY,
            body=b"",
            principal=Principal(USER_KIND + found.name),
            expires_at_ms=found.expires_at_ms,
        )

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
        if not self._door.is_current(scram):
            # The door has closed that user's connections before this one was among them.
            return None
        return Admission(
            kind=Outcome.REPLY, body=answer, principal=Principal(USER_KIND + scram.name)
        )
