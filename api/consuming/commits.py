"""A consumer's commits: one at a time, in the order in which they were asked for.

There are three kinds: ``commit`` waits until the offsets are durable; ``begin`` commits in the
background and reports to a callback; automatic commits cover what was delivered before a poll.
Calls may be reordered on their way, so a commit waits for those before it: the last one must win.
A commit is sent with the identity that the member had when it was asked for. So one that waited
through a rebalance is rejected, and does not move back the offset of another member.

Callbacks and ``on_commit`` of interceptors run when the application calls the consumer the next
time, in its thread or task. Source: Kafka's consumer; ``store_offsets`` is librdkafka's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from random import Random
from typing import Any, Final, TypeAlias

from msgspec import structs

from oncelog.actors.process.background import OwnTasks
from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.api.batching.interceptors import ConsumerInterceptorChain
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.fetcher import Fetcher
from oncelog.api.consuming.metrics import ConsumerCounters
from oncelog.api.records import ConsumerGroupMetadata, as_committed
from oncelog.api.session.committed_offsets import commit_offsets
from oncelog.api.session.routing import Router
from oncelog.storage.exceptions import IllegalStateError, OncelogError
from oncelog.storage.model import TopicPartition

CommitOffsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]
CommitCallback: TypeAlias = Callable[[CommitOffsets, OncelogError | None], object]

PENDING_MAX: Final = 1_000
"""Commits in the background, of one consumer; the next one waits for the first."""

LAST_COMMIT_TIMEOUT_MS: Final = 4_000
"""How long giving up partitions may wait for the last commits."""

_log = logging.getLogger(__name__)


class Commits:
    """The commits of one consumer. Belongs to one event loop.

    ``identity`` is the member as it is now. ``judge`` is told of each error and of the member that
    got it, and returns the one to raise. ``call_user`` calls a function in the thread or task of
    the application.
    """

    def __init__(
        self,
        *,
        router: Router,
        settings: ConsumerSettings,
        random: Random,
        fetcher: Fetcher,
        counters: ConsumerCounters,
        tasks: OwnTasks,
        identity: Callable[[], ConsumerGroupMetadata],
        judge: Callable[[OncelogError, ConsumerGroupMetadata], OncelogError],
        call_user: Callable[[Callable[[], object]], Awaitable[None]],
    ) -> None:
        self.interceptors = ConsumerInterceptorChain(settings.interceptors)
        self._router = router
        self._settings = settings
        self._random = random
        self._fetcher = fetcher
        self._counters = counters
        self._tasks = tasks
        self._identity = identity
        self._judge = judge
        self._call_user = call_user
        self._turn = asyncio.Lock()
        self._background: dict[asyncio.Task[None], None] = {}
        """Background commits under way, the oldest first; their own tasks take turns in order."""
        self._to_tell: deque[Callable[[], object]] = deque()
        """Callbacks of commits that are over; ``begin`` calls them, which bounds them too."""
        self._automatic: asyncio.Task[None] | None = None
        self._next_automatic_s: float | None = None

    @property
    def is_automatic(self) -> bool:
        """Whether offsets are committed without the application's call."""
        return self._settings.group_id is not None and self._settings.enable_auto_commit

    # --- what is committed --------------------------------------------------------------------

    def with_topic_ids(self, offsets: CommitOffsets) -> dict[TopicPartition, OffsetAndMetadata]:
        """``offsets`` with the ids of the topics that they were read from."""
        partitions = self._fetcher.partitions
        return {
            tp: structs.replace(position, topic_id=partitions[tp].topic_id)
            if tp in partitions and not position.topic_id
            else position
            for tp, position in offsets.items()
        }

    def store(self, offsets: CommitOffsets) -> None:
        """Let the next automatic commit take ``offsets``; all of them must be assigned."""
        if self._settings.enable_auto_offset_store:
            raise IllegalStateError(
                "offsets are stored automatically",
                advice="make the consumer with enable_auto_offset_store=False",
            )
        partitions = {tp: self._fetcher.partition(tp) for tp in offsets}
        for tp, offset in self.with_topic_ids(offsets).items():
            partitions[tp].stored = offset

    def stored(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The stored offsets of the assigned partitions."""
        return {
            tp: partition.stored
            for tp, partition in self._fetcher.partitions.items()
            if partition.stored is not None
        }

    def _processed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What an automatic commit covers: what was delivered, or was stored."""
        found = (
            self.with_topic_ids(
                {
                    tp: as_committed(partition.position)
                    for tp, partition in self._fetcher.partitions.items()
                    if partition.position is not None
                }
            )
            if self._settings.enable_auto_offset_store
            else self.stored()
        )
        if partitions is None:
            return found
        return {tp: found[tp] for tp in partitions if tp in found}

    # --- by call ------------------------------------------------------------------------------

    async def commit(self, offsets: CommitOffsets) -> None:
        """Commit ``offsets`` as this member, after earlier commits; durable on return."""
        identity = self._identity()
        await self._wait_for_background()
        try:
            await self._send(offsets, identity, self._settings.default_api_timeout_ms)
        finally:
            await self.call_back()

    async def begin(self, offsets: CommitOffsets, callback: CommitCallback | None) -> None:
        """Commit ``offsets`` in the background; waits only while ``PENDING_MAX`` are under way."""
        identity = self._identity()
        await self.call_back()
        while len(self._background) >= PENDING_MAX:
            await asyncio.wait({next(iter(self._background))})
            await self.call_back()
        self._spawn(self._report_to(callback, offsets, identity))

    async def _report_to(
        self,
        callback: CommitCallback | None,
        offsets: CommitOffsets,
        identity: ConsumerGroupMetadata,
    ) -> None:
        error: OncelogError | None = None
        try:
            await self._send(offsets, identity, self._settings.default_api_timeout_ms)
        except OncelogError as failure:
            error = failure
        if callback is not None:
            self._to_tell.append(partial(callback, offsets, error))
        elif error is not None:
            _log.error(
                "a commit in the background failed: %s — nothing to do if a later one succeeds; "
                "give a callback to see each outcome",
                error,
            )

    async def call_back(self) -> None:
        """Call the callbacks of commits that are over; raises what one raises."""
        while self._to_tell:
            await self._call_user(self._to_tell.popleft())

    # --- automatic ----------------------------------------------------------------------------

    def begin_automatic(self) -> None:
        """If an automatic commit is due, commit in the background what was delivered so far."""
        now = asyncio.get_running_loop().time()
        interval_s = self._settings.auto_commit_interval_ms / 1_000
        if self._next_automatic_s is None:
            self._next_automatic_s = now + interval_s
        if now < self._next_automatic_s:
            return
        if self._automatic is not None and not self._automatic.done():
            return
        self._next_automatic_s = now + interval_s
        timeout_ms = self._settings.default_api_timeout_ms
        work = self._commit_quietly(self._processed(), self._identity(), timeout_ms)
        self._automatic = self._spawn(work)

    async def commit_last(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_ms: float = LAST_COMMIT_TIMEOUT_MS,
    ) -> None:
        """Before ``partitions`` are given up: end commits under way, and commit automatically.

        Waits at most ``timeout_ms``. Only for a member that may still own them.
        """
        try:
            await asyncio.wait_for(self._commit_last(partitions, int(timeout_ms)), timeout_ms / 1e3)
        except asyncio.TimeoutError:
            _log.warning(
                "the last commits took longer than %d ms — see `oncelog status`; records since "
                "the last commit may be read again",
                timeout_ms,
            )

    async def _commit_last(
        self, partitions: Iterable[TopicPartition] | None, timeout_ms: int
    ) -> None:
        await self._wait_for_background()
        if self.is_automatic:
            await self._commit_quietly(self._processed(partitions), self._identity(), timeout_ms)

    async def _commit_quietly(
        self, offsets: CommitOffsets, identity: ConsumerGroupMetadata, timeout_ms: int
    ) -> None:
        """Commit ``offsets``; only log a failure, since a later commit covers this one."""
        try:
            await self._send(offsets, identity, timeout_ms)
        except OncelogError as error:
            _log.warning(
                "automatic commit failed: %s — nothing to do if a later one succeeds: it covers "
                "this one",
                error,
            )

    # --- all of them --------------------------------------------------------------------------

    def cancel(self) -> None:
        """Give up commits that are still under way."""
        for task in self._background:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._tasks.spawn(work)
        self._background[task] = None
        task.add_done_callback(self._background.pop)
        return task

    async def _wait_for_background(self) -> None:
        """Let the background commits so far end: a later commit must not overtake them."""
        if self._background:
            await asyncio.wait(tuple(self._background))

    async def _send(
        self, offsets: CommitOffsets, identity: ConsumerGroupMetadata, timeout_ms: int
    ) -> None:
        loop, counters = asyncio.get_running_loop(), self._counters
        began_s = loop.time()
        try:
            async with self._turn:
                await commit_offsets(
                    self._router, identity, offsets, random=self._random, timeout_ms=timeout_ms
                )
        except OncelogError as error:
            counters.failed_commits += 1
            raise self._judge(error, identity) from error.__cause__
        if offsets:
            counters.commits.add(began_s, loop.time())
            if self.interceptors:
                self._to_tell.append(partial(self.interceptors.on_commit, offsets))
