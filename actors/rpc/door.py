"""Who may come in: a process's copy of users and ACLs, and who is connected as which user.

The controller's log has them. It sends every process each change (``learn_access``). A process asks
when it starts, and again now and then, since a call may be lost. Of two copies the one with the
higher version counts.

Until a process knows them, no user may ask anything, and programs of the Ray cluster only what an
operator needs to find out why it starts so slowly, and the order to stop the cluster.
"""

from __future__ import annotations

import asyncio
import collections
import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from oncelog.actors.interfaces import CONTROLLER_ACTOR, Transport
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.access import RAY, Authorizer, Principal, Split, Verdict, as_it_is
from oncelog.actors.protocol.backoff import backoff_ms
from oncelog.actors.protocol.cluster.access_control import is_user_name
from oncelog.actors.protocol.messages.access import (
    NO_ACCESS,
    NO_LIMITS,
    Access,
    AccessRequest,
    LearnAccessReply,
    LearnAccessRequest,
    Limits,
    Operation,
    Resource,
    Rules,
)
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.cluster import (
    FindListenerRequest,
    MetadataRequest,
    ShutdownRequest,
)
from oncelog.actors.protocol.messages.partition import DescribeReplicaRequest
from oncelog.actors.protocol.messages.replication import DescribeVoterRequest
from oncelog.actors.protocol.scram import (
    DEFAULT_ITERATIONS,
    Credential,
    ScramServer,
)
from oncelog.storage.errors import ErrorCode

_logger = logging.getLogger(__name__)

ACCESS_CHECK_MS: Final = 10_000
"""Interval at which a process asks whether it has missed a change."""

ACCESS_RETRY_MS: Final = 50
ACCESS_RETRY_MAX_MS: Final = 1_000
"""Back-off of the first question, first and maximum."""

SILENCE_WARN_MS: Final = 60_000
"""Interval of warnings that the controller has not answered."""

UNKNOWN_VERSION: Final = -1

_ABSENT: Final = b"oncelog absent users\x00"

_ALWAYS: Final = frozenset(
    {MetadataRequest, FindListenerRequest, DescribeReplicaRequest, DescribeVoterRequest}
)
"""What programs of the Ray cluster may ask of a process that does not know the rules yet."""


class Bearer(Protocol):
    """Whom a token or a certificate names, until when in Unix time; ``None``: no end."""

    @property
    def name(self) -> str:
        """The user's name, without ``User:``."""
        ...

    @property
    def expires_at_ms(self) -> int | None:
        """When the proof expires."""
        ...


@dataclass(frozen=True, slots=True)
class Named:
    """A ``Bearer``."""

    name: str
    expires_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a token or certificate names nobody; for the log."""

    reason: str


class Naming(Protocol):
    """By what rules tokens and certificates name users."""

    def bearer_of(self, token: str) -> Bearer | Refused:
        """Whom a signed token names."""
        ...

    def named_by(self, certificate: Mapping[str, Any]) -> Bearer | Refused:
        """Whom a certificate names, as ``getpeercert`` tells it."""
        ...


class Guest(Protocol):
    """A connection of a user that has proved who it is."""

    def close(self) -> None:
        """Close the connection."""
        ...


class Door:
    """Admits callers to one process.

    ``access`` is what it knows from the beginning; ``None``: nothing, so it must ``keep`` asking.
    ``secret`` is the same in all processes of the cluster, or random, and known to no user.
    """

    def __init__(
        self,
        access: Access | None = NO_ACCESS,
        *,
        secret: bytes = b"",
        naming: Naming | None = None,
    ) -> None:
        self._naming = naming
        self._guests: dict[str, dict[Guest, None]] = {}
        """Those of each user; bounded by the number of connections."""
        # What the salts of users that do not exist are made of.
        self._secret = hmac.digest(secret, _ABSENT, "sha256")
        self._users: Mapping[str, Credential] = {}
        self._absent_iterations = DEFAULT_ITERATIONS
        self._authorizer: Authorizer | None = None
        if access is not None:
            self._take(access)

    @property
    def version(self) -> int:
        """The version of what it goes by; ``UNKNOWN_VERSION`` if it knows nothing yet."""
        return UNKNOWN_VERSION if self._authorizer is None else self._authorizer.rules.version

    @property
    def rules(self) -> Rules | None:
        """The rules it goes by."""
        return None if self._authorizer is None else self._authorizer.rules

    # --- asking ---------------------------------------------------------------------------

    def judge(
        self,
        request: Request[Any],
        principal: Principal,
        host: str,
        verdicts: list[Verdict] | None = None,
    ) -> Split | ErrorCode:
        """What of ``request`` may be asked; see ``Authorizer.judge``."""
        if self._authorizer is not None:
            return self._authorizer.judge(request, principal, host, verdicts)
        is_always = type(request) in _ALWAYS or request == ShutdownRequest()
        # A user whom a token or a certificate names has no record here that could be missing.
        if principal.is_server or (principal == RAY and is_always):
            return Split(request=request, join=as_it_is)
        # As if nobody were there yet: the caller tries again.
        return ErrorCode.NETWORK_EXCEPTION

    def may(
        self, principal: Principal, operation: Operation, resource: Resource, name: str, host: str
    ) -> bool:
        """Whether ``principal`` may do this; nobody may anything while the rules are not known."""
        known = self._authorizer
        return known is not None and known.may(principal, operation, resource, name, host)

    def limits(self, principal: Principal) -> Limits:
        """What ``principal`` may take of this process."""
        return NO_LIMITS if self._authorizer is None else self._authorizer.limits(principal)

    def new_scram(self, nonce: str) -> ScramServer | None:
        """The server's side of a user's login; ``None`` if the users are not known yet."""
        if self._authorizer is None:
            return None
        return ScramServer(
            credentials=self._users,
            nonce=nonce,
            secret=self._secret,
            absent_iterations=self._absent_iterations,
        )

    def is_current(self, scram: ScramServer) -> bool:
        """Whether the login of an exchange still counts: its user may have changed meanwhile."""
        return scram.name is not None and self._users.get(scram.name) == scram.credential

    def bearer_of(self, token: str) -> Bearer | Refused:
        """Whom a signed token names."""
        if self._naming is None:
            return Refused("tokens are not accepted")
        return _checked(self._naming.bearer_of(token))

    def named_by(self, certificate: Mapping[str, Any]) -> Bearer | Refused:
        """Whom a certificate names."""
        if self._naming is None:
            return Refused("certificates name nobody")
        return _checked(self._naming.named_by(certificate))

    def enter(self, name: str, guest: Guest) -> None:
        """Remember a connection of a user, which is closed when the user is removed."""
        self._guests.setdefault(name, {})[guest] = None

    def leave(self, name: str, guest: Guest) -> None:
        """A connection is lost; again does nothing."""
        guests = self._guests.get(name, {})
        guests.pop(guest, None)
        if not guests:
            self._guests.pop(name, None)

    # --- learning -------------------------------------------------------------------------

    async def learn_access(self, request: LearnAccessRequest) -> LearnAccessReply:
        """Go by this from now on, unless it is out of date."""
        self.learn(request.access)
        return LearnAccessReply()

    def learn(self, access: Access) -> None:
        """Go by ``access``, if it is newer; close the connections of users that have changed."""
        if access.rules.version <= self.version:
            return
        before = self._users
        self._take(access)
        for name, guests in list(self._guests.items()):
            if before.get(name) != self._users.get(name):
                for guest in list(guests):
                    guest.close()

    def _take(self, access: Access) -> None:
        self._users = {user.name: user.credential for user in access.users}
        self._authorizer = Authorizer(access.rules)
        counts = collections.Counter(one.iterations for one in self._users.values())
        most_common = counts.most_common(1)
        # So that a name that does not exist looks like most that do.
        self._absent_iterations = most_common[0][0] if most_common else DEFAULT_ITERATIONS

    async def keep(self, transport: Transport, *, timeout_ms: int) -> None:
        """Ask the controller until it answers, and then now and then; run it in its own task."""
        failure_count = 0
        warn_at_ms = loop_ms() + SILENCE_WARN_MS
        while True:
            asked = AccessRequest(known_version=self.version)
            reply = await transport.call(CONTROLLER_ACTOR, asked, timeout_ms=timeout_ms)
            if reply.error in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST):
                warn_at_ms = loop_ms() + SILENCE_WARN_MS
            elif loop_ms() >= warn_at_ms:
                warn_at_ms = loop_ms() + SILENCE_WARN_MS
                _logger.warning(
                    "users and ACLs are those of version %d: the controller does not answer: %s %s "
                    "— see `oncelog status`",
                    *(self.version, reply.error.name, reply.detail),
                )
            if reply.error is ErrorCode.NONE:
                if reply.access is not None:
                    self.learn(reply.access)
            elif reply.error is ErrorCode.INVALID_REQUEST:
                # A controller of an earlier build, which has none.
                self.learn(NO_ACCESS)
            if self.version == UNKNOWN_VERSION:
                retry_ms = backoff_ms(
                    failure_count, initial_ms=ACCESS_RETRY_MS, max_ms=ACCESS_RETRY_MAX_MS
                )
                failure_count += 1
                await asyncio.sleep(retry_ms / 1000)
            else:
                await asyncio.sleep(ACCESS_CHECK_MS / 1000)


def _checked(found: Bearer | Refused) -> Bearer | Refused:
    """No token or certificate may name what is no user."""
    if isinstance(found, Refused) or is_user_name(found.name):
        return found
    return Refused("it names nobody who can be a user")
