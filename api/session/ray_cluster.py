"""What Ray does too slowly: to find out that there is no cluster, and to start one.

*The probe* tells within seconds whether a cluster is at an address, before Ray connects. Ray itself
retries for minutes if nothing replies, and forever if something else does. One call to the control
store shows whether it is one, of which cluster, and whether it accepts our token.

*Delayed starts*: processes of the head node that the log does not need start once the log serves.
``ray.init`` starts the dashboard, the autoscaler's monitor and the log monitor one after another
before the node itself, and waits for the dashboard: three of five seconds (``docs/adr/0018``).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import grpc

from oncelog.actors.process.process_table import raylet_addresses
from oncelog.actors.rpc.certificates import AUTHORITY, CERTIFICATE, KEY, is_secured, pem
from oncelog.storage.exceptions import ConnectionFailedError

_logger = logging.getLogger(__name__)

# --- whether one is there ---------------------------------------------------------------------

TIMEOUT_S: Final = 10.0
"""How long the control store may take to reply; usually a few milliseconds."""

_WHO_ARE_YOU: Final = "/ray.rpc.NodeInfoGcsService/GetClusterId"
_NO_PROXY: Final = (("grpc.enable_http_proxy", 0),)
_REFUSALS: Final = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
_ADVICE: Final = "start one with `oncelog start`, or pass the address of one that runs"


def ray_cluster_at(address: str, given: str = "") -> bytes:
    """Return the id of the Ray cluster at ``address`` (host:port).

    ``given`` is the address as the user wrote it. ``ConnectionFailedError`` says whether nothing
    replies, something else does, or the token is missing or wrong.

    Without TLS only a cluster that a Ray node of this machine is in gets the token: else whoever
    may choose an address would be told it.
    """
    shown = f"address={given or address!r}"
    if given not in {"", "auto", address}:
        # Ray replaces a name of this machine by the address of its node.
        shown += f", which Ray takes for {address},"
    headers = _token_headers()
    is_told = not headers or is_secured() or _has_node_in(address)
    if not is_told:
        headers = ()
    with _channel(address) as channel:
        ask = channel.unary_unary(_WHO_ARE_YOU)
        try:
            answer: bytes = ask(b"", timeout=TIMEOUT_S, metadata=headers)
        except grpc.RpcError as error:
            if is_told or error.code() not in _REFUSALS:
                raise ConnectionFailedError(_reason(error, shown, bool(headers))) from None
    if not is_told:
        raise ConnectionFailedError(
            f"no Ray node of this machine and user is in a cluster at {shown}, so Ray's token is "
            "not sent there",
            advice=f"start one: RAY_AUTH_MODE=token ray start --address {address}",
        )
    return answer


def _channel(address: str) -> Any:
    open_channel: Any = grpc.insecure_channel
    if not is_secured():
        return open_channel(address, options=_NO_PROXY)
    open_channel = grpc.secure_channel
    key, certificate, authority = (pem(name) for name in (KEY, CERTIFICATE, AUTHORITY))
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    return open_channel(address, credentials, options=_NO_PROXY)


def _has_node_in(address: str) -> bool:
    """Whether a Ray node of this machine is in the cluster at ``address``, by any of its names."""
    known = raylet_addresses()
    if known is None or address in known:
        return True
    host, _, port = address.rpartition(":")
    of_port = {one.rpartition(":")[0] for one in known if one.rpartition(":")[2] == port}
    return bool(of_port) and not _resolved({host}).isdisjoint(_resolved(of_port))


def _resolved(hosts: Iterable[str]) -> set[str]:
    found = set(hosts)
    for host in hosts:
        with contextlib.suppress(OSError):
            found |= {str(one[4][0]) for one in socket.getaddrinfo(host.strip("[]"), None)}
    return found


def _token_headers() -> tuple[tuple[str, str], ...]:
    # Imported here: Ray reads its authentication mode when it is imported.
    raylet: Any = importlib.import_module("ray._raylet")
    loader = raylet.AuthenticationTokenLoader.instance()
    if not loader.has_token():
        return ()
    return tuple(loader.get_token_for_http_header().items())


def _reason(error: Any, shown: str, has_token: bool) -> str:
    code = error.code()
    if code in _REFUSALS:
        what = "refuses the token that is set here" if has_token else "demands a token"
        return (
            f"the Ray cluster at {shown} {what}: copy ~/.ray/auth_token of the machine that "
            "started it, or set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, and RAY_AUTH_MODE=token"
        )
    if code is grpc.StatusCode.UNIMPLEMENTED or "HTTP/2" in error.details():
        return f"what answers at {shown} is no Ray cluster: {_ADVICE}"
    detail = error.details().rpartition(": ")[2] or code.name
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        detail = f"nothing within {TIMEOUT_S:.0f} s"
    return f"no Ray cluster answers at {shown} ({detail}): {_ADVICE}"


# --- a head that starts -----------------------------------------------------------------------

DELAYED: Final = ("start_monitor", "start_api_server", "start_log_monitor")
"""Methods of Ray's private ``Node``; Ray handles those that it does not have."""

DASHBOARD_TIMEOUT_S: Final = 60.0
"""How long a request for the dashboard's address waits for it."""

_begun: Final[list[DelayedStarts]] = []
"""At most one: those before have ended."""


class DelayedStarts:
    """The processes of a Ray head node that are still to be started."""

    def __init__(self) -> None:
        self._starts: list[Callable[[], None]] = []
        self._are_done = threading.Event()

    def begin(self, then: Callable[[], None]) -> None:
        """Start them in the background, then call ``then``; neither if Ray was shut down."""
        _begun.append(self)
        # Ray's processes end with the thread that started them: this one ends with the program.
        threading.Thread(target=self._run, args=(then,), name="ray-head", daemon=True).start()

    def wait(self) -> None:
        """Return when all are started, or failed to start."""
        self._are_done.wait(DASHBOARD_TIMEOUT_S)

    def add(self, start: Callable[[], None]) -> None:
        """Add one more start; they run in this order."""
        self._starts.append(start)

    def _run(self, then: Callable[[], None]) -> None:
        for start in self._starts:
            if not _is_up():
                break
            try:
                start()
            except Exception as error:
                # Ray runs without any of them, and a program that ends needs none.
                if _is_up():
                    reason = str(error).strip().splitlines() or [repr(error)]
                    _logger.warning("part of Ray's head did not start: %s", reason[0])
        self._are_done.set()
        try:
            if _is_up():
                then()
        except Exception as error:
            # This thread must stay alive: the processes that it started end with it.
            _logger.warning("the address of the Ray dashboard was not recorded: %r", error)
        threading.Event().wait()


@contextlib.contextmanager
def delayed() -> Iterator[DelayedStarts]:
    """Within this block, a Ray head node started by this thread leaves ``DELAYED`` out."""
    from ray._private.node import Node

    # The delayed starts of an earlier head node use Ray's state of this process.
    while _begun:
        _begun.pop().wait()
    starts = DelayedStarts()
    known = {name: getattr(Node, name) for name in DELAYED if hasattr(Node, name)}
    for name, method in known.items():
        setattr(Node, name, _later(starts, method))
    try:
        yield starts
    finally:
        for name, method in known.items():
            setattr(Node, name, method)


def _is_up() -> bool:
    import ray

    return bool(ray.is_initialized())


def _later(starts: DelayedStarts, method: Callable[..., None]) -> Callable[..., None]:
    def start(node: Any, *args: Any, **kwargs: Any) -> None:
        starts.add(functools.partial(method, node, *args, **kwargs))

    return start


def check_dashboard_port(port: int) -> None:
    """Reject a port that is in use, as Ray does, but before anything is started."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise ConnectionFailedError(
                f"Ray could not be started: dashboard_port={port} cannot be used ({error})",
                advice="give a free one, or leave it out to have one chosen",
            ) from None
