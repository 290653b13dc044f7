"""How a connection begins: both ends prove that they know a secret, and neither sends it.

The listener's first frame is a nonce. The caller answers with a nonce of its own and an HMAC over
both, the listener with another one. Nothing of this can be used again on another connection, and
neither proof can be taken for the other. So whoever reads the traffic learns nothing to call with.
After that the connection itself is as safe as TCP, or TLS where Ray uses it.

A server of the cluster adds a second proof, of the secret that only servers are given. Without it
the caller is a program of the Ray cluster, and may not call what is for servers only.

Source: the challenge and response of RFC 5802, without a password.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
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
