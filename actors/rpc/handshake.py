"""How a connection begins: both ends prove that they know a secret, and neither sends it.

The listener's first frame is a nonce. The caller answers with a nonce of its own and an HMAC over
both, the listener with another one. Nothing of this can be used again on another connection, and
neither proof can be taken for the other. So whoever reads the traffic learns nothing to call with.
After that the connection itself is as safe as TCP, or TLS where Ray uses it.

Source: the challenge and response of RFC 5802, without a password.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
_CALLER: Final = b"oncelog caller\x00"
_LISTENER: Final = b"oncelog listener\x00"


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
    """Whether ``message``, a nonce and a proof, is of a caller that knows ``secret``."""
    caller_nonce, proof = message[:NONCE_BYTES], message[NONCE_BYTES:]
    is_whole = len(caller_nonce) == NONCE_BYTES and len(proof) == PROOF_BYTES
    return is_whole and hmac.compare_digest(
        proof, caller_proof(secret, listener_nonce, caller_nonce)
    )
