"""Users whom a certificate or a signed token names, over real TLS connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from called_server import TIMEOUT_MS, TOKEN, Server, fetch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from issued_certificates import Authority

from oncelog.actors.config import ClusterConfig
from oncelog.actors.launch.processes import naming_of
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages.access import Access, Acl, Operation, Resource, Rules
from oncelog.actors.rpc import listener as listener_module
from oncelog.actors.rpc.actor_transport import ActorConnection, NoConnection, connect
from oncelog.actors.rpc.certificates import FILES, IN_USE, OUR_FILES
from oncelog.actors.rpc.dispatch import Dispatch
from oncelog.actors.rpc.door import Door
from oncelog.actors.rpc.handshake import Identity, Reception
from oncelog.actors.rpc.listener import Listener
from oncelog.api.session.login import login_of
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError

jwt = pytest.importorskip("jwt")

HERE = "127.0.0.1"
ISSUER, AUDIENCE = "https://issuer.example", "oncelog"
KEY = ec.generate_private_key(ec.SECP256R1())


@pytest.fixture(autouse=True)
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Authority:
    """Certificates for this process, as a server and as a program."""
    monkeypatch.setattr(listener_module, "REFUSAL_DELAY_S", 0.0)
    authority = Authority(tmp_path, "ours")
    for name in (IN_USE, *FILES, *OUR_FILES):
        monkeypatch.delenv(name, raising=False)
    for name, text in authority.issue(HERE).items():
        monkeypatch.setenv(name, text)
    return authority


@pytest.fixture
def config(tmp_path: Path) -> ClusterConfig:
    public = KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (tmp_path / "keys.pem").write_bytes(public)
    return ClusterConfig(
        certificate_name_rules=r"RULE:^CN=a (\w+)$/$1/U",
        token_keys=str(tmp_path / "keys.pem"),
        token_issuer=ISSUER,
        token_audience=AUDIENCE,
    )


@contextlib.asynccontextmanager
async def behind(
    config: ClusterConfig | None, *readers: str, is_known: bool = True
) -> AsyncIterator[tuple[Any, Any]]:
    """A server at which these users may read; unless ``is_known``, it has not heard of that yet."""
    acls = tuple(
        Acl(principal=name, resource=Resource.TOPIC, name="*", operation=Operation.READ)
        for name in readers
    )
    naming = None if config is None else naming_of(config)
    door = Door(Access(rules=Rules(is_on=True, acls=acls)) if is_known else None, naming=naming)
    server = Server()
    dispatch = Dispatch(server, on_bug=server.die_of_bug, door=door)
    listener = Listener(dispatch, host=HERE, token=TOKEN, server_secret=b"known to servers")
    address = await listener.address()

    async def joined(identity: Identity) -> Any:
        return await connect(address, timeout_ms=TIMEOUT_MS, identity=identity)

    try:
        yield server, joined
    finally:
        await listener.close()


def why_refused(made: Any) -> str:
    assert isinstance(made, NoConnection)
    assert made.error is ErrorCode.SASL_AUTHENTICATION_FAILED
    return made.detail


async def asked(connection: Any) -> ErrorCode:
    assert isinstance(connection, ActorConnection)
    error: ErrorCode = (await connection.call(fetch(1), timeout_ms=TIMEOUT_MS)).error
    connection.close()
    return error


def pem_of(authority: Authority, path: Path, days: float = 1) -> Path:
    """One file with a certificate and its key, as a program is given it."""
    issued = authority.issue("127.0.0.9", days=days)
    both = [Path(issued[name]).read_text() for name in FILES[:2]]
    path.write_text("".join(both))
    return path


def token_file(path: Path, key: Any = KEY, **claims: Any) -> Path:
    given = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": time.time() + 60, **claims}
    path.write_text(jwt.encode(given, key, algorithm="ES256") + "\n")
    return path


def test_a_certificate_names_a_user_by_the_rules(use, config, tmp_path):
    async def body() -> None:
        identity = login_of(None, None, cert=pem_of(use, tmp_path / "ann.pem")).identity()
        async with behind(config, "User:PROCESS") as (server, joined):
            assert await asked(await joined(identity)) is ErrorCode.NONE
            assert server.fetched == [1]
        async with behind(config, "User:process") as (_, joined):
            assert await asked(await joined(identity)) is ErrorCode.TOPIC_AUTHORIZATION_FAILED

    asyncio.run(body())


def test_a_certificate_names_a_user_until_it_expires(config):
    """Then its connection is closed, like that of a token."""
    peer = {"subject": ((("commonName", "a process"),),), "notAfter": "Jan  9 12:34:43 2030 GMT"}
    door = Door(Access(), naming=naming_of(config))
    admission = Reception(TOKEN, b"", door, peer).receive("cert", b"")
    assert admission is not None
    assert admission.principal == Principal("User:PROCESS")
    assert admission.expires_at_ms == 1_894_192_483_000


def test_a_certificate_that_no_rule_names_is_refused(use, config, tmp_path):
    async def body() -> None:
        import dataclasses

        other = dataclasses.replace(config, certificate_name_rules="RULE:^CN=the (.*)$/$1/")
        identity = login_of(None, None, cert=pem_of(use, tmp_path / "ann.pem")).identity()
        for given in (other, None):
            async with behind(given, "User:*") as (_, joined):
                assert "certificate_name_rules" in why_refused(await joined(identity))

    asyncio.run(body())


def test_a_certificate_that_has_expired_or_is_of_another_authority_is_told_so(
    use, config, tmp_path
):
    """Its own process sees that it has expired. The other side closes without a word: it may as
    well have died, so a retry may help.
    """
    expired = pem_of(use, tmp_path / "ann.pem", days=-0.5)
    (tmp_path / "theirs").mkdir()
    foreign = pem_of(Authority(tmp_path / "theirs", "theirs"), tmp_path / "foreign.pem")

    async def body() -> None:
        async with behind(config, "User:*") as (server, joined):
            made = await joined(login_of(None, None, cert=expired).identity())
            assert f"cert='{expired}' expired on" in why_refused(made)
            made = await joined(login_of(None, None, cert=foreign).identity())
            assert made.error is ErrorCode.NETWORK_EXCEPTION
            assert f"closed by the other side (cert='{foreign}'" in made.detail
            assert server.fetched == []

    asyncio.run(body())


def test_a_token_that_another_key_has_signed_is_told_so(config, tmp_path):
    async def body() -> None:
        path = token_file(tmp_path / "token", key=ec.generate_private_key(ec.SECP256R1()))
        async with behind(config, "User:*") as (_, joined):
            told = why_refused(await joined(login_of(None, None, token=path).identity()))
            assert "check that it has not expired, and that its key, issuer" in told

    asyncio.run(body())


@pytest.mark.parametrize("key", [KEY, ec.generate_private_key(ec.SECP256R1())])
def test_a_token_is_in_no_log_whether_it_is_accepted_or_not(config, tmp_path, caplog, key):
    path = token_file(tmp_path / "token", key=key)

    async def body() -> None:
        async with behind(config, "User:ann") as (_, joined):
            identity = login_of(token=path).identity()
            made = await joined(identity)
            assert path.read_text().strip() not in repr(identity) + repr(made)
            if key is KEY:
                assert await asked(made) is ErrorCode.NONE

    with caplog.at_level(logging.DEBUG):
        asyncio.run(body(), debug=True)
    for part in path.read_text().strip().split("."):
        assert part not in caplog.text


def test_a_token_names_a_user_until_it_expires_and_a_renewed_one_is_read(config, tmp_path):
    async def body() -> None:
        path = token_file(tmp_path / "token")
        identity = login_of(None, None, token=path).identity()
        async with behind(config, "User:ann", "User:bob") as (_, joined):
            assert await asked(await joined(identity)) is ErrorCode.NONE
            token_file(path, sub="bob")
            assert await asked(await joined(identity)) is ErrorCode.NONE
            token_file(path, sub="carl")
            assert await asked(await joined(identity)) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            # Within the leeway of clocks; it is nobody's once it has expired.
            token_file(path, exp=time.time() - 1)
            connection = await joined(identity)
            assert isinstance(connection, ActorConnection)
            assert connection.on_lost is None
            lost = asyncio.Event()
            connection.on_lost = lost.set
            await asyncio.wait_for(lost.wait(), TIMEOUT_MS / 1_000)
            token_file(path, exp=time.time() - 3_600)
            assert "does not accept the token; check that it has not" in why_refused(
                await joined(identity)
            )
            path.unlink()
            assert f"'{path}' cannot be read (No such file" in why_refused(await joined(identity))

    asyncio.run(body())


def test_a_process_that_does_not_know_the_rules_yet_lets_in_nobody_who_has_a_name(
    use, config, tmp_path
):
    logins = [
        login_of(None, None, cert=pem_of(use, tmp_path / "ann.pem")),
        login_of(None, None, token=token_file(tmp_path / "token")),
    ]

    async def body() -> None:
        async with behind(config, "User:*", is_known=False) as (_, joined):
            for login in logins:
                # Not refused: it is asked again.
                refused = await joined(login.identity())
                assert refused.error is ErrorCode.NETWORK_EXCEPTION

    asyncio.run(body())


@pytest.mark.parametrize("name", ["ray", "*", "", "a\x00b"])
def test_a_token_does_not_make_anybody_a_program_or_everybody(config, tmp_path, name):
    async def body() -> None:
        identity = login_of(None, None, token=token_file(tmp_path / "token", sub=name)).identity()
        async with behind(config, "User:*") as (_, joined):
            assert "does not accept the token" in why_refused(await joined(identity))

    asyncio.run(body())


def test_neither_is_shown_on_a_connection_that_is_not_secured(
    use, config, tmp_path, monkeypatch, caplog
):
    pem, token = pem_of(use, tmp_path / "ann.pem"), token_file(tmp_path / "token")
    monkeypatch.delenv(IN_USE)

    async def body() -> None:
        async with behind(config, "User:*") as (server, joined):
            for login in (login_of(None, None, cert=pem), login_of(None, None, token=token)):
                assert "over TLS only; set ONCELOG_TLS_CERT" in why_refused(
                    await joined(login.identity())
                )
            assert server.fetched == []

    asyncio.run(body())
    assert "over TLS only" in caplog.text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"user": "ann", "password_file": "p", "token": "t"}, "user and token are given"),
        ({"user": None, "password_file": None, "token": "t", "cert": "c"}, "token and cert"),
    ],
)
def test_one_way_to_log_in_is_enough(given, text):
    with pytest.raises(InvalidSettingError, match=text):
        login_of(**given)


def test_a_file_without_a_token_is_named(tmp_path):
    (tmp_path / "token").write_text("\n")
    for path in (tmp_path / "token", tmp_path / "gone"):
        with pytest.raises(InvalidSettingError, match=path.name):
            login_of(None, None, token=path).identity()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"certificate_name_rules": "RULES:x/y/"}, "certificate_name_rules"),
        ({"token_keys": "/keys"}, "give all three"),
        ({"token_issuer": "i", "token_audience": "a"}, "token_keys=None"),
    ],
)
def test_settings_that_name_nobody_are_refused(settings, text):
    with pytest.raises(InvalidSettingError, match=text):
        ClusterConfig(**settings)
