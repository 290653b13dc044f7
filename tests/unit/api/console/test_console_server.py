"""Connections of the console: how many, how slow, how long."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from random import Random

import pytest
from console_cluster import ConsoleCluster

from oncelog.api.console import server
from oncelog.api.console.server import Options, serve
from oncelog.api.console.snapshot import Link


@contextlib.asynccontextmanager
async def served():
    """The port of a console that serves as the command does."""
    link = Link()
    link.replace(ConsoleCluster())
    listener = socket.create_server(("127.0.0.1", 0))
    until, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.ensure_future(
        serve(link, listener, Options(), until=until, random=Random(1), on_ready=ready.set)
    )
    await ready.wait()
    try:
        yield listener.getsockname()[1]
    finally:
        until.set()
        await task


async def ask(port, path="/static/console.css"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    reply = await reader.read()
    writer.close()
    return reply


async def is_closed(reader):
    with contextlib.suppress(ConnectionError):
        await reader.read()
    return True


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: loc"])
def test_a_connection_whose_request_does_not_come_is_closed(monkeypatch, begun):
    monkeypatch.setattr(server, "HEADERS_S", 0.05)

    async def scenario():
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begun)
            closed = await is_closed(reader)
            writer.close()
            return closed

    assert asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_form_that_does_not_arrive_is_given_up(monkeypatch):
    monkeypatch.setattr(server, "BODY_S", 0.05)

    async def scenario():
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                f"POST /login HTTP/1.1\r\nHost: localhost:{port}\r\n"
                f"Origin: http://localhost:{port}\r\nContent-Length: 100\r\n"
                "Content-Type: application/x-www-form-urlencoded\r\n\r\nuser=".encode()
            )
            line = await reader.readline()
            writer.close()
            return line

    assert b"408" in asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_connection_that_stays_idle_after_its_reply_is_closed(monkeypatch):
    monkeypatch.setattr(server, "IDLE_S", 0.05)

    async def scenario():
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /static/console.css HTTP/1.1\r\nHost: localhost\r\n\r\n")
            first = await reader.readline()
            closed = await is_closed(reader)
            writer.close()
            return first, closed

    first, closed = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert b"200" in first
    assert closed


def test_beyond_the_most_connections_the_one_idle_longest_is_closed(monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 3)

    async def scenario():
        async with served() as port:
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            reply = await ask(port)
            closed = await is_closed(held[0][0])
            for _, writer in held:
                writer.close()
            return reply, closed

    reply, closed = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert b"200 OK" in reply
    assert closed


def test_if_none_is_idle_the_new_connection_is_closed(monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(viewer):
        begun.set()
        await go_on.wait()
        raise server.OncelogError("enough")

    monkeypatch.setattr("oncelog.api.console.snapshot.Viewer.groups", wait)

    async def scenario():
        async with served() as port:
            busy = asyncio.ensure_future(ask(port, "/groups"))
            await begun.wait()
            refused = b""
            with contextlib.suppress(ConnectionError):
                refused = await ask(port)
            go_on.set()
            return refused, await busy

    refused, busy = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert refused == b""
    assert busy.startswith(b"HTTP/1.1 403")


def test_who_has_many_connections_loses_an_own_one_though_none_is_idle(monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS_PER_ADDRESS_MAX", 1)
    begun = asyncio.Event()

    async def wait(viewer):
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("oncelog.api.console.snapshot.Viewer.groups", wait)

    async def scenario():
        async with served() as port:
            busy = asyncio.ensure_future(ask(port, "/groups"))
            await begun.wait()
            reply = await ask(port)
            with contextlib.suppress(ConnectionError):
                assert await busy == b""
            return reply

    assert b"200 OK" in asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_page_that_takes_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr(server, "REQUEST_S", 0.05)

    async def hang(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr("oncelog.api.console.snapshot.Viewer.groups", hang)

    async def scenario():
        async with served() as port:
            return await ask(port, "/groups")

    assert b"504" in asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("size_bytes", [70_000])
def test_a_form_that_is_too_large_is_refused(size_bytes):
    async def scenario():
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                f"POST /login HTTP/1.1\r\nHost: localhost:{port}\r\n"
                f"Origin: http://localhost:{port}\r\nContent-Length: {size_bytes}\r\n"
                "Content-Type: application/x-www-form-urlencoded\r\n\r\n".encode()
            )
            writer.write(b"x" * size_bytes)
            line = await reader.readline()
            writer.close()
            return line

    assert b"413" in asyncio.run(asyncio.wait_for(scenario(), 60))
