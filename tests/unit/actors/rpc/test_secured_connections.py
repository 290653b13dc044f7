"""Connections under certificates: who has none, or a foreign one, is not talked to."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import ssl
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from called_server import TIMEOUT_MS, Server, fetch, listener_of, produce
from deadlines import until
from inside import callers_of
from issued_certificates import Authority

from oncelog.actors.process.clock import SystemClock
from oncelog.actors.rpc import admission
from oncelog.actors.rpc import listener as listener_module
from oncelog.actors.rpc.actor_transport import connect
from oncelog.actors.rpc.certificates import FILES, IN_USE, OUR_FILES, Certificates
from oncelog.actors.rpc.frames import HELLO
from oncelog.actors.rpc.listener import Listener, ListenerAddress
from oncelog.storage.exceptions import InvalidSettingError

HERE = "127.0.0.1"
LARGE_BYTES = 3_000_000


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch):
    """Gives Ray's variables to this process; none of those before stay."""

    def give(variables: dict[str, str]) -> None:
        for name in (IN_USE, *FILES, *OUR_FILES):
            monkeypatch.delenv(name, raising=False)
        for name, text in variables.items():
            monkeypatch.setenv(name, text)

    give({})
    return give


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "theirs")


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[tuple[Server, Listener, ListenerAddress]]:
    server = Server()
    listener = listener_of(server)
    address = await listener.address()
    try:
        yield server, listener, address
    finally:
        await listener.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_calls_of_any_size_pass_between_those_who_are_certified(use, authority, run):
    async def body() -> None:
        async with listening() as (server, _, address):
            connection = await connect(address, timeout_ms=TIMEOUT_MS)
            assert connection is not None
            assert connection.transport is not None
            secured: ssl.SSLObject = connection.transport.get_extra_info("ssl_object")
            assert secured.version() == "TLSv1.3"
            batch = bytes(range(250)) * (LARGE_BYTES // 250)
            sent = [connection.call(produce(n, batch), timeout_ms=TIMEOUT_MS) for n in range(3)]
            assert [reply.base_offset for reply in await asyncio.gather(*sent)] == [0, 1, 2]
            assert server.batches == [batch] * 3
            reply = await connection.call(fetch(LARGE_BYTES), timeout_ms=TIMEOUT_MS)
            assert reply.records == b"r" * LARGE_BYTES
            connection.close()

    use(authority.issue(HERE))
    run(body())


def test_no_connection_leaves_a_ticket_that_outlives_a_certificate(use, authority):
    """Whoever resumes by a ticket is not asked for a certificate again, and none is checked."""

    async def body() -> None:
        async with listening() as (_, _, address):
            connection = await connect(address, timeout_ms=TIMEOUT_MS)
            assert connection is not None
            assert (await connection.call(fetch(1), timeout_ms=TIMEOUT_MS)).records == b"r"
            assert connection.transport is not None
            secured: ssl.SSLObject = connection.transport.get_extra_info("ssl_object")
            assert secured.session is not None
            assert not secured.session.has_ticket
            connection.close()

    use(authority.issue(HERE))
    asyncio.run(body())


def hello(token: bytes) -> bytes:
    """The first frame of a caller who knows the token."""
    body = (0).to_bytes(8, "big") + bytes([len(HELLO)]) + HELLO.encode() + token
    return len(body).to_bytes(4, "big") + body


async def refused(address: ListenerAddress) -> None:
    assert await connect(address, timeout_ms=TIMEOUT_MS) is None


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_caller_of_another_authority_is_refused(use, authority, stranger, caplog, run):
    async def body() -> None:
        use(authority.issue(HERE))
        async with listening() as (_, listener, address):
            foreign = stranger.issue(HERE)
            # It takes the actor for one of ours, and has a certificate of somebody else.
            use({**foreign, "RAY_TLS_CA_CERT": str(authority.path)})
            await refused(address)
            assert not callers_of(listener)
            assert f"RAY_TLS_SERVER_CERT='{foreign['RAY_TLS_SERVER_CERT']}'" in caplog.text

    run(body())


def test_a_caller_without_a_certificate_is_refused(use, authority):
    async def body() -> None:
        use(authority.issue(HERE))
        async with listening() as (_, listener, address):
            context = ssl.create_default_context(cafile=str(authority.path))
            heard = b""
            # Whether it is told of the refusal or only finds the connection closed is chance.
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, ssl=context
                )
                writer.write(hello(address.token))
                heard = await reader.read(100)
                writer.close()
            assert heard == b""
            assert not callers_of(listener)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("issuer", "certified", "reason"),
    [("theirs", HERE, "certificate verify failed"), ("ours", "127.0.0.9", "not valid for '127")],
)
def test_an_actor_that_is_not_certified_for_its_address_is_not_trusted(
    use, authority, stranger, caplog, issuer, certified, reason
):
    async def body() -> None:
        use((authority if issuer == "ours" else stranger).issue(certified))
        async with listening() as (_, listener, address):
            use(authority.issue(HERE))
            await refused(address)
            assert not callers_of(listener)
            assert reason in caplog.text
            assert f"RAY_TLS_CA_CERT='{authority.path}'" in caplog.text

    asyncio.run(body())


@pytest.mark.parametrize("is_listener_secured", [True, False])
def test_plain_text_is_refused_by_either_side(use, authority, is_listener_secured):
    async def body() -> None:
        secured = authority.issue(HERE)
        use(secured if is_listener_secured else {})
        async with listening() as (_, listener, address):
            use({} if is_listener_secured else secured)
            await refused(address)
            assert not callers_of(listener)

    asyncio.run(body())


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "is not set"), ("", "cannot be read: No such file"), ("no PEM", "no certificate")],
)
def test_files_that_cannot_be_used_are_named_and_nothing_goes_in_plain_text(
    use, authority, tmp_path, caplog, name, content, reason
):
    path = tmp_path / "wrong"
    if content:
        path.write_text(content)
    variables = authority.issue(HERE)
    variables[name] = str(path)
    if content is None:
        del variables[name]

    async def body() -> None:
        use({})
        async with listening() as (_, listener, address):
            use(variables)
            await refused(address)
            assert not callers_of(listener)
        with pytest.raises(InvalidSettingError, match=f"{name}.*{reason}"):
            await listener_of(Server()).address()

    asyncio.run(body())
    (warning,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert name in warning.getMessage()
    assert reason in warning.getMessage()


def test_without_certificates_connections_have_none(use):
    assert Certificates(SystemClock()).context(is_caller=True) is None
    use({IN_USE: "0", OUR_FILES[0]: ""})
    assert Certificates(SystemClock()).context(is_caller=False) is None


def test_an_older_tls_is_refused(use, authority):
    async def body() -> None:
        use(authority.issue(HERE))
        context = Certificates(SystemClock()).context(is_caller=True)
        assert context is not None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        async with listening() as (_, _, address):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(address.host, address.port, ssl=context)

    asyncio.run(body())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_handshakes_that_do_not_end_are_counted_and_give_way(use, authority, monkeypatch, run):
    monkeypatch.setattr(admission, "HALF_OPEN_PER_HOST_MAX", 3)

    async def body() -> None:
        async with listening() as (_, listener, address):
            where = (address.host, address.port)
            strangers = [await asyncio.open_connection(*where) for _ in range(8)]
            for reader, _ in strangers[:5]:
                with contextlib.suppress(ConnectionError):
                    # Long before its handshake times out.
                    assert await asyncio.wait_for(reader.read(), 5) == b""
            connection = await connect(address, timeout_ms=TIMEOUT_MS)
            assert connection is not None
            assert (await connection.call(fetch(1), timeout_ms=TIMEOUT_MS)).records == b"r"
            connection.close()
            for _, writer in strangers:
                writer.close()
            assert len(callers_of(listener)) <= 1

    use(authority.issue(HERE))
    run(body())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_callers_who_come_at_once_do_not_close_each_other(use, authority, monkeypatch, run):
    """A connection gives its place as a handshake back before it takes the next."""
    monkeypatch.setattr(admission, "HALF_OPEN_PER_HOST_MAX", 8)

    async def body() -> None:
        async with listening() as (_, _, address):
            opening = (connect(address, timeout_ms=TIMEOUT_MS) for _ in range(8))
            connections = await asyncio.gather(*opening)
            assert all(connection is not None for connection in connections)
            for connection in connections:
                connection.close()

    use(authority.issue(HERE))
    run(body())


def test_a_lost_connection_leaves_nothing_that_only_the_garbage_collector_frees(use, authority):
    async def body() -> None:
        async with listening() as (_, listener, address):
            connection = await connect(address, timeout_ms=TIMEOUT_MS)
            assert connection is not None
            await until(lambda: callers_of(listener))
            sides: list[Any] = [connection, *callers_of(listener)]
            secured = [weakref.ref(side.transport.get_extra_info("ssl_object")) for side in sides]
            sides.clear()
            connection.close()
            del connection
            await until(lambda: not any(one() for one in secured))

    use(authority.issue(HERE))
    gc.disable()
    try:
        # The loop of production: asyncio's own leaves cycles.
        uvloop.run(body())
    finally:
        gc.enable()


def test_when_many_handshakes_have_ended_freed_memory_is_returned(use, authority, monkeypatch):
    monkeypatch.setattr(listener_module, "TRIM_AFTER", 3)
    monkeypatch.setattr(listener_module, "TRIM_DELAY_S", 0.0)
    returned: list[None] = []
    monkeypatch.setattr(listener_module, "return_freed_memory", lambda: returned.append(None))

    async def body() -> None:
        async with listening() as (_, _, address):
            for number in range(6):
                _, writer = await asyncio.open_connection(address.host, address.port)
                assert len(returned) == number // 3
                writer.write(b"no message of TLS")
                count = (number + 1) // 3
                await until(lambda count=count: len(returned) == count)
                writer.close()

    use(authority.issue(HERE))
    asyncio.run(body())


def test_a_node_of_ipv6_listens(use, authority):
    async def body() -> None:
        listener = listener_of(Server(), host="::1")
        connection = await connect(await listener.address(), timeout_ms=TIMEOUT_MS)
        assert connection is not None
        connection.close()
        await listener.close()

    use(authority.issue("::1"))
    asyncio.run(body())
