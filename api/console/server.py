"""The console's web server: its application, what every request passes, and its end.

A request passes, in this order: the headers of every reply, the name of the host, the site that it
comes from, the time it may take, the session, and for a form its token. Then a page is made
(``pages``). Connections are counted before a byte is read, and closed when they are slow or idle
(``Connections``).

One file: what each request passes is read in that order.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, cast

from aiohttp import web

from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.actors.rpc.handshake import UserIdentity
from oncelog.api.console import pages
from oncelog.api.console.access import (
    Hosts,
    RefusedLoginError,
    Sessions,
    address_key,
    is_same_origin,
)
from oncelog.api.console.rendering import (
    CONSOLE,
    SESSION,
    VIEWER,
    Console,
    error_page,
    login_page,
)
from oncelog.api.console.snapshot import Link, Viewer
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError

DEFAULT_PORT: Final = 8_270

CONNECTIONS_MAX: Final = 200
"""Beyond them the one idle longest is closed; if none is idle, the new one."""

CONNECTIONS_PER_ADDRESS_MAX: Final = 40
"""From one address (IPv6: 64 bits); beyond them its own idle longest is closed, else its oldest."""

HEADERS_S: Final = 10.0
"""How long a request's headers may take to arrive."""

BODY_S: Final = 10.0
"""How long a form may take to arrive."""

IDLE_S: Final = 60.0
"""How long a connection may be idle, or leave a reply unread."""

REQUEST_S: Final = 40.0
"""How long a page may take; the questions behind it give up sooner."""

BODY_MAX_BYTES: Final = 65_536
URL_MAX_BYTES: Final = 8_190

SHUTDOWN_S: Final = 2.0

COOKIE: Final = "oncelog_console"
"""With the port behind it: browsers send the cookies of a host to each of its ports."""

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # Not "no-referrer": browsers then hide the origin of our own forms too.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_STATIC: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}

_logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


# --- connections ------------------------------------------------------------------------------


class Connections:
    """Every connection of the server, by its transport."""

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self._make = make
        self._guards: dict[asyncio.BaseTransport, _Guard] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def __call__(self) -> asyncio.Protocol:
        """A protocol for one more connection."""
        return _Guard(self._make(), self)

    def admit(self, guard: _Guard, transport: asyncio.BaseTransport) -> bool:
        """Count a connection; ``False`` if it is one too many, and no other is idle.

        Whoever has many from one address loses those, and takes none of others.
        """
        own = [one for one in self._guards.values() if one.address == guard.address]
        if len(own) >= CONNECTIONS_PER_ADDRESS_MAX:
            min(own, key=lambda one: (one.is_busy, one.changed_s)).abort()
        if len(self._guards) >= CONNECTIONS_MAX:
            idle = [one for one in self._guards.values() if not one.is_busy]
            if not idle:
                return False
            min(idle, key=lambda one: one.changed_s).abort()
        self._guards[transport] = guard
        return True

    def remove(self, transport: asyncio.BaseTransport) -> None:
        """A connection has ended."""
        self._guards.pop(transport, None)

    def of(self, request: web.Request) -> _Guard | None:
        """The connection of a request, if it is still there."""
        transport = request.transport
        return None if transport is None else self._guards.get(transport)


class _Guard(asyncio.Protocol):
    """One connection: passes everything on, and ends it when it is slow or idle."""

    def __init__(self, inner: asyncio.Protocol, connections: Connections) -> None:
        self._inner = inner
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_admitted = False
        self._is_receiving = False
        self.is_busy = False
        self.address = ""
        self.changed_s = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.address = address_key(str(peer[0])) if peer else ""
        self._is_admitted = self._connections.admit(self, transport)
        if not self._is_admitted:
            self._transport.abort()
            return
        self._inner.connection_made(transport)
        self._wait(HEADERS_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._connections.remove(self._transport)
        if self._is_admitted:
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``. The first bytes of a request begin its time."""
        if not self._is_admitted:
            return
        if not self.is_busy and not self._is_receiving:
            self._is_receiving = True
            self._wait(HEADERS_S)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """See ``asyncio.Protocol``."""
        return self._inner.eof_received() if self._is_admitted else None

    def pause_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        self._inner.resume_writing()

    def begin(self) -> None:
        """The headers of a request are there; its handler has a time of its own."""
        self.is_busy, self._is_receiving = True, False
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """Its handler is done: what is left is to send the reply, and to wait for another."""
        self.is_busy = False
        self._wait(IDLE_S)

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            # Here already: the next to come must find its place.
            self._connections.remove(self._transport)
            self._transport.abort()

    def _wait(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.changed_s = self._loop.time()
        self._timer = self._loop.call_later(time_s, self.abort)


# --- what every request passes ----------------------------------------------------------------


@web.middleware
async def _with_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Put the headers on every reply, errors of aiohttp included."""
    try:
        response = await handler(request)
    except web.HTTPException as error:
        error.headers.update(HEADERS)
        raise
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


@web.middleware
async def _of_known_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not request.app[CONSOLE].hosts.allows(request.headers.get("Host")):
        raise web.HTTPMisdirectedRequest(
            text="This is no name of this console. Start it with --allowed-host NAME to allow it.\n"
        )
    return await handler(request)


@web.middleware
async def _of_no_other_site(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what a page of another site embeds: it cannot read it, but each costs us work.

    A link from there may be followed. Browsers say which it is; other programs say nothing.
    """
    headers = request.headers
    is_foreign = headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
    is_link = headers.get("Sec-Fetch-Mode") == "navigate"
    is_link = is_link and headers.get("Sec-Fetch-Dest", "document") == "document"
    if is_foreign and not is_link:
        raise web.HTTPForbidden(text="Pages of other sites may only link to this console.\n")
    return await handler(request)


@web.middleware
async def _in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
    connections = request.app[CONSOLE].connections
    guard = connections.of(request) if connections is not None else None
    if guard is not None:
        guard.begin()
    try:
        return await asyncio.wait_for(handler(request), REQUEST_S)
    except asyncio.TimeoutError:
        told = "The page took too long. Load it again.\n"
        if request.method == "POST" and request.path.startswith("/actions/"):
            told = "It took too long, and may have been done: look before you repeat it.\n"
        raise web.HTTPGatewayTimeout(text=told) from None
    finally:
        if guard is not None:
            guard.end()


@web.middleware
async def _with_viewer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Find out who looks; whoever must log in is sent to do so."""
    console = request.app[CONSOLE]
    session = await console.sessions.find(request.cookies.get(cookie_name(request)))
    request[SESSION] = session
    request[VIEWER] = session.viewer if session is not None else console.own_viewer
    is_open = request.path.startswith("/static/") or request.path == "/login"
    if console.asks_login and session is None and not is_open:
        if "HX-Request" in request.headers or request.path.startswith("/data/"):
            return web.Response(status=401, headers={"HX-Refresh": "true"})
        raise web.HTTPSeeOther("/login")
    return await handler(request)


@web.middleware
async def _of_our_forms(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a form that is none of ours; read it within its time."""
    if request.method in ("GET", "HEAD"):
        return await handler(request)
    console = request.app[CONSOLE]
    headers = request.headers
    is_ours = is_same_origin(
        headers.get("Origin"), headers.get("Host"), is_secure=console.is_secure
    )
    if not is_ours:
        raise web.HTTPForbidden(text="This form was not sent by a page of this console.\n")
    try:
        form = await asyncio.wait_for(request.post(), BODY_S)
    except asyncio.TimeoutError:
        raise web.HTTPRequestTimeout(text="The form took too long to arrive.\n") from None
    except ValueError:
        raise web.HTTPBadRequest(text="This is no form.\n") from None
    if not console.sessions.is_form_token(form.get("token"), request[SESSION]):
        raise web.HTTPForbidden(text="This form is too old. Load its page again.\n")
    return await handler(request)


@web.middleware
async def _with_error_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except OncelogError as error:
        return await error_page(request, error)
    except web.HTTPException:
        raise
    except Exception:
        _logger.exception(
            "a page of the console failed: %s — tell its makers: it is a bug", request.path
        )
        raise web.HTTPInternalServerError(text="A bug: the console's log says more.\n") from None


# --- logins -----------------------------------------------------------------------------------


async def _log_in(request: web.Request) -> web.StreamResponse:
    console = request.app[CONSOLE]
    form = await request.post()
    name, password = form.get("user"), form.get("password")
    try:
        session = await console.sessions.log_in(
            name if isinstance(name, str) else "",
            password if isinstance(password, str) else "",
            request.remote or "",
        )
    except RefusedLoginError as error:
        return login_page(request, str(error), status=403)
    response = web.HTTPSeeOther("/")
    response.set_cookie(
        cookie_name(request),
        session.token,
        httponly=True,
        samesite="Strict",
        secure=console.is_secure,
        path="/",
    )
    raise response


def cookie_name(request: web.Request) -> str:
    """The session's cookie: of this host alone with TLS, and of the port that the browser uses."""
    prefix = "__Host-" if request.app[CONSOLE].is_secure else ""
    return f"{prefix}{COOKIE}_{request.url.port}"


async def _log_out(request: web.Request) -> web.StreamResponse:
    if request[SESSION] is not None:
        await request.app[CONSOLE].sessions.end(request[SESSION])
    response = web.HTTPSeeOther("/login" if request.app[CONSOLE].asks_login else "/")
    response.del_cookie(cookie_name(request), path="/", secure=request.app[CONSOLE].is_secure)
    raise response


def user_maker(link: Link, random: Random) -> Callable[[str, str], Awaitable[Viewer]]:
    """Connects as a user of the cluster; the cluster checks the password."""

    async def make(name: str, password: str) -> Viewer:
        viewer = Viewer(link, UserIdentity(name, password), name, random=random)
        try:
            router = viewer.connected().router
        except OncelogError as error:
            raise RefusedLoginError(f"{error}. Nobody can log in until then.") from None
        reply = await router.transport.call(
            CONTROLLER_ACTOR, MetadataRequest(topics=()), timeout_ms=5_000
        )
        if reply.error is ErrorCode.NONE:
            return viewer
        await viewer.close()
        if reply.error is ErrorCode.SASL_AUTHENTICATION_FAILED:
            raise RefusedLoginError("The cluster does not know this user with this password.")
        raise RefusedLoginError(f"The cluster does not answer now ({reply.error.name}). Try again.")

    return make


# --- the application --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the console is to be served; see the options of ``oncelog console``."""

    host: str = "127.0.0.1"
    allowed_hosts: tuple[str, ...] = ()
    asks_login: bool = False
    writes: bool = False
    title: str = ""
    tls: ssl.SSLContext | None = None
    command_options: tuple[str, ...] = ()
    """What selects the cluster, for the commands that pages show."""


def make_app(link: Link, options: Options, random: Random) -> web.Application:
    """The application, for one event loop, which must be running."""
    app = web.Application(
        client_max_size=BODY_MAX_BYTES,
        middlewares=[
            _with_headers,
            _of_known_host,
            _of_no_other_site,
            _in_time,
            _with_viewer,
            _of_our_forms,
            _with_error_pages,
        ],
    )
    console = Console(
        link=link,
        own_viewer=Viewer(link, random=random),
        sessions=Sessions(user_maker(link, random)),
        hosts=Hosts(options.host, options.allowed_hosts),
        asks_login=options.asks_login,
        writes=options.writes,
        title=options.title,
        is_secure=options.tls is not None,
        command_options=options.command_options,
    )
    app[CONSOLE] = console
    pages.add_routes(app, writes=options.writes)
    app.router.add_post("/login", _log_in)
    app.router.add_post("/logout", _log_out)
    _add_static(app)

    async def close(_: web.Application) -> None:
        await console.sessions.close()
        await console.own_viewer.close()

    app.on_cleanup.append(close)
    return app


def _add_static(app: web.Application) -> None:
    """Serve the files of ``static`` from memory: a page asks for them once per version."""
    for path in sorted(_STATIC.rglob("*")):
        kind = _TYPES.get(path.suffix)
        if kind is None:
            continue
        body = path.read_bytes()
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'

        async def serve(
            request: web.Request, body: bytes = body, kind: str = kind, tag: str = tag
        ) -> web.StreamResponse:
            headers = {"ETag": tag, "Cache-Control": "no-cache"}
            if request.headers.get("If-None-Match") == tag:
                return web.Response(status=304, headers=headers)
            return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

        app.router.add_get(f"/static/{path.relative_to(_STATIC).as_posix()}", serve)


async def serve(
    link: Link,
    listener: socket.socket,
    options: Options,
    *,
    until: asyncio.Event,
    random: Random,
    on_ready: Callable[[], Any] = lambda: None,
) -> None:
    """Serve on a bound socket until ``until`` is set; then end what is under way."""
    app = make_app(link, options, random)
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=SHUTDOWN_S,
        max_line_size=URL_MAX_BYTES,
        max_field_size=URL_MAX_BYTES,
    )
    await runner.setup()
    try:
        connections = Connections(cast("Callable[[], asyncio.Protocol]", runner.server))
        app[CONSOLE].connections = connections
        server = await asyncio.get_running_loop().create_server(
            connections,
            sock=listener,
            ssl=options.tls,
            ssl_handshake_timeout=None if options.tls is None else HEADERS_S,
        )
        on_ready()
        await until.wait()
        server.close()
    finally:
        await runner.cleanup()
