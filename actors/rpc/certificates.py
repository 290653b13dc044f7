"""Ray's certificates: if they secure Ray's calls, they secure our connections too.

The environment variables are Ray's, with the same meaning. Both sides show a certificate of one
authority, and the caller checks that the other side's certificate has the address it called.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Final

from oncelog.storage.exceptions import InvalidSettingError

IN_USE: Final = "RAY_USE_TLS"
CERTIFICATE: Final = "RAY_TLS_SERVER_CERT"
KEY: Final = "RAY_TLS_SERVER_KEY"
AUTHORITY: Final = "RAY_TLS_CA_CERT"
FILES: Final = (CERTIFICATE, KEY, AUTHORITY)


def is_secured() -> bool:
    """Whether Ray secures its own calls."""
    return os.environ.get(IN_USE, "").lower() in ("1", "true")


def secure_context(*, is_caller: bool) -> ssl.SSLContext | None:
    """The TLS context of a connection; ``None`` only if Ray does not secure its own.

    ``InvalidSettingError`` names the variable and the file that cannot be used.
    """
    if not is_secured():
        return None
    for name in FILES:
        pem(name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if is_caller else ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(os.environ[AUTHORITY])
    except ssl.SSLError as error:
        raise InvalidSettingError(f"{_given(AUTHORITY)} is no certificate: {error}") from error
    try:
        # An empty password, so that OpenSSL does not prompt for one at the terminal.
        context.load_cert_chain(os.environ[CERTIFICATE], os.environ[KEY], password="")
    except ssl.SSLError as error:
        given = f"{_given(CERTIFICATE)} and {_given(KEY)}"
        raise InvalidSettingError(f"{given} are no certificate and its key: {error}") from error
    return context


def files_in_use() -> str:
    """The files of ``secure_context``, for a log line that says why it failed."""
    return ", ".join(map(_given, FILES))


def pem(name: str) -> bytes:
    """The content of a file, by its variable; ``InvalidSettingError`` if it cannot be read."""
    if not os.environ.get(name):
        raise InvalidSettingError(
            f"{name} is not set, and {_given(IN_USE)} asks for it",
            advice="give the path of a PEM file",
        )
    try:
        return Path(os.environ[name]).read_bytes()
    except OSError as error:
        raise InvalidSettingError(f"{_given(name)} cannot be read: {error.strerror}") from error


def _given(name: str) -> str:
    return f"{name}={os.environ.get(name, '')!r}"
