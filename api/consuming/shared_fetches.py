"""Fetches of replicas that one host process holds: they travel together.

A consumer has one *session* with each host. A call names the fetches that are new, and waits until
any of the session has ended; the others wait on at the host. So a call costs as much as the fetches
that begin and end in it, however many wait. ``FetchTogetherRequest`` has the rules.

If a call fails, the replies in it may be lost: all fetches of the session fail, and the fetcher
begins them again. The same if the host does not know the session any more.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from msgspec import structs

from oncelog.actors.process.background import OwnTasks, resolve_future
from oncelog.actors.protocol.messages.partition import (
    FetchReply,
    FetchRequest,
    FetchTogetherReply,
    FetchTogetherRequest,
    SharedFetch,
)
from oncelog.api.config import ConsumerSettings
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

CALL_WAIT_MS: Final = 900
"""How long a call waits at the host: a lost host is noticed soon after (``LEADER_CHECK_MS``)."""

IDLE_WAIT_MS: Final = 30_000
"""How long a fetch waits for its first byte: its reply would say that there is none."""


class SharedFetches:
    """The sessions of one consumer, one for each host that it has fetched from."""

    def __init__(
        self,
        router: Router,
        settings: ConsumerSettings,
        random: Random,
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self._router = router
        self._settings = settings
        self._random = random
        self._tasks = OwnTasks(on_bug)
        self._sessions: dict[str, _Session] = {}

    async def fetch(
        self, address: str, request: FetchRequest, *, follower: int | None = None
    ) -> FetchReply:
        """The reply of the replica at ``address``, which is in a host.

        ``follower``: the broker of a replica that does not lead.
        """
        holder, _, key = address.partition("/")
        session = self._sessions.get(holder)
        if session is None:
            session_id = f"{self._random.getrandbits(128):032x}"
            session = _Session(self._router, self._settings, self._tasks, holder, session_id)
            self._sessions[holder] = session
        if request.min_bytes <= 1:
            request = structs.replace(request, max_wait_ms=IDLE_WAIT_MS)
        return await session.fetch(key, request, follower)

    def close(self) -> None:
        """Give up all fetches; hosts forget them after some seconds."""
        self._tasks.cancel()
        self._sessions.clear()


class _Waiting(NamedTuple):
    """A fetch that has not ended; ``follower`` is the broker of a replica that does not lead."""

    topic_partition: TopicPartition
    follower: int | None
    future: asyncio.Future[FetchReply]


class _Session:
    """The fetches at one host."""

    def __init__(
        self,
        router: Router,
        settings: ConsumerSettings,
        tasks: OwnTasks,
        holder: str,
        session_id: str,
    ) -> None:
        self._router = router
        self._settings = settings
        self._tasks = tasks
        self._holder = holder
        self._session_id = session_id
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._unsent: list[SharedFetch] = []
        self._sent_number = 0
        """The highest number that a call has named."""
        self._call_count = 0
        self._is_due = False

    async def fetch(self, key: str, request: FetchRequest, follower: int | None) -> FetchReply:
        """The reply to ``request`` of the replica ``key``."""
        number = next(self._numbers)
        future: asyncio.Future[FetchReply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = _Waiting(request.topic_partition, follower, future)
        self._unsent.append(SharedFetch(number=number, key=key, fetch=request))
        self._call_soon()
        try:
            return await future
        finally:
            self._waiting.pop(number, None)

    def _call_soon(self) -> None:
        """Call in the next turn of the loop, with all fetches that begin in this one."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._begin_call)

    def _begin_call(self) -> None:
        self._is_due = False
        unsent, self._unsent = self._unsent, []
        fetches = tuple(one for one in unsent if one.number in self._waiting)
        if fetches or (self._waiting and not self._call_count):
            self._call_count += 1
            self._tasks.spawn(self._call(fetches, next(iter(self._waiting.values()))))

    async def _call(self, fetches: tuple[SharedFetch, ...], some: _Waiting) -> None:
        settings = self._settings
        begun_before = self._sent_number
        self._sent_number = max([begun_before, *(one.number for one in fetches)])
        try:
            reply = await self._router.call_holder(
                self._holder,
                FetchTogetherRequest(
                    session_id=self._session_id,
                    fetches=fetches,
                    max_wait_ms=CALL_WAIT_MS,
                    max_bytes=settings.fetch_max_bytes,
                ),
                of=some.topic_partition,
                follower=some.follower,
                timeout_ms=CALL_WAIT_MS + settings.request_timeout_ms,
            )
        finally:
            self._call_count -= 1
        if reply.error is not ErrorCode.NONE:
            self._fail(reply.error, reply.detail, up_to=self._sent_number)
        elif reply.is_new:
            # Not the fetches of this call: they have begun.
            self._fail(ErrorCode.NETWORK_EXCEPTION, "the host forgot it", up_to=begun_before)
        self._answer(reply)
        if self._waiting:
            self._call_soon()

    def _answer(self, reply: FetchTogetherReply) -> None:
        for ended, records in zip(reply.ended, reply.records, strict=True):
            if ended.number in self._waiting:
                told = structs.replace(ended.reply, records=records) if records else ended.reply
                resolve_future(self._waiting[ended.number].future, told)

    def _fail(self, error: ErrorCode, detail: str, *, up_to: int) -> None:
        """Fail the fetches that calls so far have begun."""
        failed = FetchReply(error=error, detail=detail)
        for number, waiting in self._waiting.items():
            if number <= up_to:
                resolve_future(waiting.future, failed)
