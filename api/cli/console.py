"""``oncelog console``: the web console of a cluster, until a signal ends it.

The main thread owns the connection, as joining Ray and signals need; the pages are served on
another thread. Every few seconds this thread looks whether the cluster is there, and lets go of one
that is gone. It looks for another as often as somebody looks at a page.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import random
import secrets
import socket
import ssl
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from oncelog.actors.process.clock import monotonic_s
from oncelog.api.cli.arguments import Arguments, Command, WholeNumber, flag, option, repeated
from oncelog.api.cli.connect import answers, cluster_options, connect
from oncelog.api.cli.terminal import CliError, UsageError, say
from oncelog.api.session import cluster_connection
from oncelog.api.session.ray_cluster import ray_cluster_at
from oncelog.storage.exceptions import ConnectionFailedError, OncelogError

if TYPE_CHECKING:
    from oncelog.api.client import Cluster

DEFAULT_PORT: Final = 8_270
PORTS_TRIED: Final = 20
"""Without ``--port``, this many ports are tried."""

RECONNECT_S: Final = 3.0
"""The time between two attempts to find a cluster that is gone."""

LOOK_S: Final = 10.0
"""How often it is looked whether the cluster is there, though nobody looks at a page.

Ray ends a program whose cluster is gone for a minute: the console has to leave before.
"""

WAKE_S: Final = 1.0
"""How long a signal may wait that another thread has got."""

STOP_TIMEOUT_S: Final = 10.0
BACKLOG: Final = 128

_SERVER: Final = "oncelog.api.console.server"
_SNAPSHOT: Final = "oncelog.api.console.snapshot"

_logger = logging.getLogger(__name__)


@click.command(cls=Command)
@option(
    "--port",
    type=WholeNumber(1, 65_535),
    metavar="PORT",
    help=f"port to serve on (default: {DEFAULT_PORT}, or the next free one)",
)
@option(
    "--host",
    default="127.0.0.1",
    metavar="HOST",
    help="address to serve on (default: 127.0.0.1); any but this machine's own needs TLS",
)
@flag("--write", "let pages change things too: abort, move, drain, reset")
@flag("--login", "ask for a user of the cluster on this machine too, as on any other --host")
@option("--title", default="", metavar="TEXT", help="shown on each page")
@option("--tls-cert", metavar="FILE", help="certificate to serve with, in PEM")
@option("--tls-key", metavar="FILE", help="its key, in PEM")
@repeated("--allowed-host", "NAME", "a further name that browsers may use")
@cluster_options
def console(args: Arguments) -> int:
    """Serve until a signal."""
    # By name, because the console is a layer above this package.
    server: Any = importlib.import_module(_SERVER)
    access: Any = importlib.import_module("oncelog.api.console.access")
    is_local = access.is_loopback(args.host)
    tls = _tls(args)
    if not is_local and tls is None:
        raise UsageError(
            f"--host {args.host!r} can be reached from other machines, and logins need TLS",
            "give --tls-cert and --tls-key, or serve on 127.0.0.1 and use `ssh -L`",
        )
    options = server.Options(
        host=args.host,
        allowed_hosts=tuple(args.allowed_host),
        asks_login=args.login or not is_local,
        writes=args.write,
        title=args.title,
        tls=tls,
        command_options=_cluster_options(args),
    )
    with _listener(args.host, args.port) as listener:
        served = _Console(args, server)
        served.connect()
        served.serve(listener, options)
    return 0


class _Console:
    """The connection to the cluster, on the main thread, and the thread that serves."""

    def __init__(self, args: Arguments, server: Any) -> None:
        self._args = args
        self._server = server
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until: asyncio.Event | None = None
        self._cluster: Cluster | None = None
        self._ray_id = b""
        self._link: Any = importlib.import_module(_SNAPSHOT).Link(self._wanted.set)

    def connect(self) -> None:
        """Connect, or raise why that is not possible."""
        cluster: Cluster | None = None
        try:
            cluster = connect(self._args)
            # The page of jobs needs Ray, which only the main thread can join.
            cluster.jobs()
            self._ray_id = cluster_connection.ray_cluster_id()
            self._link.replace(cluster, cluster.dashboard_url)
        except BaseException:
            if cluster is not None:
                cluster.close()
            cluster_connection.leave_ray()
            raise
        self._cluster = cluster

    def serve(self, listener: socket.socket, options: Any) -> None:
        """Serve until a signal, or until serving fails."""
        thread = threading.Thread(
            target=self._serve, args=(listener, options), name="oncelog-console", daemon=True
        )
        thread.start()
        try:
            looked_s = monotonic_s()
            while not self._ended.is_set():
                is_wanted = self._wanted.wait(timeout=WAKE_S)
                is_due = self._cluster is not None and monotonic_s() - looked_s >= LOOK_S
                if (is_wanted or is_due) and not self._ended.is_set():
                    self._look_again()
                    looked_s = monotonic_s()
                if is_wanted:
                    self._ended.wait(RECONNECT_S)
                    self._wanted.clear()
        finally:
            self._stop(thread)
        if self._failure is not None:
            raise self._failure

    def _stop(self, thread: threading.Thread) -> None:
        if self._loop is not None and self._until is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._until.set)
        thread.join(STOP_TIMEOUT_S)
        if self._cluster is not None:
            self._cluster.close()

    def _serve(self, listener: socket.socket, options: Any) -> None:
        try:
            asyncio.run(self._run(listener, options))
        except Exception as error:
            self._failure = error
        finally:
            self._ended.set()
            self._wanted.set()

    async def _run(self, listener: socket.socket, options: Any) -> None:
        self._loop, self._until = asyncio.get_running_loop(), asyncio.Event()
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        scheme = "http" if options.tls is None else "https"
        await self._server.serve(
            self._link,
            listener,
            options,
            until=self._until,
            random=random.Random(secrets.randbits(64)),
            on_ready=lambda: say_at_once(f"console  {scheme}://{shown}:{port}"),
        )

    # --- a cluster that is gone -----------------------------------------------------------

    def _look_again(self) -> None:
        """Let go of a cluster whose Ray does not answer; connect if there is one.

        While Ray answers, the connection finds the actors again by itself. What goes wrong is
        shown on the pages, and does not end the console.
        """
        try:
            if self._cluster is not None:
                if _is_there(self._cluster.address, self._ray_id):
                    return
                self._let_go()
            self.connect()
        except (CliError, OncelogError) as error:
            _logger.info("no connection to the cluster: %s", error.what)
            self._link.lose(error.what)
        except Exception as error:
            _logger.exception("no connection to the cluster — tell the makers: it is a bug")
            self._link.lose(f"{type(error).__name__}: {error}")

    def _let_go(self) -> None:
        cluster, self._cluster = self._cluster, None
        self._link.lose("the cluster is gone")
        if cluster is not None:
            cluster.close()
        cluster_connection.leave_ray()


def _is_there(address: str, ray_id: bytes) -> bool:
    """Whether the Ray cluster with this id still answers at ``address`` (host:port)."""
    if not answers(address):
        return False
    try:
        _, found = ray_cluster_at(address)
    except ConnectionFailedError as error:
        _logger.info("%s: %s", address, error)
        return False
    return found.endswith(ray_id)


# --- where it is served -----------------------------------------------------------------------


def say_at_once(text: str) -> None:
    """Print a line now: the command goes on."""
    say(text)
    sys.stdout.flush()


def _listener(host: str, port: int | None) -> socket.socket:
    """A socket that listens on the port, or on the first free one of the usual ones."""
    ports = [port] if port is not None else range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED)
    problem = ""
    for number in ports:
        try:
            family = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, number), family=family, backlog=BACKLOG)
        except OSError as error:
            problem = error.strerror or str(error)
    shown = f"port {port}" if port is not None else f"none of {PORTS_TRIED} ports"
    raise CliError(
        f"{shown} can be used on --host {host!r} ({problem})",
        "give a free one with --port, or an address of this machine with --host",
    )


def _tls(args: Arguments) -> ssl.SSLContext | None:
    if bool(args.tls_cert) != bool(args.tls_key):
        raise UsageError("--tls-cert and --tls-key belong together", "give both or neither")
    if not args.tls_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(Path(args.tls_cert).expanduser(), Path(args.tls_key).expanduser())
    except (OSError, ssl.SSLError) as error:
        raise CliError(
            f"--tls-cert {args.tls_cert!r} and --tls-key {args.tls_key!r} cannot be used ({error})",
            "give a certificate and its key, in PEM",
        ) from None
    return context


def _cluster_options(args: Arguments) -> tuple[str, ...]:
    """What selects the cluster, for the commands that pages show."""
    given = (("--address", args.address), ("--data-dir", args.data_dir))
    return tuple(word for name, value in given if value for word in (name, value))
