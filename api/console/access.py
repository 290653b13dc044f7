"""Who may look: names of hosts, logins, sessions, and proof that a form is one of ours.

Rules. On a loopback address without ``asks_login`` everybody who can connect sees what the console
itself may see. Else a viewer logs in as a user of the cluster, whose password the cluster itself
checks, and sees what that user may see. A session is a random number in a cookie that scripts
cannot read and other sites do not send. A form needs a token of ours and an ``Origin`` that is this
host. Passwords are kept in memory only, in the identity that connects again after an outage.

Guessing is bounded per address and in all. Half of all attempts are for addresses from which
somebody has logged in before, so that strangers cannot lock the others out.

One file: all that a request is judged by before a page is made.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import secrets
import socket
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from oncelog.actors.process.clock import monotonic_s
from oncelog.api.console.snapshot import Viewer

SESSIONS_MAX: Final = 100
"""Sessions at a time; beyond them the one used longest ago ends."""

SESSION_IDLE_S: Final = 3_600.0
SESSION_MAX_S: Final = 43_200.0

ATTEMPTS_WINDOW_S: Final = 60.0
ATTEMPTS_PER_ADDRESS_MAX: Final = 10
"""Logins that may fail from one address (IPv6: 64 bits) in a minute."""

ATTEMPTS_MAX: Final = 60
"""Logins that may fail in a minute, from all; strangers may use half of them."""

ADDRESSES_MAX: Final = 1_000
"""Addresses that are remembered as known, and as many as have failed; the oldest goes first."""

CHECKS_MAX: Final = 2
"""Logins that are checked at a time for strangers, and as many for known addresses."""

CHECK_WAIT_S: Final = 5.0

NAME_CHARS_MAX: Final = 249
PASSWORD_CHARS_MAX: Final = 1_024

_TOKEN_BYTES: Final = 32
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]/@\s]+))(?::(\d{1,5}))?")


class RefusedLoginError(Exception):
    """A login is refused; the text says why, and is shown."""


# --- hosts ------------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Hosts:
    """The names under which the console may be asked for.

    A page of another site can make its own name lead here (DNS rebinding), but the browser then
    sends that name. So names must be known. A literal address cannot be made to lead elsewhere.
    """

    def __init__(self, bound_to: str, named: Iterable[str] = ()) -> None:
        self._is_local = is_loopback(bound_to)
        self._names = _LOOPBACK | {bound_to.lower(), *(name.lower() for name in named)}
        if not self._is_local:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def allows(self, header: str | None) -> bool:
        """Whether a ``Host`` header names this console."""
        match = _HOST.fullmatch(header or "")
        if match is None:
            return False
        name = (match[1] or match[2]).lower().rstrip(".")
        return name in self._names or (not self._is_local and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_same_origin(origin: str | None, host: str | None, *, is_secure: bool) -> bool:
    """Whether a form was sent by a page of ours: browsers name the page's origin with each."""
    return bool(host) and origin == f"{'https' if is_secure else 'http'}://{host}"


# --- logins -----------------------------------------------------------------------------------


def address_key(address: str) -> str:
    """What attempts are counted by: an address, of IPv6 the network of 64 bits."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


class LoginBudget:
    """How many logins may still fail, by address and in all."""

    def __init__(self, now_s: Callable[[], float] = monotonic_s) -> None:
        self._now_s = now_s
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._strangers: deque[float] = deque(maxlen=ATTEMPTS_MAX)
        self._familiar: deque[float] = deque(maxlen=ATTEMPTS_MAX)

    def is_known(self, address: str) -> bool:
        """Whether somebody has logged in from there before."""
        return address in self._known

    def begin(self, address: str) -> None:
        """Count a failed attempt, until ``succeed``; ``RefusedLoginError`` after too many."""
        since_s = self._now_s() - ATTEMPTS_WINDOW_S
        own = self._failed.setdefault(address, deque(maxlen=ATTEMPTS_PER_ADDRESS_MAX))
        self._failed.move_to_end(address)
        shared = self._familiar if self.is_known(address) else self._strangers
        for attempts in (own, shared):
            while attempts and attempts[0] <= since_s:
                attempts.popleft()
        if len(own) >= ATTEMPTS_PER_ADDRESS_MAX or len(shared) >= ATTEMPTS_MAX // 2:
            raise RefusedLoginError("Too many logins have failed. Try again in a minute.")
        own.append(self._now_s())
        shared.append(self._now_s())
        while len(self._failed) > ADDRESSES_MAX:
            self._failed.popitem(last=False)

    def succeed(self, address: str) -> None:
        """Forget what failed from there: somebody has logged in."""
        self._failed.pop(address, None)
        shared = self._familiar if self.is_known(address) else self._strangers
        if shared:
            shared.pop()
        self._known[address] = None
        self._known.move_to_end(address)
        while len(self._known) > ADDRESSES_MAX:
            self._known.popitem(last=False)


# --- sessions ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Session:
    """One login: who looks, and until when."""

    viewer: Viewer
    account: str
    address: str
    began_s: float
    used_s: float
    token: str = field(repr=False, default="")


class Sessions:
    """Who is logged in. ``make`` connects as a user and raises ``RefusedLoginError`` if it cannot.

    Those logged in as one user with one password share a viewer.
    """

    def __init__(
        self,
        make: Callable[[str, str], Awaitable[Viewer]],
        now_s: Callable[[], float] = monotonic_s,
    ) -> None:
        self.budget = LoginBudget(now_s)
        self._make = make
        self._now_s = now_s
        self._secret = secrets.token_bytes(_TOKEN_BYTES)
        self._of_token: OrderedDict[str, Session] = OrderedDict()
        self._viewers: dict[str, Viewer] = {}
        self._checks = {known: asyncio.Semaphore(CHECKS_MAX) for known in (False, True)}

    def __len__(self) -> int:
        return len(self._of_token)

    async def log_in(self, name: str, password: str, address: str) -> Session:
        """Begin a session, or raise ``RefusedLoginError``."""
        if not 0 < len(name) <= NAME_CHARS_MAX or not 0 < len(password) <= PASSWORD_CHARS_MAX:
            raise RefusedLoginError("Give a user of the cluster and the password.")
        key = address_key(address)
        self.budget.begin(key)
        checks = self._checks[self.budget.is_known(key)]
        try:
            await asyncio.wait_for(checks.acquire(), CHECK_WAIT_S)
        except asyncio.TimeoutError:
            raise RefusedLoginError("Too many logins at once. Try again in a minute.") from None
        try:
            viewer = await self._make(name, password)
        finally:
            checks.release()
        self.budget.succeed(key)
        account = self._account(name, password)
        shared = self._viewers.setdefault(account, viewer)
        now_s = self._now_s()
        session = Session(
            viewer=shared,
            account=account,
            address=key,
            began_s=now_s,
            used_s=now_s,
            token=secrets.token_urlsafe(_TOKEN_BYTES),
        )
        # Before anything is awaited: else the viewer that it shares might be closed meanwhile.
        self._of_token[session.token] = session
        if shared is not viewer:
            await viewer.close()
        for one in [one for one in self._of_token.values() if self._is_over(one)]:
            await self.end(one)
        while len(self._of_token) > SESSIONS_MAX:
            await self.end(next(iter(self._of_token.values())))
        return session

    async def find(self, token: str | None) -> Session | None:
        """The session of a cookie, unless it is over."""
        session = self._of_token.get(token or "")
        if session is None:
            return None
        if self._is_over(session):
            await self.end(session)
            return None
        session.used_s = self._now_s()
        self._of_token.move_to_end(session.token)
        return session

    def _is_over(self, session: Session) -> bool:
        now_s = self._now_s()
        return now_s - session.used_s > SESSION_IDLE_S or now_s - session.began_s > SESSION_MAX_S

    async def end(self, session: Session) -> None:
        """End a session, and the connections of its user if it was the last one."""
        self._of_token.pop(session.token, None)
        if all(one.account != session.account for one in self._of_token.values()):
            viewer = self._viewers.pop(session.account, None)
            if viewer is not None:
                await viewer.close()

    async def end_all_of(self, viewer: Viewer) -> None:
        """End every session of a user whom the cluster does not know any more."""
        for session in [one for one in self._of_token.values() if one.viewer is viewer]:
            await self.end(session)

    async def close(self) -> None:
        """End all."""
        for session in list(self._of_token.values()):
            await self.end(session)

    def form_token(self, session: Session | None) -> str:
        """What a form of ours carries: nobody else can compute it."""
        bound_to = session.token if session is not None else "no session"
        return hmac.new(self._secret, f"form {bound_to}".encode(), "sha256").hexdigest()

    def is_form_token(self, given: object, session: Session | None) -> bool:
        """Whether a form came from a page of this session."""
        expected = self.form_token(session)
        return isinstance(given, str) and hmac.compare_digest(
            given.encode("utf-8", "replace"), expected.encode()
        )

    def _account(self, name: str, password: str) -> str:
        text = f"{len(name)} {name} {password}"
        return hmac.new(self._secret, text.encode("utf-8", "surrogatepass"), "sha256").hexdigest()
