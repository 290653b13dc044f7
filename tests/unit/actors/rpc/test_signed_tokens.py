"""Signed tokens: whose are accepted, and what is said of the others."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.rpc.reloaded_files import LOOK_AGAIN_MS
from oncelog.actors.rpc.signed_tokens import (
    ALGORITHMS,
    KEYS_MAX,
    KEYS_MAX_BYTES,
    LEEWAY_S,
    NAME_MAX_CHARS,
    TOKEN_MAX_CHARS,
    Bearer,
    Refusal,
    SignedTokens,
    TokenSettings,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError

NOW_S = 1_800_000_000
ISSUER, AUDIENCE = "https://issuer.example", "oncelog"


class StandingClock:
    def __init__(self) -> None:
        self.time_ms = 1_000 * NOW_S

    def now_ms(self) -> int:
        return self.time_ms


PRIVATE: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65_537, 2_048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
JWK_OF = {
    "RS256": jwt.algorithms.RSAAlgorithm.to_jwk,
    "ES256": jwt.algorithms.ECAlgorithm.to_jwk,
    "EdDSA": jwt.algorithms.OKPAlgorithm.to_jwk,
}


def public_pem(key: Any) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def jwk(algorithm: str, key: Any = None, **more: str) -> dict[str, Any]:
    key = PRIVATE[algorithm] if key is None else key
    return {**json.loads(JWK_OF[algorithm](key.public_key())), **more}


def written(path: Path, *keys: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"keys": keys}))
    return path


@pytest.fixture
def jwks(tmp_path: Path) -> Path:
    return written(tmp_path / "keys.json", *(jwk(one, kid=f"k-{one}") for one in ALGORITHMS))


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock()


@pytest.fixture
def tokens(jwks: Path, clock: StandingClock) -> SignedTokens:
    return SignedTokens(settings(jwks), clock)


def settings(keys: Path, **more: Any) -> TokenSettings:
    return TokenSettings(issuer=ISSUER, audience=AUDIENCE, keys=keys, **more)


def claims(**more: Any) -> dict[str, Any]:
    """Those of a token that is accepted; a claim that is None is left out."""
    told = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": NOW_S + 300, "iat": NOW_S}
    return {name: claim for name, claim in (told | more).items() if claim is not None}


def token(algorithm: str = "ES256", *, key: Any = None, kid: str = "", **more: Any) -> str:
    headers = {"kid": kid} if kid else {}
    return jwt.encode(claims(**more), key or PRIVATE[algorithm], algorithm, headers=headers)


def by_hand(header: dict[str, Any], payload: bytes, secret: bytes = b"") -> str:
    parts = (json.dumps(header).encode(), payload)
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = hmac.new(secret, signed, hashlib.sha256).digest() if secret else b""
    return (signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def reason(tokens: SignedTokens, given: str) -> str:
    answer = tokens.verify(given)
    assert isinstance(answer, Refusal), answer
    assert answer.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return answer.reason


# --- accepted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("is_key_named", [True, False])
def test_a_token_of_each_algorithm_is_accepted(tokens, algorithm, is_key_named):
    given = token(algorithm, kid=f"k-{algorithm}" if is_key_named else "")
    assert tokens.verify(given) == Bearer(name="ann", expires_at_ms=1_000 * (NOW_S + 300))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_keys_may_be_in_pem(tmp_path, clock, algorithm):
    path = tmp_path / "keys.pem"
    path.write_bytes(b"".join(map(public_pem, PRIVATE.values())))
    assert isinstance(SignedTokens(settings(path), clock).verify(token(algorithm)), Bearer)


def test_the_name_may_be_another_claim_and_the_audience_one_of_several(jwks, clock):
    tokens = SignedTokens(settings(jwks, name_claim="azp"), clock)
    answer = tokens.verify(token(aud=["other", AUDIENCE], azp="job 7"))
    assert isinstance(answer, Bearer)
    assert answer.name == "job 7"


def test_clocks_may_differ_by_the_leeway(tokens):
    assert isinstance(tokens.verify(token(exp=NOW_S - LEEWAY_S + 1)), Bearer)
    assert isinstance(tokens.verify(token(nbf=NOW_S + LEEWAY_S)), Bearer)


# --- refused ----------------------------------------------------------------------------------


def test_a_token_that_has_expired_is_refused(tokens):
    assert "expired 30 s ago" in reason(tokens, token(exp=NOW_S - LEEWAY_S))


@pytest.mark.parametrize("claim", ["nbf", "iat"])
def test_a_token_that_is_not_valid_yet_is_refused(tokens, claim):
    assert "valid only in 31 s" in reason(tokens, token(**{claim: NOW_S + 31}))


@pytest.mark.parametrize(("ahead_s", "what"), [(3_600, "expired 3,300 s"), (-3_600, "in 3,600 s")])
def test_a_clock_that_is_an_hour_off_is_suspected(tokens, clock, ahead_s, what):
    given = token()
    clock.time_ms += 1_000 * ahead_s
    told = reason(tokens, given)
    assert what in told
    hour = "09" if ahead_s > 0 else "07"
    assert f"it is 2027-01-15 {hour}:00:00 UTC here" in told
    assert "this clock or its issuer's is off" in told


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"aud": "another"}, "for another audience than 'oncelog'"),
        ({"aud": None}, "for another audience"),
        ({"aud": ["a", "b"]}, "for another audience"),
        ({"iss": "https://other.example"}, "of another issuer"),
        ({"iss": None}, "of another issuer"),
        ({"exp": None}, "never expires"),
        ({"nbf": True}, "'nbf' of the token is no time"),
        ({"iat": -1}, "'iat' of the token is no time"),
        ({"sub": None}, "'sub' of the token is no name"),
        ({"sub": ""}, "'sub' of the token is no name"),
        ({"sub": "a\nb"}, "'sub' of the token is no name"),
        ({"sub": "x" * (NAME_MAX_CHARS + 1)}, "'sub' of the token is no name"),
    ],
)
def test_claims_that_are_missing_or_others_are_refused(tokens, more, what):
    assert what in reason(tokens, token(**more))


@pytest.mark.parametrize("exp", ["soon", [], 1e400, float("nan"), 10**30, {"a": 1}])
def test_an_expiry_that_is_no_time_is_refused(tokens, exp):
    payload = json.dumps(claims(exp=exp)).encode()
    given = jwt.PyJWS().encode(payload, PRIVATE["ES256"], "ES256")
    assert "'exp' of the token is no time" in reason(tokens, given)


def test_a_token_of_another_key_is_refused(tokens):
    stranger = ec.generate_private_key(ec.SECP256R1())
    assert "has signed the token" in reason(tokens, token(key=stranger))
    told = reason(tokens, token(key=stranger, kid="k-ES256"))
    assert "(its key is 'k-ES256')" in told
    # A key that the token names, and that we do not have, is not replaced by one that fits.
    assert "its key is 'new'" in reason(tokens, token(kid="new"))


def test_a_token_without_a_signature_is_refused(tokens):
    for algorithm in ("none", "None", "NONE", ""):
        given = by_hand({"alg": algorithm, "typ": "JWT"}, json.dumps(claims()).encode())
        assert "is not allowed" in reason(tokens, given)
    given = by_hand({"alg": "ES256"}, json.dumps(claims()).encode())
    assert "no key of" in reason(tokens, given)


@pytest.mark.parametrize(
    "algorithm", ["HS256", "HS512", "RS512", "PS256", "ES384", ["ES256"], None]
)
def test_another_algorithm_is_refused(tokens, algorithm):
    given = by_hand({"alg": algorithm}, json.dumps(claims()).encode(), b"x")
    assert "is not allowed" in reason(tokens, given)


@pytest.mark.parametrize("header", ["HS256", "RS256"])
def test_a_token_signed_with_the_public_key_as_a_secret_is_refused(tmp_path, clock, header):
    path = tmp_path / "keys.pem"
    path.write_bytes(public_pem(PRIVATE["RS256"]))
    tokens = SignedTokens(settings(path), clock)
    given = by_hand({"alg": header}, json.dumps(claims()).encode(), path.read_bytes())
    assert isinstance(tokens.verify(given), Refusal)


def test_an_algorithm_that_the_settings_leave_out_is_refused(jwks, clock):
    tokens = SignedTokens(settings(jwks, algorithms=("RS256",)), clock)
    assert "'ES256' of the token is not allowed" in reason(tokens, token())


def test_a_token_that_is_too_long_is_refused_before_it_is_read(tokens):
    assert "cannot be read" in reason(tokens, "x" * TOKEN_MAX_CHARS)
    assert f"at most {TOKEN_MAX_CHARS} fit" in reason(tokens, "x" * (TOKEN_MAX_CHARS + 1))


def test_critical_extensions_are_refused(tokens):
    given = jwt.encode(claims(), PRIVATE["ES256"], "ES256", headers={"crit": ["b64"], "b64": True})
    assert isinstance(tokens.verify(given), Refusal)


@pytest.mark.parametrize(
    "given",
    ["", "a.b.c", "..", "ä.ö.ü", "\ud800", "e30.e30.", by_hand({"alg": "ES256"}, b"[" * 5_000)],
)
def test_what_is_no_token_is_refused(tokens, given):
    assert isinstance(tokens.verify(given), Refusal)


@pytest.mark.parametrize(
    "payload", [b"[1]", b"{", b"\xff", b"[" * 4_000, b'{"exp":' + b"9" * 5_000]
)
def test_a_signed_payload_that_has_no_claims_is_refused(tokens, payload):
    given = jwt.PyJWS().encode(payload, PRIVATE["ES256"], "ES256")
    assert isinstance(tokens.verify(given), Refusal)


@given(
    header=st.dictionaries(
        st.sampled_from(["alg", "kid", "typ", "b64", "crit"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.text(max_size=5),
            st.just("ES256"),
            st.lists(st.just("b64"), max_size=1),
            st.dictionaries(st.just("a"), st.none()),
        ),
    ),
    payload=st.binary(max_size=20),
)
def test_whatever_a_caller_sends_never_raises(header, payload, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "some_keys.json"
    if not path.exists():
        written(path, jwk("ES256"))
    tokens = SignedTokens(settings(path), StandingClock())
    assert isinstance(tokens.verify(by_hand(header, payload, b"x")), Refusal)


# --- keys and settings ------------------------------------------------------------------------


def test_keys_that_were_replaced_are_used_without_a_restart(jwks, tokens, clock):
    new = ec.generate_private_key(ec.SECP256R1())
    written(jwks, jwk("ES256", new, kid="new"))
    clock.time_ms += LOOK_AGAIN_MS
    assert isinstance(tokens.verify(token(key=new, kid="new")), Bearer)
    assert isinstance(tokens.verify(token()), Refusal)


def test_new_keys_that_cannot_be_used_change_nothing(jwks, tokens, clock, caplog):
    jwks.write_text("{")
    clock.time_ms += LOOK_AGAIN_MS
    assert isinstance(tokens.verify(token()), Bearer)
    assert "neither a JWKS nor PEM" in caplog.text


def test_keys_of_other_kinds_in_a_jwks_are_left_out(tmp_path, clock):
    other = jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP384R1()).public_key())
    path = written(
        tmp_path / "keys.json",
        {"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"},
        json.loads(other),
        jwk("RS256", rsa.generate_private_key(65_537, 1_024)),
        jwk("RS256", use="enc"),
        jwk("RS256", alg="PS256"),
        jwk("EdDSA", use="sig", alg="EdDSA"),
    )
    tokens = SignedTokens(settings(path), clock)
    assert isinstance(tokens.verify(token("EdDSA")), Bearer)
    assert "no key of" in reason(tokens, token("RS256"))
    assert "no key of" in reason(tokens, token("ES256"))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "neither a JWKS nor PEM"),
        ("[]", "neither a JWKS nor PEM"),
        ('{"keys": [1]}', "neither a JWKS nor PEM"),
        ("[" * 100_000, "neither a JWKS nor PEM"),
        ('{"keys": []}', "has 0 public keys for RS256, ES256, EdDSA"),
        (
            '{"keys": [{"kty": "EC", "crv": "P-256", "kid": "x"}]}',
            "the key 'x' of .* cannot be read",
        ),
        ("-----BEGIN CERTIFICATE-----", "has 0 public keys"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "cannot be read"),
        ("-----BEGIN PRIVATE KEY-----", "has a private key; give public keys only"),
        (None, "cannot be read: No such file"),
        ("x" * (KEYS_MAX_BYTES + 1), "has more than 1048576 bytes"),
        (json.dumps({"keys": [jwk("EdDSA")] * (KEYS_MAX + 1)}), "has 101 public keys"),
    ],
)
def test_a_file_without_keys_is_an_error_that_names_it(tmp_path, clock, content, what):
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidSettingError, match=what):
        SignedTokens(settings(path), clock)


def test_a_private_key_in_a_jwks_is_an_error(tmp_path, clock):
    private = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(PRIVATE["ES256"]))
    with pytest.raises(InvalidSettingError, match="has a private key"):
        SignedTokens(settings(written(tmp_path / "keys", private)), clock)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"issuer": ""}, "issuer of tokens is not set"),
        ({"audience": ""}, "audience of tokens is not set"),
        ({"name_claim": ""}, "name_claim of tokens is not set"),
        ({"algorithms": ("ES256", "none")}, "algorithms=.*none"),
        ({"algorithms": ("HS256",)}, "algorithms=.*HS256"),
        ({"algorithms": ()}, "algorithms="),
        ({"leeway_s": -1}, "leeway_s=-1"),
        ({"leeway_s": 301}, "leeway_s=301"),
    ],
)
def test_impossible_settings_are_errors(more, what):
    given = {"issuer": ISSUER, "audience": AUDIENCE, "keys": Path("k"), **more}
    with pytest.raises(InvalidSettingError, match=what):
        TokenSettings(**given)


@pytest.mark.parametrize("missing", ["jwt", "cryptography.hazmat.primitives.serialization"])
def test_without_the_extra_the_error_says_how_to_install_it(jwks, clock, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InvalidSettingError, match=r"pip install oncelog\[oauth\]"):
        SignedTokens(settings(jwks), clock)
