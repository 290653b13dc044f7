"""Verifies signed tokens (JWT): who an issuer that we trust says the caller is.

What must hold: the token is signed with a key from our file, by one of three algorithms with public
keys; its issuer and audience are those of the settings; it has begun and has not expired. Nothing
is fetched over the network: whatever a token names, only keys of the file count.

PyJWT parses and verifies the signature. Times are checked here, by the clock that is passed in.

Source: RFC 7519 (JWT), RFC 7517 (JWK), RFC 8725 (best practices).
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from oncelog.actors.interfaces import Clock
from oncelog.actors.rpc.reloaded_files import ReloadedFiles
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError

TOKEN_MAX_CHARS: Final = 8_192
"""A longer token is refused before anything of it is read."""

KEYS_MAX_BYTES: Final = 1_048_576
KEYS_MAX: Final = 100
"""Of the file of keys: its size, and how many of its keys are of use."""

NAME_MAX_CHARS: Final = 256
LEEWAY_S: Final = 30
"""How far the clocks of the issuer and of this machine may differ."""

RSA_BITS_MIN: Final = 2_048

ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")
"""Never ``none``, and none with a shared secret: whoever verifies those could also sign."""

_LATEST_S: Final = 2**40
_KEY_TYPES: Final = {("RSA", ""): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
"""Type and curve of a JWK, and the algorithm that it is for."""

_PRIVATE_FIELDS: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "k"})
_PUBLIC_KEY: Final = re.compile(
    "-----BEGIN PUBLIC KEY-----[A-Za-z0-9+/=\\s]+-----END PUBLIC KEY-----"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """What tokens are accepted; ``InvalidSettingError`` if that cannot be."""

    issuer: str
    audience: str
    keys: Path
    """A JWKS (JSON), or public keys in PEM; read again when it changes."""
    algorithms: Sequence[str] = ALGORITHMS
    leeway_s: int = LEEWAY_S
    name_claim: str = "sub"

    def __post_init__(self) -> None:
        """Check the settings."""
        for name in ("issuer", "audience", "name_claim"):
            if not getattr(self, name):
                raise InvalidSettingError(f"{name} of tokens is not set")
        wrong = [one for one in self.algorithms if one not in ALGORITHMS]
        if wrong or not self.algorithms:
            raise InvalidSettingError(
                f"algorithms={list(self.algorithms)} of tokens",
                advice=f"give some of {', '.join(ALGORITHMS)}",
            )
        if not 0 <= self.leeway_s <= 300:
            raise InvalidSettingError(f"leeway_s={self.leeway_s} of tokens is not in 0 to 300")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """Who a token is for, and until when, in Unix time; the leeway is not in it."""

    name: str
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a token is refused. ``reason`` is for the log; it has no part of the token's text."""

    reason: str
    code: ErrorCode = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@dataclass(frozen=True, slots=True)
class _Key:
    """A public key, for one algorithm; ``key_id`` is "" if it has none."""

    key_id: str
    algorithm: str
    key: Any


class SignedTokens:
    """Verifies tokens by ``settings``; for one thread.

    ``InvalidSettingError`` if the keys cannot be used, or if PyJWT is not installed.
    """

    def __init__(self, settings: TokenSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._jwt = _pyjwt()
        self._keys = ReloadedFiles(
            [settings.keys], lambda: _load(settings, self._jwt), clock, "keys of tokens"
        )

    def verify(self, token: str) -> Bearer | Refusal:
        """Who the token is for. What a caller sends never raises."""
        if len(token) > TOKEN_MAX_CHARS:
            return Refusal(f"the token has {len(token)} characters, at most {TOKEN_MAX_CHARS} fit")
        try:
            header = self._jwt.get_unverified_header(token)
            claims = self._verified(token, header)
        except (self._jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            return Refusal(f"the token cannot be read: {type(error).__name__}")
        return claims if isinstance(claims, Refusal) else self._bearer(claims)

    def _verified(self, token: str, header: Mapping[str, Any]) -> Mapping[str, Any] | Refusal:
        """The claims of a token, if one of our keys signed it."""
        algorithm, key_id = header.get("alg"), header.get("kid", "")
        if algorithm not in self._settings.algorithms:
            return Refusal(f"the algorithm {str(algorithm)[:20]!r} of the token is not allowed")
        if "crit" in header:
            return Refusal("the token has critical extensions, of which none is known")
        suiting = [
            one
            for one in self._keys.value()
            if one.algorithm == algorithm and (not key_id or one.key_id in {"", key_id})
        ]
        for key in suiting:
            try:
                # Only the signature: what it says is checked below, each with its reason.
                claims: Mapping[str, Any] = self._jwt.PyJWS().decode_complete(
                    token, key.key, [algorithm]
                )
            except self._jwt.InvalidSignatureError:
                continue
            payload = json.loads(claims["payload"])
            return payload if isinstance(payload, dict) else Refusal("the token has no claims")
        named = f" (its key is {str(key_id)[:80]!r})" if key_id else ""
        return Refusal(f"no key of {str(self._settings.keys)!r} has signed the token{named}")

    def _bearer(self, claims: Mapping[str, Any]) -> Bearer | Refusal:
        """Check what a token says, once its signature has been verified."""
        settings = self._settings
        if claims.get("iss") != settings.issuer:
            return Refusal(f"the token is of another issuer than {settings.issuer!r}")
        audience = claims.get("aud")
        if audience != settings.audience and not (
            isinstance(audience, list) and settings.audience in audience
        ):
            return Refusal(f"the token is for another audience than {settings.audience!r}")
        reason = self._wrong_time(claims)
        if reason:
            return Refusal(reason)
        name = claims.get(settings.name_claim)
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= NAME_MAX_CHARS
            or not name.isprintable()
        ):
            return Refusal(
                f"the claim {settings.name_claim!r} of the token is no name of at most "
                f"{NAME_MAX_CHARS} characters"
            )
        return Bearer(name=name, expires_at_ms=int(claims["exp"] * 1_000))

    def _wrong_time(self, claims: Mapping[str, Any]) -> str:
        """Why the token does not count now; "" if it does."""
        times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
        if "exp" not in times:
            return "the token never expires: it has no claim 'exp'"
        for name, time_s in times.items():
            if type(time_s) not in (int, float) or not 0 <= time_s < _LATEST_S:
                return f"the claim {name!r} of the token is no time"
        now_s = self._clock.now_ms() / 1_000
        late_s, early_s = (
            now_s - times["exp"],
            max(times.get("nbf", 0), times.get("iat", 0)) - now_s,
        )
        if late_s >= self._settings.leeway_s:
            what = f"the token expired {late_s:,.0f} s ago"
        elif early_s > self._settings.leeway_s:
            what = f"the token is valid only in {early_s:,.0f} s"
        else:
            return ""
        now = datetime.fromtimestamp(now_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{what} (it is {now} here: if the token is new, this clock or its issuer's is off)"


def _pyjwt() -> Any:
    """PyJWT, with what it needs for public keys."""
    try:
        # The module of algorithms loads without `cryptography`; the second is needed for keys.
        importlib.import_module("cryptography.hazmat.primitives.serialization")
        return importlib.import_module("jwt")
    except ImportError as error:
        raise InvalidSettingError(
            f"signed tokens need a package that is not installed ({error.name})",
            advice="install it: pip install oncelog[oauth]",
        ) from error


# --- keys -------------------------------------------------------------------------------------


def _load(settings: TokenSettings, jwt: Any) -> list[_Key]:
    """The keys of the file that are of use for the algorithms; ``InvalidSettingError`` if none."""
    path = settings.keys
    try:
        with path.open("rb") as file:
            content = file.read(KEYS_MAX_BYTES + 1)
    except OSError as error:
        raise InvalidSettingError(f"keys={str(path)!r} cannot be read: {error.strerror}") from error
    text = content.decode("utf-8", "replace")
    if len(content) > KEYS_MAX_BYTES:
        raise InvalidSettingError(f"keys={str(path)!r} has more than {KEYS_MAX_BYTES} bytes")
    if "PRIVATE KEY-----" in text:
        raise InvalidSettingError(f"keys={str(path)!r} has a private key", advice=_ONLY_PUBLIC)
    is_pem = "-----BEGIN " in text
    found = _pem_keys(text) if is_pem else _jwks_keys(text, path, jwt)
    keys = [one for one in found if one.algorithm in settings.algorithms]
    if not 0 < len(keys) <= KEYS_MAX:
        raise InvalidSettingError(
            f"keys={str(path)!r} has {len(keys)} public keys for {', '.join(settings.algorithms)}",
            advice=f"give from 1 to {KEYS_MAX}, as a JWKS or as PEM; RSA of {RSA_BITS_MIN} bits",
        )
    return keys


_ONLY_PUBLIC: Final = "give public keys only: whoever has a private one can sign"


def _pem_keys(text: str) -> list[_Key]:
    serialization = importlib.import_module("cryptography.hazmat.primitives.serialization")
    unsupported = importlib.import_module("cryptography.exceptions").UnsupportedAlgorithm
    keys = []
    for block in _PUBLIC_KEY.findall(text):
        try:
            key = serialization.load_pem_public_key(block.encode("ascii"))
        except (ValueError, TypeError, unsupported) as error:
            raise InvalidSettingError(f"a public key in PEM cannot be read: {error}") from error
        algorithm = _algorithm_of(key)
        if algorithm:
            keys.append(_Key("", algorithm, key))
    return keys


def _algorithm_of(key: Any) -> str:
    """The algorithm that a public key is for; "" if it is none of ours."""
    kind = type(key).__name__
    if "RSA" in kind:
        return "RS256" if key.key_size >= RSA_BITS_MIN else ""
    if "EllipticCurve" in kind or kind.startswith("EC"):
        return "ES256" if key.curve.name == "secp256r1" else ""
    return "EdDSA" if "Ed25519" in kind else ""


def _jwks_keys(text: str, path: Path, jwt: Any) -> list[_Key]:
    """The keys of a JWKS that are of use; those for other purposes are left out."""
    try:
        jwks = json.loads(text)
        entries = jwks["keys"]
        described = [(one, str(one.get("kid", ""))) for one in entries]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidSettingError(f"keys={str(path)!r} is neither a JWKS nor PEM") from error
    keys = []
    for entry, key_id in described:
        kind = (entry.get("kty"), entry.get("crv", ""))
        algorithm = _KEY_TYPES.get(kind, "")
        if not algorithm or entry.get("alg", algorithm) != algorithm or entry.get("use") == "enc":
            continue
        if _PRIVATE_FIELDS & entry.keys():
            raise InvalidSettingError(f"keys={str(path)!r} has a private key", advice=_ONLY_PUBLIC)
        try:
            key = jwt.PyJWK(entry, algorithm).key
        except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
            shown = f"the key {key_id!r} of keys={str(path)!r}"
            raise InvalidSettingError(f"{shown} cannot be read: {error}") from error
        if _algorithm_of(key) == algorithm:
            keys.append(_Key(key_id, algorithm, key))
    return keys
