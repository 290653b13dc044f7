"""Limits on all callers of one actor together: connections, requests in progress, bytes.

Exceeding a limit is not an error: reading from that caller pauses until there is room, first come,
first served. Only connections beyond their limit are closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from oncelog.actors.protocol.access import Principal
from oncelog.actors.rpc import frames

if TYPE_CHECKING:
    from oncelog.storage.records.batch import Buffer

CONNECTIONS_MAX: Final = 4_000
"""Maximum connections with a verified token. Kafka's ``max.connections``."""

HALF_OPEN_MAX: Final = 1_024
"""Maximum connections that have not proved a token yet, TLS handshakes among them."""

HALF_OPEN_PER_HOST_MAX: Final = 256
"""Maximum of these from one host, or one IPv6 network of 64 bits."""

REQUESTS_PER_CONNECTION_MAX: Final = 1_000
"""Maximum requests in progress per connection, including parked calls and long polls."""

REQUESTS_MAX: Final = 10_000
"""Maximum requests in progress on all connections."""

REQUEST_BYTES_MAX: Final = 512 * 1_048_576
"""Maximum bytes of requests beyond 64 KiB, each from its first 64 KiB to its answer.

As many as ``FRAME_MAX_BYTES`` are kept for one request at a time. Kafka's
``queued.max.request.bytes``.
"""

UNREAD_MAX_BYTES: Final = 512 * 1_048_576
"""Maximum unread bytes on paused connections; beyond it the one with the most is closed."""


class Caller(Protocol):
    """A connection whose requests are answered, and the ``address`` that it comes from."""

    host: str
    address: str
    principal: Principal
    in_progress: int
    last_used: float
    is_held: bool

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that it has not read."""
        ...

    def send(self, correlation_id: int, kind: int, *parts: Buffer) -> None:
        """Send an answer."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...

    def go_on(self) -> None:
        """Check again whether the next frame may be read."""
        ...

    def has_room(self) -> None:
        """The room that the caller waited for is now reserved."""
        ...

    def mute(self, throttle_ms: int) -> None:
        """Read no more of its requests for so long."""
        ...


class Opening(Protocol):
    """A connection that has not proved a token yet; ``host`` is where it comes from."""

    host: str

    def close(self) -> None:
        """Close the connection."""
        ...


class Places:
    """The connections of one actor. Methods return a connection to close to make room, if any."""

    def __init__(self) -> None:
        self._half_open: dict[Opening, None] = {}
        """The oldest come first, here and in those of each host."""
        self._of_host: dict[str, dict[Opening, None]] = {}
        self._trusted: dict[Caller, None] = {}
        self._slow: dict[Caller, None] = {}
        self._refused: dict[str, int] = {}
        """Host → its logins that were refused within the delay of their answers."""

    def begin(self, opening: Opening) -> Opening | None:
        """Add a connection; if there are too many, of its host or of all, close the oldest.

        Our own callers prove their token at once, so they are never among these for long.
        """
        of_host = self._of_host.setdefault(opening.host, {})
        of_host[opening] = self._half_open[opening] = None
        is_host_full = len(of_host) > HALF_OPEN_PER_HOST_MAX
        if not is_host_full and len(self._half_open) <= HALF_OPEN_MAX:
            return None
        oldest = next(iter(of_host if is_host_full else self._half_open))
        self.end_opening(oldest)
        return oldest

    def end_opening(self, opening: Opening) -> None:
        """Remove a connection that has proved its token, or is lost; again does nothing."""
        if opening in self._half_open:
            del self._half_open[opening]
            of_host = self._of_host[opening.host]
            del of_host[opening]
            if not of_host:
                del self._of_host[opening.host]

    def refuse(self, host: str) -> None:
        """A login from ``host`` is refused: until ``forgive`` that takes a place, come what may.

        Who guesses does not wait for this answer, as a guess that is right is answered at once.
        """
        self._refused[host] = self._refused.get(host, 0) + 1

    def forgive(self, host: str) -> None:
        """The delay of one refusal is over."""
        self._refused[host] -= 1
        if not self._refused[host]:
            del self._refused[host]

    def may_log_in(self, host: str) -> bool:
        """Whether a login from ``host`` is looked at now."""
        return self._refused.get(host, 0) < HALF_OPEN_PER_HOST_MAX

    def trust(self, caller: Caller) -> Caller | None:
        """The token is verified; beyond ``CONNECTIONS_MAX`` the longest idle connection is closed.

        If none is idle, the new one is closed.
        """
        self.end_opening(caller)
        if len(self._trusted) < CONNECTIONS_MAX:
            self._trusted[caller] = None
            return None
        idle = [known for known in self._trusted if not known.in_progress]
        self._trusted[caller] = None
        gone = min(idle, key=lambda known: known.last_used, default=caller)
        del self._trusted[gone]
        return gone

    def count(self, principal: Principal) -> int:
        """How many connections with a verified token ``principal`` has."""
        return sum(caller.principal.name == principal.name for caller in self._trusted)

    def slow_down(self, caller: Caller) -> None:
        """Note a paused connection, whose caller does not read."""
        self._slow[caller] = None

    def speed_up(self, caller: Caller) -> None:
        """The caller has read its answers."""
        self._slow.pop(caller, None)

    def slowest(self) -> Caller | None:
        """The connection to close if there are too many unread bytes."""
        if sum(caller.unread_bytes for caller in self._slow) <= UNREAD_MAX_BYTES:
            return None
        return max(self._slow, key=lambda caller: caller.unread_bytes)

    def end(self, caller: Caller) -> None:
        """Remove a lost connection."""
        self._slow.pop(caller, None)
        self.end_opening(caller)
        self._trusted.pop(caller, None)


class RequestsInProgress:
    """Counts the requests in progress, of each caller and of all."""

    def __init__(self) -> None:
        self.count = 0
        self._held: dict[Caller, None] = {}

    def begin(self, caller: Caller) -> None:
        """Count a request."""
        self.count += 1
        caller.in_progress += 1

    def is_full(self, caller: Caller) -> bool:
        """Whether no more requests of ``caller`` may be read before others have ended.

        Each may have one: those of others may never end.
        """
        if self.count < REQUESTS_MAX or not caller.in_progress:
            return caller.in_progress >= REQUESTS_PER_CONNECTION_MAX
        self._held[caller] = None
        return True

    def end(self, caller: Caller) -> None:
        """A request has ended; a caller that waited for that resumes."""
        self.count -= 1
        caller.in_progress -= 1
        if not caller.in_progress:
            self._held.pop(caller, None)
        if caller.is_held and caller not in self._held:
            caller.go_on()
        while self._held and self.count < REQUESTS_MAX:
            first = next(iter(self._held))
            del self._held[first]
            first.go_on()


@dataclass(eq=False, slots=True)
class Reserved:
    """Room for one large request of ``caller``."""

    caller: Caller
    size_bytes: int = 0


class RequestRoom:
    """Room for large requests, which take it as they arrive: to announce a length takes none.

    Requests share all but the last ``FRAME_MAX_BYTES``. Once that is taken up they wait, in the
    order in which they came. The first goes on in the rest, alone: so it can end, and the others
    after it.
    """

    def __init__(self) -> None:
        self.used_bytes = 0
        self._waiting: dict[Reserved, int] = {}
        """How many bytes each wants in all."""
        self._alone: Reserved | None = None
        """Goes on in the rest."""
        self._alone_bytes = 0
        """What it has there."""

    def grow(self, reserved: Reserved, least_bytes: int, most_bytes: int) -> int:
        """Reserve so many bytes in all for one request; return how many it has now.

        That is the most while half of the shared room is free. 0 if there is no room for the least:
        then ``has_room`` of its caller is called later.
        """
        if reserved.size_bytes >= least_bytes:
            return reserved.size_bytes
        if reserved is self._alone or (
            not self._waiting and self._is_shared(most_bytes - reserved.size_bytes, parts=2)
        ):
            self._take(reserved, most_bytes)
        else:
            is_first = not self._waiting
            self._waiting[reserved] = least_bytes
            if not is_first or self._serve_first() is None:
                return 0
        return reserved.size_bytes

    def give(self, reserved: Reserved) -> None:
        """Release the room of a request that has ended, to those that have waited longest."""
        self.used_bytes -= reserved.size_bytes
        reserved.size_bytes = 0
        if reserved is self._alone:
            self._alone, self._alone_bytes = None, 0
        self._waiting.pop(reserved, None)
        while (served := self._serve_first()) is not None:
            served.caller.has_room()

    def _serve_first(self) -> Reserved | None:
        """Reserve what the first one waits for; ``None`` if nobody waits, or there is no room."""
        for reserved, wanted_bytes in self._waiting.items():
            if not self._is_shared(wanted_bytes - reserved.size_bytes):
                if self._alone is not None:
                    break
                self._alone = reserved
            del self._waiting[reserved]
            self._take(reserved, wanted_bytes)
            return reserved
        return None

    def _is_shared(self, more_bytes: int, *, parts: int = 1) -> bool:
        """Whether so many bytes more fit into one of so many parts of what is shared."""
        shared_bytes = self.used_bytes - self._alone_bytes
        return parts * (shared_bytes + more_bytes) <= REQUEST_BYTES_MAX - frames.FRAME_MAX_BYTES

    def _take(self, reserved: Reserved, size_bytes: int) -> None:
        more_bytes = size_bytes - reserved.size_bytes
        self.used_bytes += more_bytes
        reserved.size_bytes = size_bytes
        if reserved is self._alone:
            self._alone_bytes += more_bytes
