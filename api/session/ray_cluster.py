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
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from oncelog.actors.process.process_table import raylet_addresses
from oncelog.actors.rpc.certificates import AUTHORITY, CERTIFICATE, KEY, is_secured, pem
from oncelog.storage.exceptions import ConnectionFailedError

_logger = logging.getLogger(__name__)

# --- whether one is there ---------------------------------------------------------------------

TIMEOUT_S: Final = 10.0
"""How long the control store may take to reply; usually a few milliseconds."""

_WHO_ARE_YOU: Final = "/ray.rpc.NodeInfoGcsService/GetClusterId"
_NO_PROXY: Final = (("grpc.enable_http_proxy", 0),)
TRUSTED_VARIABLE: Final = "ONCELOG_TRUSTED_ADDRESSES"
"""Further addresses (host:port, separated by commas) that may be told Ray's token without TLS.

For programs that do not see the processes of their Ray node, or name it by another address.
"""

_REFUSALS: Final = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})
"""Names of gRPC's codes; it is imported by who asks, since most commands need none of it."""

_ADVICE: Final = "start one with `oncelog start`, or pass the address of one that runs"


def ray_cluster_at(address: str, given: str = "") -> tuple[str, bytes]:
    """Return where the Ray cluster at ``address`` (host:port) is to be joined, and its id.

    ``given`` is the address as the user wrote it. ``ConnectionFailedError`` says whether nothing
    replies, something else does, or the token is missing or wrong.

    Without TLS only a cluster that a Ray node of this machine is in gets the token: else whoever
    may choose an address would be told it. It is joined by the address that the node uses, since a
    name may mean another host the next time.
    """
    shown = f"address={given or address!r}"
    if given not in {"", "auto", address}:
        # Ray replaces a name of this machine by the address of its node.
        shown += f", which Ray takes for {address},"
    headers = _token_headers()
    known = None if not headers or is_secured() else _trusted_addresses()
    place = address if known is None else _address_among(known, address)
    answer = _ask(place or address, shown, headers if place else (), is_refusal_told=bool(place))
    if not place:
        raise ConnectionFailedError(
            f"no Ray node of this machine and user is in a cluster at {shown}, so Ray's token is "
            f"not sent there (its nodes are in: {', '.join(sorted(known or ())) or 'none'})",
            advice=f"run `RAY_AUTH_MODE=token ray start --address {address}` here, or name the "
            f"address in {TRUSTED_VARIABLE}",
        )
    return place, answer


def _ask(
    address: str, shown: str, headers: tuple[tuple[str, str], ...], *, is_refusal_told: bool
) -> bytes:
    """Ask who is there; b"" if the answer is a refusal that is not to be told."""
    import grpc

    with _channel(address) as channel:
        ask = channel.unary_unary(_WHO_ARE_YOU)
        try:
            answer: bytes = ask(b"", timeout=TIMEOUT_S, metadata=headers)
        except grpc.RpcError as error:
            failed: Any = error
            if is_refusal_told or failed.code().name not in _REFUSALS:
                raise ConnectionFailedError(_reason(failed, shown, bool(headers))) from None
            return b""
    return answer


def _channel(address: str) -> Any:
    import grpc

    open_channel: Any = grpc.insecure_channel
    if not is_secured():
        return open_channel(address, options=_NO_PROXY)
    open_channel = grpc.secure_channel
    key, certificate, authority = (pem(name) for name in (KEY, CERTIFICATE, AUTHORITY))
    new_credentials: Any = grpc.ssl_channel_credentials
    credentials = new_credentials(authority, key, certificate)
    return open_channel(address, credentials, options=_NO_PROXY)


def _trusted_addresses() -> set[str] | None:
    """Addresses that may be told the token; ``None``: any, as processes cannot be seen here."""
    known = raylet_addresses()
    named = os.environ.get(TRUSTED_VARIABLE, "")
    return None if known is None else known | {one.strip() for one in named.split(",")} - {""}


def _address_among(known: set[str], address: str) -> str | None:
    """Which of the known addresses is that of the cluster at ``address``, by any of its names."""
    if address in known:
        return address
    host, _, port = address.rpartition(":")
    hosts = _resolved(host)
    is_here = bool(hosts) and all(map(_is_of_this_machine, hosts))
    for one in sorted(known):
        other, _, other_port = one.rpartition(":")
        if other_port == port and (is_here or hosts & (_resolved(other) | {other})):
            return one
    return None


def _resolved(host: str) -> set[str]:
    """The addresses of a host; none if its name is not known."""
    with contextlib.suppress(OSError, UnicodeError):
        return {str(one[4][0]) for one in socket.getaddrinfo(host.strip("[]"), None)}
    return set()


def _is_of_this_machine(host: str) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def _token_headers() -> tuple[tuple[str, str], ...]:
    # Imported here: Ray reads its authentication mode when it is imported.
    raylet: Any = importlib.import_module("ray._raylet")
    loader = raylet.AuthenticationTokenLoader.instance()
    if not loader.has_token():
        return ()
    return tuple(loader.get_token_for_http_header().items())


def _reason(error: Any, shown: str, has_token: bool) -> str:
    code = error.code()
    if code.name in _REFUSALS:
        what = "refuses the token that is set here" if has_token else "demands a token"
        return (
            f"the Ray cluster at {shown} {what}: copy ~/.ray/auth_token of the machine that "
            "started it, or set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, and RAY_AUTH_MODE=token"
        )
    if code.name == "UNIMPLEMENTED" or "HTTP/2" in error.details():
        return f"what answers at {shown} is no Ray cluster: {_ADVICE}"
    detail = error.details().rpartition(": ")[2] or code.name
    if code.name == "DEADLINE_EXCEEDED":
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
                    _logger.warning(
                        "part of Ray's head did not start: %s — the log serves without it; start "
                        "the cluster again if you need Ray's dashboard or its metrics",
                        reason[0],
                    )
        self._are_done.set()
        try:
            if _is_up():
                then()
        except Exception as error:
            # This thread must stay alive: the processes that it started end with it.
            _logger.warning(
                "the address of the Ray dashboard was not recorded: %r — make room on the disk of "
                "the data directory; all else works",
                error,
            )
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
