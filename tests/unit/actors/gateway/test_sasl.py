"""Who a connection of Kafka's protocol is of: logins, certificates, nobody, and what they may."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop
from deadlines import to_its_end
from issued_certificates import Authority
from kafka.net.sasl.scram import ScramClient
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafka_gateway import HERE, Served, Wire, served
from msgspec import structs
from virtual_time import ManualClock, VirtualLoop, run_virtually

from oncelog.actors.gateway.calls import Call
from oncelog.actors.gateway.listener import STRANGER_REQUESTS_MAX
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.find_coordinator import (
    FindCoordinatorResponse as FoundCoordinator,
)
from oncelog.actors.gateway.sasl import ANONYMOUS, may_be_anonymous
from oncelog.actors.protocol.messages.access import (
    ANYBODY,
    Access,
    Acl,
    Limits,
    Operation,
    Resource,
    Rules,
    User,
)
from oncelog.actors.protocol.scram import ITERATIONS_MIN, make_credential
from oncelog.actors.rpc import admission
from oncelog.actors.rpc.certificates import FILES, IN_USE, OUR_FILES
from oncelog.actors.rpc.door import Bearer, Named, Refused
from oncelog.actors.rpc.listener import (
    FIRST_FRAME_MAX_BYTES,
    FIRST_FRAME_TIMEOUT_S,
    REFUSAL_DELAY_S,
)
from oncelog.storage.errors import ErrorCode

SCRAM = "SCRAM-SHA-256"
PASSWORD = "wonder,land="
USERS = tuple(
    User(name=name, credential=make_credential(PASSWORD, name.encode().ljust(16), ITERATIONS_MIN))
    for name in ("alice", "bob")
)
OFF = Access(users=USERS)
ON = Access(rules=Rules(version=1, is_on=True), users=USERS)
REFUSED = int(ErrorCode.SASL_AUTHENTICATION_FAILED)


class Names:
    """Names whoever has the token ``of NAME``, for a minute, and certificates as it is told."""

    def __init__(self, certificate: Bearer | Refused | None = None) -> None:
        self.certificate = certificate or Refused("no rule names it")
        self.now_ms = 0

    def bearer_of(self, token: str) -> Bearer | Refused:
        word, _, name = token.partition("-")
        return Named(name, self.now_ms + 60_000) if word == "of" else Refused("a wrong signature")

    def named_by(self, certificate: Mapping[str, Any]) -> Bearer | Refused:
        return self.certificate


async def tell_principal(call: Call, request: Any) -> FoundCoordinator:
    return FoundCoordinator(host=call.client.principal.name, node_id=call.version)


HANDLERS = {ApiKey.FIND_COORDINATOR: tell_principal}
Story = Callable[[Served], Awaitable[None]]


def play(
    story: Story, access: Access = OFF, run: Callable[[Any], Any] = run_virtually, **options: Any
) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        clock = loop if isinstance(loop, VirtualLoop) else ManualClock()
        if isinstance(options.get("naming"), Names):
            options["naming"].now_ms = clock.now_ms()
        async with served(HANDLERS, access=access, clock=clock, **options) as gateway:
            await story(gateway)

    run(body())


async def whoami(wire: Wire) -> str:
    request = FindCoordinatorRequest[2](key="k", key_type=0)
    answer = await wire.ask(request, FindCoordinatorResponse)
    return str(answer.host)


async def choose(wire: Wire, mechanism: str = SCRAM, version: int = 1) -> Any:
    return await wire.ask(SaslHandshakeRequest[version](mechanism=mechanism), SaslHandshakeResponse)


async def authenticate(wire: Wire, message: bytes, version: int = 2) -> Any:
    request = SaslAuthenticateRequest[version](auth_bytes=message)
    return await wire.ask(request, SaslAuthenticateResponse)


async def login(
    wire: Wire, name: str = "alice", password: str = PASSWORD, *, version: int = 2
) -> Any:
    """The answer to the last message of a login, as kafka-python's client makes it."""
    assert (await choose(wire)).error_code == 0
    scram = ScramClient(name, password, SCRAM)
    first = await authenticate(wire, scram.first_message(), version)
    assert first.error_code == 0
    scram.process_server_first_message(bytes(first.auth_bytes))
    last = await authenticate(wire, scram.final_message(), version)
    if not last.error_code:
        scram.process_server_final_message(bytes(last.auth_bytes))
    return last


# --- by password ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_a_user_with_a_password_logs_in(version):
    async def story(gateway: Served) -> None:
        wire = await gateway.connect()
        await wire.versions()
        done = await login(wire, version=version)
        assert (done.error_code, done.error_message) == (0, None)
        assert not done.session_lifetime_ms
        assert await whoami(wire) == "User:alice"

    play(story, ON)


def test_a_user_may_log_in_without_asking_for_versions_first():
    async def story(gateway: Served) -> None:
        wire = await gateway.connect()
        await login(wire, "bob")
        assert await whoami(wire) == "User:bob"

    play(story, ON)


def test_the_messages_of_a_login_may_be_bare():
    async def story(gateway: Served) -> None:
        wire = await gateway.connect()
        assert (await choose(wire, version=0)).mechanisms == [SCRAM]
        scram = ScramClient("alice", PASSWORD, SCRAM)
        for message, take in (
            (scram.first_message, scram.process_server_first_message),
            (scram.final_message, scram.process_server_final_message),
        ):
            sent = message()
            wire.writer.write(len(sent).to_bytes(4, "big") + sent)
            take(await wire.frame())
        assert await whoami(wire) == "User:alice"

    play(story, ON)


@pytest.mark.parametrize(
    ("name", "password", "why"),
    [("alice", "no", "wrong password"), ("carol", PASSWORD, "unknown user")],
)
def test_a_refused_login_is_told_so_after_a_while_and_closed(caplog, name, password, why):
    async def story(gateway: Served) -> None:
        wire = await gateway.connect()
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        refused = await login(wire, name, password)
        assert refused.error_code == REFUSED
        assert loop.time() - begun_s == pytest.approx(REFUSAL_DELAY_S, abs=0.01)
        assert why not in refused.error_message
        assert await wire.is_closed()
        assert gateway.audit.refused == [(name, HERE)]
        assert not gateway.listener.connections
        assert gateway.listener.progress.count == 0

    play(story)
    assert f"a login from {HERE} was refused: {why} — give" in caplog.text


def test_a_bare_login_that_is_refused_is_closed_without_a_word():
    async def story(gateway: Served) -> None:
        wire = await gateway.connect()
        await choose(wire, version=0)
        wire.writer.write((20).to_bytes(4, "big") + b"n,,n=alice,r=tooshor")
        assert await wire.reader.read() == b""

    play(story)


def test_a_host_can_guess_so_often_a_second_and_no_more(monkeypatch, caplog):
    monkeypatch.setattr(admission, "HALF_OPEN_PER_HOST_MAX", 3)

    async def story(gateway: Served) -> None:
        for _ in range(3):
            guesser = await gateway.connect()
            await choose(guesser)
            message = SaslAuthenticateRequest[2](auth_bytes=b"n,,n=alice,r=short")
            guesser.send(message, SaslAuthenticateResponse)
        await asyncio.sleep(REFUSAL_DELAY_S / 2)
        late = await gateway.connect()
        await choose(late)
        late.send(SaslAuthenticateRequest[2](auth_bytes=b"n,,"), SaslAuthenticateResponse)
        assert await late.is_closed()
        await asyncio.sleep(REFUSAL_DELAY_S)
        assert (await login(await gateway.connect())).error_code == 0

    play(story)
    assert "was not looked at: too many fail" in caplog.text


def test_a_mechanism_that_is_none_of_ours_is_refused_with_those_that_are():
    async def story(gateway: Served) -> None:
        wire = await gateway.connect()
        for mechanism in ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER", ""):
            answer = await choose(wire, mechanism)
            assert (answer.error_code, answer.mechanisms) == (33, [SCRAM])
        assert (await login(wire)).error_code == 0

    play(story)


def test_a_proof_without_a_handshake_is_out_of_turn():
    async def story(gateway: Served) -> None:
        wire = await gateway.connect()
        assert (await authenticate(wire, b"n,,n=alice,r=x")).error_code == 34
        assert (await login(wire)).error_code == 0
        assert (await authenticate(wire, b"n,,n=alice,r=x")).error_code == 34

    play(story)


def test_a_login_that_does_not_end_is_closed_after_a_while():
    async def story(gateway: Served) -> None:
        wire = await gateway.connect()
        await wire.versions()
        await asyncio.sleep(FIRST_FRAME_TIMEOUT_S)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        await choose(wire)
        assert await wire.is_closed()
        assert loop.time() - begun_s == pytest.approx(FIRST_FRAME_TIMEOUT_S)

    play(story)


def test_a_login_that_begins_again_and_again_has_no_more_time():
    async def story(gateway: Served) -> None:
        wire = await gateway.connect()
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for _ in range(3):
            await choose(wire)
            await asyncio.sleep(FIRST_FRAME_TIMEOUT_S / 4)
        await choose(wire)
        assert await wire.is_closed()
        assert loop.time() - begun_s == pytest.approx(FIRST_FRAME_TIMEOUT_S)

    play(story)


def test_before_a_login_so_many_requests_are_answered_and_no_more(caplog):
    async def story(gateway: Served) -> None:
        wire = await gateway.connect()
        for _ in range(STRANGER_REQUESTS_MAX):
            await wire.versions()
        wire.send(SaslHandshakeRequest[1](mechanism=SCRAM), SaslHandshakeResponse)
        assert await wire.is_closed()

    play(story, access=ON)
    assert "again and again before a login" in caplog.text


def test_whoever_logs_in_may_send_nothing_large_meanwhile():
    async def story(gateway: Served) -> None:
        wire = await gateway.connect()
        await wire.versions()
        await choose(wire)
        message = SaslAuthenticateRequest[2](auth_bytes=bytes(FIRST_FRAME_MAX_BYTES))
        wire.send(message, SaslAuthenticateResponse)
        assert await wire.is_closed()

    play(story)


def test_the_connections_of_a_user_that_has_changed_are_closed():
    async def story(gateway: Served) -> None:
        alice, bob, nobody = [await gateway.connect() for _ in range(3)]
        await login(alice)
        await login(bob, "bob")
        assert await whoami(nobody) == ANONYMOUS.name
        gateway.cluster.door.learn(
            Access(rules=Rules(version=5), users=tuple(one for one in USERS if one.name == "bob"))
        )
        assert await alice.is_closed()
        assert await whoami(bob) == "User:bob"
        assert await whoami(nobody) == ANONYMOUS.name

    play(story)


def test_a_user_has_so_many_connections_and_no_more(caplog):
    limits = (("User:alice", Limits(connections=1)),)

    async def story(gateway: Served) -> None:
        first, second = await gateway.connect(), await gateway.connect()
        await login(first)
        with pytest.raises(asyncio.IncompleteReadError):
            await login(second)
        assert await whoami(first) == "User:alice"

    play(story, structs.replace(OFF, rules=Rules(limits=limits)))
    assert "User:alice has 1 connections to this gateway" in caplog.text


# --- nobody -----------------------------------------------------------------------------------


def test_without_a_login_a_connection_is_anonymous_as_long_as_acls_do_not_count():
    async def story(gateway: Served) -> None:
        wire = await gateway.connect()
        assert await whoami(wire) == "User:ANONYMOUS"
        answer = await choose(wire)
        assert answer.error_code == 34, "it is too late for a login"

    play(story)


def test_once_acls_count_and_none_is_for_anybody_a_login_is_needed(caplog):
    async def story(gateway: Served) -> None:
        wire = await gateway.connect()
        assert (await wire.versions()).error_code == 0
        wire.send(FindCoordinatorRequest[2](key="k", key_type=0), FindCoordinatorResponse)
        assert await wire.is_closed()

    play(story, ON)
    assert "FindCoordinator before a login — give client 'c' a user and password" in caplog.text


def acl(principal: str, *, is_allowed: bool = True) -> Acl:
    return Acl(
        principal=principal,
        resource=Resource.TOPIC,
        name="t",
        operation=Operation.READ,
        is_allowed=is_allowed,
    )


@pytest.mark.parametrize(
    ("rules", "is_let_in"),
    [
        (Rules(), True),
        (Rules(is_on=True), False),
        (Rules(is_on=True, acls=(acl("User:alice"),)), False),
        (Rules(is_on=True, acls=(acl(ANYBODY, is_allowed=False),)), False),
        (Rules(is_on=True, acls=(acl(ANYBODY),)), True),
        (Rules(is_on=True, acls=(acl("User:ANONYMOUS"),)), True),
        (Rules(is_on=True, super_users=frozenset({"User:ANONYMOUS"})), True),
    ],
)
def test_nobody_is_let_in_who_may_do_nothing(rules, is_let_in):
    assert may_be_anonymous(rules) is is_let_in

    async def story(gateway: Served) -> None:
        wire = await gateway.connect()
        if is_let_in:
            assert await whoami(wire) == "User:ANONYMOUS"
        else:
            with pytest.raises(asyncio.IncompleteReadError):
                await whoami(wire)

    play(story, Access(rules=rules))


# --- over TLS ---------------------------------------------------------------------------------


@pytest.fixture
def authority(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Authority:
    """Secures this process."""
    authority = Authority(tmp_path, "ours")
    for name in (IN_USE, *FILES, *OUR_FILES):
        monkeypatch.delenv(name, raising=False)
    for name, text in authority.issue(HERE).items():
        monkeypatch.setenv(name, text)
    return authority


def context_of(authority: Authority, issued: Authority | None = None) -> ssl.SSLContext:
    """A client that trusts ``authority``, and shows what was ``issued`` to it."""
    context = ssl.create_default_context(cafile=str(authority.path))
    if issued is not None:
        files = issued.issue("127.0.0.9")
        context.load_cert_chain(files["RAY_TLS_SERVER_CERT"], files["RAY_TLS_SERVER_KEY"])
    return context


RUNS = pytest.mark.parametrize("run", [to_its_end, uvloop.run])


@RUNS
def test_a_certificate_names_a_user(authority, run):
    async def story(gateway: Served) -> None:
        wire = await gateway.connect(context_of(authority, authority))
        assert await whoami(wire) == "User:cert"

    play(story, ON, run, naming=Names(Named("cert", None)))


@RUNS
def test_a_certificate_that_names_nobody_closes_the_connection(authority, caplog, run):
    async def story(gateway: Served) -> None:
        wire = await gateway.connect(context_of(authority, authority))
        assert await wire.is_closed()

    play(story, OFF, run, naming=Names())
    assert "was refused: no rule names it" in caplog.text


@RUNS
def test_who_shows_no_certificate_must_log_in_though_acls_do_not_count(authority, run):
    async def story(gateway: Served) -> None:
        wire = await gateway.connect(context_of(authority))
        with pytest.raises((asyncio.IncompleteReadError, ssl.SSLError, ConnectionError)):
            await whoami(wire)
        user = await gateway.connect(context_of(authority))
        await user.versions()
        await login(user)
        assert await whoami(user) == "User:alice"

    play(story, OFF, run, naming=Names())


@RUNS
def test_a_login_counts_for_more_than_a_certificate(authority, run):
    async def story(gateway: Served) -> None:
        wire = await gateway.connect(context_of(authority, authority))
        await login(wire)
        assert await whoami(wire) == "User:alice"

    play(story, OFF, run, naming=Names(Named("cert", None)))


@RUNS
def test_a_certificate_of_another_authority_is_refused(authority, tmp_path, run):
    async def story(gateway: Served) -> None:
        foreign = context_of(authority, Authority(tmp_path, "theirs"))
        wire = None
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            wire = await gateway.connect(foreign)
        if wire is not None:
            # A client learns of it only once it reads.
            with pytest.raises((asyncio.IncompleteReadError, ssl.SSLError, ConnectionError)):
                await whoami(wire)
        assert not gateway.listener.places._trusted

    play(story, OFF, run, naming=Names(Named("cert", None)))


@RUNS
def test_a_client_that_does_not_secure_its_connection_is_closed(authority, caplog, run):
    async def story(gateway: Served) -> None:
        wire = await gateway.connect()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await whoami(wire)

    play(story, OFF, run)
    assert "set its security.protocol to SSL or SASL_SSL" in caplog.text


def bearer(name: str) -> bytes:
    return f"n,,\x01auth=Bearer of-{name}\x01\x01".encode()


async def show_token(wire: Wire, message: bytes) -> Any:
    assert (await choose(wire, "OAUTHBEARER")).error_code == 0
    return await authenticate(wire, message)


@RUNS
def test_a_signed_token_names_a_user_until_it_expires(authority, run):
    async def story(gateway: Served) -> None:
        wire = await gateway.connect(context_of(authority))
        done = await show_token(wire, bearer("tom"))
        assert (done.error_code, bytes(done.auth_bytes)) == (0, b"")
        assert done.session_lifetime_ms == 60_000
        assert await whoami(wire) == "User:tom"

    play(story, ON, run, naming=Names())


@RUNS
@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"n,,\x01auth=Bearer forged\x01\x01", "a wrong signature"),
        (b"n,,\x01host=h\x01\x01", "no bearer token"),
        (b"", "no bearer token"),
        (b"y,,\x01auth=Bearer of-tom\x01\x01", "no bearer token"),
    ],
)
def test_a_token_that_is_none_is_refused(authority, monkeypatch, caplog, run, message, why):
    monkeypatch.setattr("oncelog.actors.gateway.listener.REFUSAL_DELAY_S", 0.0)

    async def story(gateway: Served) -> None:
        wire = await gateway.connect(context_of(authority))
        assert (await show_token(wire, message)).error_code == REFUSED
        assert await wire.is_closed()

    play(story, OFF, run, naming=Names())
    assert why in caplog.text


# --- once more --------------------------------------------------------------------------------


@RUNS
def test_a_proof_is_renewed_by_the_same_user_only(authority, monkeypatch, caplog, run):
    monkeypatch.setattr("oncelog.actors.gateway.listener.REFUSAL_DELAY_S", 0.0)

    async def story(gateway: Served) -> None:
        wire = await gateway.connect(context_of(authority))
        await show_token(wire, bearer("tom"))
        assert await whoami(wire) == "User:tom"
        assert (await show_token(wire, bearer("tom"))).error_code == 0
        assert await whoami(wire) == "User:tom"
        assert (await show_token(wire, bearer("eve"))).error_code == REFUSED
        assert await wire.is_closed()

    play(story, OFF, run, naming=Names())
    assert "a connection was to become another user's" in caplog.text


def test_a_connection_ends_with_its_proof_unless_that_is_renewed(monkeypatch):
    # Over TLS no virtual time passes by itself, so here tokens are taken without it.
    monkeypatch.setattr("oncelog.actors.gateway.sasl.Login.mechanisms", ["OAUTHBEARER"])
    names = Names()

    async def story(gateway: Served) -> None:
        loop = asyncio.get_running_loop()
        wire = await gateway.connect()
        begun_s = loop.time()
        await show_token(wire, bearer("tom"))
        await asyncio.sleep(40)
        names.now_ms += 40_000
        assert (await show_token(wire, bearer("tom"))).error_code == 0
        await asyncio.sleep(40)
        assert await whoami(wire) == "User:tom"
        assert await wire.is_closed()
        assert loop.time() - begun_s == pytest.approx(100, abs=0.1)

    play(story, ON, naming=names)
