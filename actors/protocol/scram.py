"""SCRAM-SHA-256: a client and a server prove to each other that they know a password.

Neither sends it, and what the server keeps does not let anybody log in. A server has a `Credential`
per user. Nonces and salts are arguments: whoever runs the machines draws them.

==============  ===============================================  ==================================
message         layout (UTF-8)                                   what is refused
==============  ===============================================  ==================================
client-first    ``n,,n=USER,r=CLIENT``                           ``y``, ``p=``, an authorization id
server-first    ``r=CLIENT SERVER,s=SALT,i=ITERATIONS``          another nonce, salts and iterations
                                                                 outside the limits
client-final    ``c=biws,r=CLIENT SERVER,p=PROOF``               another nonce, a wrong proof
server-final    ``v=SIGNATURE``, or ``e=REASON``                 a wrong signature
==============  ===============================================  ==================================

Each machine takes the peer's messages in this order, once:

======  =======  ==========================================  ==========
machine state    event                                       next state
======  =======  ==========================================  ==========
client  START    ``first()``                                 FIRST
client  FIRST    ``receive(server-first)``: client-final     FINAL
client  FINAL    ``receive(server-final)``: empty            DONE
server  START    ``receive(client-first)``: server-first     FIRST
server  FIRST    ``receive(client-final)``: server-final     DONE
any     any      anything else: a `Refusal`                  REFUSED
======  =======  ==========================================  ==========

A server's `Refusal` is for its log. The peer is told `REFUSED_ANSWER`, whatever the reason. A user
that does not exist is refused like one with a wrong password: after as many messages and as much
work. Its salt is constant, so asking twice tells nothing. Credentials should therefore have salts
of `ABSENT_SALT_BYTES` and one number of iterations.

Mandatory extensions (``m=``) are refused, others ignored. Base64 must be canonical, so each message
has one spelling.

What a peer sends never raises. A name, password, salt or nonce of our own that does not fit raises
``ValueError``, which does not tell it.

One file: both sides read and write the same four messages, with the same limits.

Source: RFC 5802, RFC 7677; RFC 4013 and RFC 3454 (preparation of names and passwords).
"""

from __future__ import annotations

import binascii
import enum
import functools
import hashlib
import hmac
import re
import stringprep
import unicodedata
from collections.abc import Mapping
from typing import Final

import msgspec

ITERATIONS_MIN: Final = 4_096
"""Of RFC 7677. A client refuses fewer: a false server could then guess passwords more cheaply."""

DEFAULT_ITERATIONS: Final = 100_000
"""Of new passwords: about 40 ms, which a client spends once, as it keeps the keys."""

ITERATIONS_MAX: Final = 1_000_000
"""A client refuses more: a server could otherwise keep it computing."""

SALT_BYTES_MIN: Final = 16
SALT_BYTES_MAX: Final = 64
NONCE_CHARS_MIN: Final = 16
NONCE_CHARS_MAX: Final = 256
"""Of one side's part."""

NAME_CHARS_MAX: Final = 249
PASSWORD_CHARS_MAX: Final = 1_024
MESSAGE_BYTES_MAX: Final = 4_096
SECRET_BYTES_MIN: Final = 32
ABSENT_SALT_BYTES: Final = 16

REFUSED_ANSWER: Final = b"e=other-error"
"""What a server tells a peer that it refuses. It is the same for each reason."""

_KEYS_KEPT: Final = 64
"""Passwords whose keys a process keeps, so that it computes them once, not for each connection."""

_KEY_BYTES: Final = hashlib.sha256().digest_size
_GS2_HEADER: Final = "n,,"
_CHANNEL_BINDING: Final = "c=biws"
_RESERVED: Final = frozenset("aceimnprsv")
_NAME = re.compile(r"(?:[^=,\x00]|=2C|=3D)+")
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_COUNT = re.compile(r"[1-9][0-9]{0,9}")
_EXTENSION = re.compile(r"[A-Za-z]=[^\x00,]+")
_UNICODE = unicodedata.ucd_3_2_0

_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class ScramState(enum.Enum):
    """How far an exchange is. The machine's table is at the top of the file."""

    START = "start"
    FIRST = "first"
    """The first message is sent."""

    FINAL = "final"
    """The client's last message is sent. A server never waits in this state."""

    DONE = "done"
    """The peer has proved that it knows the password, or the keys made from it."""

    REFUSED = "refused"


class Refusal(enum.Enum):
    """Why an exchange ended. It is for the log: a peer is never told."""

    TOO_LONG = "message too long"
    MALFORMED = "malformed message"
    MANDATORY_EXTENSION = "unknown mandatory extension"
    CHANNEL_BINDING = "channel binding is not supported"
    AUTHORIZATION = "acting as another user is not supported"
    NAME = "impossible user name"
    NONCE = "wrong nonce"
    SALT = "salt too short or too long"
    TOO_FEW_ITERATIONS = "too few iterations"
    TOO_MANY_ITERATIONS = "too many iterations"
    UNKNOWN_USER = "unknown user"
    PROOF = "wrong password"
    SIGNATURE = "the server does not know the password"
    PEER = "refused by the server"
    OUT_OF_TURN = "message out of turn"


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """What a server keeps of a password. Whoever steals it can guess, and can play the server."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __post_init__(self) -> None:
        """Refuse what no client would accept."""
        _check_salt_and_iterations(self.salt, self.iterations)
        if len(self.stored_key) != _KEY_BYTES or len(self.server_key) != _KEY_BYTES:
            raise ValueError(f"keys of a credential have {_KEY_BYTES} bytes")

    def __repr__(self) -> str:
        """Without salt and keys: it may be logged."""
        return f"Credential(iterations={self.iterations})"


def make_credential(password: str, salt: bytes, iterations: int) -> Credential:
    """The credential of a password; ``ValueError`` if something is outside the limits.

    This computes for as long as a client does at each login: at the most iterations, about a
    second. ``salt`` must be random, and new for each password.
    """
    _check_salt_and_iterations(salt, iterations)
    client_key, server_key = _keys(prepare_password(password), salt, iterations)
    return Credential(
        salt=salt,
        iterations=iterations,
        stored_key=_digest(client_key),
        server_key=server_key,
    )


def absent_credential(name: str, secret: bytes, iterations: int) -> Credential:
    """The credential with which a server goes on if there is no user of that name.

    It is constant for a name. Nobody knows a password for it, and nobody without ``secret`` can
    tell it from a real one.
    """
    salt, stored_key, server_key = (
        _mac(secret, f"oncelog absent user\x00{part}\x00{name}".encode())
        for part in ("salt", "stored key", "server key")
    )
    return Credential(
        salt=salt[:ABSENT_SALT_BYTES],
        iterations=iterations,
        stored_key=stored_key,
        server_key=server_key,
    )


def prepare_name(name: str) -> str:
    """The form of a user name that is sent, and under which its credential is found."""
    prepared = _saslprep(name, chars_max=NAME_CHARS_MAX)
    if not 1 <= len(prepared) <= NAME_CHARS_MAX:
        raise ValueError(f"a user name has 1 to {NAME_CHARS_MAX} characters")
    return prepared


def prepare_password(password: str) -> bytes:
    """The bytes of a password that keys are made from.

    Unlike in names, code points that Unicode 3.2 did not assign are refused: later versions may
    normalize them in another way, and the password would no longer fit (RFC 5802, section 2.2).
    """
    prepared = _saslprep(password, chars_max=PASSWORD_CHARS_MAX)
    if not prepared:
        raise ValueError("the password is empty")
    if any(stringprep.in_table_a1(char) for char in prepared):
        raise ValueError("the password has a character that Unicode 3.2 does not know")
    return prepared.encode()


class ScramClient:
    """The client's side of one exchange. ``nonce`` must be random, and used once."""

    def __init__(self, *, name: str, password: str, nonce: str) -> None:
        _check_nonce(nonce)
        escaped = prepare_name(name).replace("=", "=3D").replace(",", "=2C")
        self.state = ScramState.START
        self._password = prepare_password(password)
        self._nonce = nonce
        self._bare = f"n={escaped},r={nonce}"
        self._server_signature = b""

    def first(self) -> bytes | Refusal:
        """The client-first message."""
        if self.state is not ScramState.START:
            self.state = ScramState.REFUSED
            return Refusal.OUT_OF_TURN
        self.state = ScramState.FIRST
        return (_GS2_HEADER + self._bare).encode()

    def receive(self, message: bytes) -> bytes | Refusal:
        """The answer to a message of the server; empty after the last, which proves the server."""
        state, self.state = self.state, ScramState.REFUSED
        try:
            if state is ScramState.FIRST:
                answer = self._final(_text(message))
                self.state = ScramState.FINAL
                return answer
            if state is ScramState.FINAL:
                self._check_server(_text(message))
                self.state = ScramState.DONE
                return b""
        except _Refused as refused:
            return refused.reason
        return Refusal.OUT_OF_TURN

    def _final(self, server_first: str) -> bytes:
        if server_first.startswith("e="):
            raise _Refused(Refusal.PEER)
        nonce, salt_text, count = _values(server_first, "rsi")
        added = nonce[len(self._nonce) :]
        if not (_is_same(nonce[: len(self._nonce)], self._nonce) and _is_nonce(added)):
            raise _Refused(Refusal.NONCE)
        salt = _decoded(salt_text)
        if not SALT_BYTES_MIN <= len(salt) <= SALT_BYTES_MAX:
            raise _Refused(Refusal.SALT)
        if not _COUNT.fullmatch(count):
            raise _Refused(Refusal.MALFORMED)
        iterations = int(count)
        if iterations < ITERATIONS_MIN:
            raise _Refused(Refusal.TOO_FEW_ITERATIONS)
        if iterations > ITERATIONS_MAX:
            raise _Refused(Refusal.TOO_MANY_ITERATIONS)
        client_key, server_key = _keys(self._password, salt, iterations)
        without_proof = f"{_CHANNEL_BINDING},r={nonce}"
        said = f"{self._bare},{server_first},{without_proof}".encode()
        self._server_signature = _mac(server_key, said)
        proof = _xor(client_key, _mac(_digest(client_key), said))
        return f"{without_proof},p={_encoded(proof)}".encode()

    def _check_server(self, server_final: str) -> None:
        if server_final.startswith("e="):
            raise _Refused(Refusal.PEER)
        (signature,) = _values(server_final, "v")
        if not hmac.compare_digest(_decoded(signature), self._server_signature):
            raise _Refused(Refusal.SIGNATURE)


class ScramServer:
    """The server's side of one exchange.

    ``credentials`` are found by prepared name. ``nonce`` must be random, and used once. ``secret``
    and ``absent_iterations`` make the credentials of users that do not exist; a server keeps both
    from one exchange to the next.
    """

    def __init__(
        self,
        *,
        credentials: Mapping[str, Credential],
        nonce: str,
        secret: bytes,
        absent_iterations: int = ITERATIONS_MIN,
    ) -> None:
        _check_nonce(nonce)
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the secret has at least {SECRET_BYTES_MIN} bytes")
        # Here rather than at the first unknown user.
        absent_credential("", secret, absent_iterations)
        self.state = ScramState.START
        self._credentials = credentials
        self._server_nonce = nonce
        self._secret = secret
        self._absent_iterations = absent_iterations
        self._name = ""
        self._credential: Credential | None = None
        self._is_known = False
        self._nonce = ""
        self._said = ""

    @property
    def claimed_name(self) -> str:
        """The user that the client says it is; "" before it has said so."""
        return self._name

    @property
    def name(self) -> str | None:
        """The user that the client has proved to be; ``None`` before that and once refused."""
        return self._name if self.state is ScramState.DONE else None

    @property
    def credential(self) -> Credential | None:
        """What the proof is checked against; ``None`` before the client has said who it is."""
        return self._credential

    def receive(self, message: bytes) -> bytes | Refusal:
        """The answer to a message of the client, or why it is refused."""
        state, self.state = self.state, ScramState.REFUSED
        try:
            if state is ScramState.START:
                answer = self._first(_text(message))
                self.state = ScramState.FIRST
                return answer
            if state is ScramState.FIRST:
                answer = self._final(_text(message))
                self.state = ScramState.DONE
                return answer
        except _Refused as refused:
            return refused.reason
        return Refusal.OUT_OF_TURN

    def _first(self, client_first: str) -> bytes:
        flag, *rest = client_first.split(",", 2)
        if flag == "y" or flag.startswith("p="):
            raise _Refused(Refusal.CHANNEL_BINDING)
        if flag != "n" or len(rest) != len(("authorization", "bare")):
            raise _Refused(Refusal.MALFORMED)
        authorization, bare = rest
        if authorization:
            is_other_user = authorization.startswith("a=")
            raise _Refused(Refusal.AUTHORIZATION if is_other_user else Refusal.MALFORMED)
        escaped, nonce = _values(bare, "nr")
        if not _is_nonce(nonce):
            raise _Refused(Refusal.NONCE)
        self._name = _unescaped(escaped)
        # Both are looked for whether or not the user exists, so that it takes as long.
        absent = absent_credential(self._name, self._secret, self._absent_iterations)
        found = self._credentials.get(self._name)
        self._is_known = found is not None
        credential = self._credential = found or absent
        self._nonce = nonce + self._server_nonce
        salt = _encoded(credential.salt)
        server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._said = f"{bare},{server_first}"
        return server_first.encode()

    def _final(self, client_final: str) -> bytes:
        credential = self._credential
        assert credential is not None
        without_proof, _, proof_text = client_final.rpartition(",p=")
        binding, nonce = _values(without_proof, "cr")
        if f"c={binding}" != _CHANNEL_BINDING:
            raise _Refused(Refusal.CHANNEL_BINDING)
        if not _is_same(nonce, self._nonce):
            raise _Refused(Refusal.NONCE)
        proof = _decoded(proof_text)
        if len(proof) != _KEY_BYTES:
            raise _Refused(Refusal.MALFORMED)
        said = f"{self._said},{without_proof}".encode()
        client_key = _xor(proof, _mac(credential.stored_key, said))
        is_proved = hmac.compare_digest(_digest(client_key), credential.stored_key)
        signature = _mac(credential.server_key, said)
        if not self._is_known:
            raise _Refused(Refusal.UNKNOWN_USER)
        if not is_proved:
            raise _Refused(Refusal.PROOF)
        return f"v={_encoded(signature)}".encode()


class _Refused(Exception):
    """Ends a step; it never leaves this file."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason)
        self.reason = reason


# --- messages ---------------------------------------------------------------------------------


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise _Refused(Refusal.TOO_LONG)
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise _Refused(Refusal.MALFORMED) from None


def _values(text: str, letters: str) -> list[str]:
    """The values of these attributes, which come first and in this order; extensions may follow."""
    parts = text.split(",")
    if any(part.startswith("m=") for part in parts):
        raise _Refused(Refusal.MANDATORY_EXTENSION)
    if len(parts) < len(letters) or not all(_EXTENSION.fullmatch(part) for part in parts):
        raise _Refused(Refusal.MALFORMED)
    attributes, extensions = parts[: len(letters)], parts[len(letters) :]
    if [part[0] for part in attributes] != list(letters):
        raise _Refused(Refusal.MALFORMED)
    if any(part[0] in _RESERVED for part in extensions):
        raise _Refused(Refusal.MALFORMED)
    return [part[len("x=") :] for part in attributes]


def _unescaped(escaped: str) -> str:
    if not _NAME.fullmatch(escaped):
        raise _Refused(Refusal.NAME)
    try:
        return prepare_name(escaped.replace("=2C", ",").replace("=3D", "="))
    except ValueError:
        raise _Refused(Refusal.NAME) from None


def _is_nonce(nonce: str) -> bool:
    is_length = NONCE_CHARS_MIN <= len(nonce) <= NONCE_CHARS_MAX
    return is_length and _NONCE.fullmatch(nonce) is not None


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


def _encoded(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _decoded(text: str) -> bytes:
    """The bytes of canonical base64: the spare bits of the last character are 0."""
    try:
        data = binascii.a2b_base64(text)
    except ValueError:
        raise _Refused(Refusal.MALFORMED) from None
    if _encoded(data) != text:
        raise _Refused(Refusal.MALFORMED)
    return data


# --- keys -------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=_KEYS_KEPT)
def _keys(password: bytes, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """The client's key and the server's."""
    salted = hashlib.pbkdf2_hmac("sha256", password, salt, iterations)
    return _mac(salted, b"Client Key"), _mac(salted, b"Server Key")


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(left, right, strict=True))


def _check_salt_and_iterations(salt: bytes, iterations: int) -> None:
    if not SALT_BYTES_MIN <= len(salt) <= SALT_BYTES_MAX:
        raise ValueError(f"a salt has {SALT_BYTES_MIN} to {SALT_BYTES_MAX} bytes")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ValueError(f"there are {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations")


def _check_nonce(nonce: str) -> None:
    if not _is_nonce(nonce):
        raise ValueError(
            f"a nonce has {NONCE_CHARS_MIN} to {NONCE_CHARS_MAX} printable characters, no comma"
        )


# --- names and passwords ----------------------------------------------------------------------


def _saslprep(text: str, *, chars_max: int) -> str:
    """``text`` as RFC 4013 prepares a query, in the Unicode 3.2 that RFC 3454 fixes."""
    if len(text) > chars_max:
        raise ValueError(f"more than {chars_max} characters")
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in text
        if not stringprep.in_table_b1(char)
    )
    prepared = _UNICODE.normalize("NFKC", mapped)
    if any(is_prohibited(char) for char in prepared for is_prohibited in _PROHIBITED):
        raise ValueError("a prohibited character")
    if any(stringprep.in_table_d1(char) for char in prepared):
        # Text from right to left must be so throughout, or two strings could look alike.
        is_mixed = any(stringprep.in_table_d2(char) for char in prepared)
        ends = prepared[0] + prepared[-1]
        if is_mixed or not all(stringprep.in_table_d1(char) for char in ends):
            raise ValueError("text from left to right among text from right to left")
    return prepared
