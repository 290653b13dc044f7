"""The certificates that secure our connections: our own, or else Ray's where it has some.

Each is a PEM file, named by an environment variable:

=========================  ====================  =================================================
ours                       Ray's                 content
=========================  ====================  =================================================
``ONCELOG_TLS_CERT``       RAY_TLS_SERVER_CERT   the certificate of this process, then its chain
``ONCELOG_TLS_KEY``        RAY_TLS_SERVER_KEY    its private key, without a password
``ONCELOG_TLS_CA``         RAY_TLS_CA_CERT       the authorities whose certificates are trusted
=========================  ====================  =================================================

Ours count if one of them is set, Ray's if ``RAY_USE_TLS`` is 1. Both sides show a certificate of
these authorities, and the caller checks that the other side's has the address it called.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from oncelog.actors.interfaces import Clock
from oncelog.actors.rpc.reloaded_files import ReloadedFiles
from oncelog.storage.exceptions import InvalidSettingError

IN_USE: Final = "RAY_USE_TLS"
CERTIFICATE: Final = "RAY_TLS_SERVER_CERT"
KEY: Final = "RAY_TLS_SERVER_KEY"
AUTHORITY: Final = "RAY_TLS_CA_CERT"
FILES: Final = (CERTIFICATE, KEY, AUTHORITY)

OUR_FILES: Final = ("ONCELOG_TLS_CERT", "ONCELOG_TLS_KEY", "ONCELOG_TLS_CA")
"""Certificate, key and authority, as in ``FILES``."""

HAS_EXPIRED: Final = 10
"""OpenSSL's ``X509_V_ERR_CERT_HAS_EXPIRED``."""

_PEM_BLOCK: Final = re.compile(
    "-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\\s]+-----END CERTIFICATE-----"
)


def is_secured() -> bool:
    """Whether Ray secures its own calls."""
    return os.environ.get(IN_USE, "").lower() in ("1", "true")


def pem(name: str) -> bytes:
    """The content of a file, by its variable; ``InvalidSettingError`` if it cannot be read."""
    return _Pem.of(name).content()


@dataclass(frozen=True, slots=True)
class _Pem:
    """A file, and the variable that names it."""

    name: str
    path: Path

    @classmethod
    def of(cls, name: str, asking: str = IN_USE) -> _Pem:
        """The file of a variable that ``asking`` needs; ``InvalidSettingError`` if not set."""
        given = os.environ.get(name)
        if not given:
            raise InvalidSettingError(
                f"{name} is not set, and {_given(asking)} asks for it",
                advice="give the path of a PEM file",
            )
        return cls(name, Path(given))

    def __str__(self) -> str:
        return f"{self.name}={str(self.path)!r}"

    def content(self) -> bytes:
        """The content; ``InvalidSettingError`` if it cannot be read."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise InvalidSettingError(f"{self} cannot be read: {error.strerror}") from error

    def expiries_ms(self) -> list[int]:
        """When each certificate of the file expires; empty if it has none that can be read."""
        blocks = _PEM_BLOCK.findall(self.content().decode("ascii", "replace"))
        try:
            return [expires_at_ms(ssl.PEM_cert_to_DER_cert(block)) for block in blocks]
        except ValueError:
            return []


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What the three files give."""

    for_caller: ssl.SSLContext
    for_listener: ssl.SSLContext
    certificate_expires_at_ms: int | None
    expiries_ms: Mapping[_Pem, int]
    """When a file stops to be of use, if that is known."""

    def expired(self, now_ms: int) -> str:
        """Which files have expired, and when; "" if none has."""
        return " and ".join(
            f"{file} expired on {_date(expiry_ms)}"
            for file, expiry_ms in self.expiries_ms.items()
            if expiry_ms <= now_ms
        )


class Certificates:
    """What secures the connections of a listener or a caller, reloaded when the files change.

    The variables are read until the files could be used once. From then on these files count.
    ``own``: a certificate and its key, which count in place of those that the variables name.
    """

    def __init__(self, clock: Clock, own: tuple[Path, Path] | None = None) -> None:
        self._clock = clock
        self._own = own
        self._files: tuple[_Pem, ...] = ()
        self._loaded: ReloadedFiles[_Loaded] | None = None

    def context(self, *, is_caller: bool) -> ssl.SSLContext | None:
        """The TLS context of a connection; ``None`` only if neither we nor Ray have certificates.

        ``InvalidSettingError`` names the variable and the file that cannot be used.
        """
        loaded = self._current()
        if loaded is None:
            return None
        return loaded.for_caller if is_caller else loaded.for_listener

    def expires_at_ms(self) -> int | None:
        """When the certificate in use expires, in Unix time; ``None`` without one."""
        loaded = self._current()
        return None if loaded is None else loaded.certificate_expires_at_ms

    def _current(self) -> _Loaded | None:
        if self._loaded is None:
            files = _files_in_use()
            if not files:
                return None
            if self._own is not None:
                certificate, key = self._own
                files = (_Pem("cert", certificate), _Pem("key", key), files[2])
            self._loaded = ReloadedFiles(
                [file.path for file in files],
                lambda: _load(files, self._clock.now_ms()),
                self._clock,
                "certificates",
            )
            self._files = files
        return self._loaded.value()

    def reason(self, error: Exception | str) -> str:
        """Why a connection could not be secured: ``error``, what has expired, and our files."""
        text = str(error) or repr(error)
        if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code == HAS_EXPIRED:
            text = f"{text}: that of the other side, whose log names the file"
        expired = "" if self._loaded is None else self._loaded.value().expired(self._clock.now_ms())
        if expired:
            text = f"{text}; {expired}"
        shown = map(str, self._files) if self._files else map(_given, _names_in_use() or FILES)
        return f"{text} ({', '.join(shown)})"


def are_connections_secured() -> bool:
    """Whether a connection of this process is secured, or else not made."""
    return bool(_names_in_use())


def is_ray_plain() -> bool:
    """Whether our connections are secured, but calls through Ray are not."""
    return are_connections_secured() and not is_secured()


def _names_in_use() -> tuple[str, ...]:
    """The variables that count; none if connections are not secured."""
    if any(map(os.environ.get, OUR_FILES)):
        return OUR_FILES
    return FILES if is_secured() else ()


def _files_in_use() -> tuple[_Pem, ...]:
    """The certificate, key and authority; ``InvalidSettingError`` names what is missing."""
    names = _names_in_use()
    if names != OUR_FILES:
        return tuple(map(_Pem.of, names))
    given = [name for name in names if os.environ.get(name)]
    missing = [name for name in names if name not in given]
    if missing:
        verb = "are" if missing[1:] else "is"
        raise InvalidSettingError(
            f"{' and '.join(missing)} {verb} not set, and {_given(given[0])} asks for all three",
            advice="give the path of a PEM file, or unset all three",
        )
    return tuple(map(_Pem.of, names))


def _load(files: Sequence[_Pem], now_ms: int) -> _Loaded:
    """Load the certificate, the key and the authorities; an expired one is an error."""
    for file in files:
        file.content()
    certificate, _, authority = files
    own_ms, trusted_ms = certificate.expiries_ms(), authority.expiries_ms()
    # The chain follows our own; of the authorities the others may be out of use.
    ends = {certificate: own_ms[:1], authority: trusted_ms}
    loaded = _Loaded(
        for_caller=_context(files, ssl.PROTOCOL_TLS_CLIENT),
        for_listener=_context(files, ssl.PROTOCOL_TLS_SERVER),
        certificate_expires_at_ms=own_ms[0] if own_ms else None,
        expiries_ms={file: max(ends_ms) for file, ends_ms in ends.items() if ends_ms},
    )
    expired = loaded.expired(now_ms)
    if expired:
        raise InvalidSettingError(expired, advice="renew it")
    return loaded


def _context(files: Sequence[_Pem], protocol: Any) -> ssl.SSLContext:
    certificate, key, authority = files
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    if protocol is ssl.PROTOCOL_TLS_SERVER:
        # Tickets are a quarter of what a handshake costs, and a caller seldom comes back to the
        # process that made them. Who resumes by one shows no certificate, not even an expired one.
        context.num_tickets = 0
    try:
        context.load_verify_locations(authority.path)
    except ssl.SSLError as error:
        raise InvalidSettingError(f"{authority} is no certificate: {error}") from error
    try:
        # An empty password, so that OpenSSL does not prompt for one at the terminal.
        context.load_cert_chain(certificate.path, key.path, password="")
    except ssl.SSLError as error:
        raise InvalidSettingError(
            f"{certificate} and {key} are no certificate and its key: {error}"
        ) from error
    return context


def _date(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1_000, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _given(name: str) -> str:
    return f"{name}={os.environ.get(name, '')!r}"


# --- when a certificate expires ---------------------------------------------------------------

_INTEGER: Final = 0x02
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0


def expires_at_ms(der: bytes) -> int:
    """``notAfter`` of a certificate (DER), in Unix time; ``ValueError`` if it has none.

    ``ssl`` tells it of a certificate that it has verified only. Source: RFC 5280, section 4.1.
    """
    body = _element(_element(memoryview(der), _SEQUENCE)[0], _SEQUENCE)[0]
    if body[:1] == bytes([_VERSION]):
        body = _element(body, _VERSION)[1]
    for before in (_INTEGER, _SEQUENCE, _SEQUENCE):  # Serial number, algorithm, issuer.
        body = _element(body, before)[1]
    ends = _element(body, _SEQUENCE)[0]
    not_after = _element(ends, ends[0])[1] if ends else ends
    if not not_after or not_after[0] not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError("a certificate without a validity")
    text = bytes(_element(not_after, not_after[0])[0]).decode("ascii")
    # Years of two digits: 1950 to 2049.
    century = ("19" if text >= "50" else "20") if not_after[0] == _UTC_TIME else ""
    end = datetime.strptime(century + text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)
    return int(end.timestamp()) * 1_000


def _element(data: memoryview, tag: int) -> tuple[memoryview, memoryview]:
    """The content of the element that ``data`` begins with, and what follows it."""
    if len(data) < 2 or data[0] != tag:
        raise ValueError("no certificate in DER")
    length, begin = data[1], 2
    if length >= 0x80:
        begin = 2 + length - 0x80
        length = int.from_bytes(data[2:begin], "big")
    if begin + length > len(data):
        raise ValueError("a certificate that ends too early")
    return data[begin : begin + length], data[begin + length :]
