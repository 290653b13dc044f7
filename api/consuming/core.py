"""The event-loop side of a consumer: what a poll does, and in which order.

If something is missing (a rebalance to join, positions to find), a poll first starts *maintenance*
in a task of its own, so that a short poll does not interrupt it. During an eager rebalance no
records are delivered. Otherwise the poll takes prefetched records, or waits for some. ``commits``
has the rules of committing.

A cooperative rebalance goes on beside polls, which may deliver records between its steps. So what
it takes from the member is withheld at once, and given up in the next poll: what was delivered
before then counts as processed, and is committed first.

A position comes from, in this order: an explicit seek; the group's committed offset, after waiting
for open transactions that may commit it (KIP-447); the reset policy. Automatic commits store the
positions at the beginning of a poll: what was delivered before counts as processed.

One file: membership and positions change together within a poll.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final, TypeVar

from oncelog.actors.process.background import OwnTasks
from oncelog.actors.process.clock import epoch_ns
from oncelog.actors.protocol.messages.cluster import TopicMetadata
from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.commits import (
    LAST_COMMIT_TIMEOUT_MS,
    CommitCallback,
    CommitOffsets,
    Commits,
)
from oncelog.api.consuming.fetch_buffer import AssignedPartition
from oncelog.api.consuming.fetcher import Fetcher
from oncelog.api.consuming.group_membership import (
    LEAVE_TIMEOUT_MS,
    GroupMembership,
    bug_error,
)
from oncelog.api.consuming.metrics import ConsumerCounters, readings
from oncelog.api.records import ConsumerGroupMetadata, GivenUpInput, next_moment
from oncelog.api.session.client_metrics import PROCESS, ClientReport, Reading
from oncelog.api.session.committed_offsets import (
    consumer_backoff,
    fetch_committed,
    is_retriable,
    list_offsets,
)
from oncelog.api.session.event_loop import call_in_place, current_user
from oncelog.api.session.routing import Router
from oncelog.api.session.tracing import tracing_for
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    ClientClosedError,
    IllegalStateError,
    OffsetOutOfRangeError,
    OncelogError,
    PolicyViolationError,
    WakeupError,
)
from oncelog.storage.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

TakenT = TypeVar("TakenT")

CLOSE_TIMEOUT_MS: Final = LAST_COMMIT_TIMEOUT_MS + LEAVE_TIMEOUT_MS
"""How long a close takes at most, besides the listener."""

LOOKUP_TIMEOUT_MS: Final = 5_000
"""How long one round of finding positions may take before a pending rebalance is joined."""

_RESETS: Final = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}

_log = logging.getLogger(__name__)


class ConsumerRebalanceListener:
    """Base class of listeners for ``subscribe``; override the methods you need.

    They are called during a poll, in the thread or task that polls; ``on_revoked`` and ``on_lost``
    also during ``close`` and ``unsubscribe``. They may commit, seek and end a transaction, but not
    poll, subscribe or close. For an ``AsyncConsumer`` they may be coroutine functions. An exception
    is raised from the poll, and the next poll continues the rebalance.

    A cooperative rebalance, the default, names only partitions that come or go; the others are
    read meanwhile. An eager one revokes all partitions before it assigns any. Source: KIP-429.
    """

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> object:
        """These partitions (maybe none) are read from now on, besides those kept.

        Seek here to set positions.
        """

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> object:
        """These partitions are about to be given up; records not committed now are read again.

        Commits are still accepted, also within a transaction.
        """

    def on_lost(self, partitions: frozenset[TopicPartition]) -> object:
        """The member has left its group; other members may own these. Commits are rejected.

        Calls ``on_revoked`` unless it is overridden.
        """
        return self.on_revoked(partitions)


class _Notice:
    """A call of the listener that the next poll makes and a rebalance waits for."""

    def __init__(self, notify: Callable[[], Awaitable[None]]) -> None:
        self.notify = notify
        self.is_over = asyncio.Event()


class ConsumerCore:
    """The implementation of ``Consumer`` and ``AsyncConsumer``. Belongs to one event loop."""

    def __init__(
        self,
        *,
        router: Router,
        settings: ConsumerSettings,
        random: Random,
    ) -> None:
        self.settings = settings
        self.router = router
        self.random = random
        self._wake = asyncio.Event()
        self._is_woken = False
        """Whether ``wakeup`` was called and no poll has told so yet."""
        self.counters = ConsumerCounters()
        self.fetcher = Fetcher(
            router=router,
            settings=settings,
            random=random,
            on_change=self._wake.set,
            counters=self.counters,
        )
        self._report = ClientReport(router.reports, self._readings)
        self._client = PROCESS.name_of(settings.client_id)
        self._tracing = tracing_for(settings.tracing, settings.client_id)
        self._membership: GroupMembership | None = None
        self._tasks = OwnTasks(self._on_failure)
        self.commits = Commits(
            router=router,
            settings=settings,
            random=random,
            fetcher=self.fetcher,
            counters=self.counters,
            tasks=self._tasks,
            identity=self._identity,
            judge=self._judge_commit,
            call_user=self._call_user,
        )
        self._failure: OncelogError | None = None
        """The error of one of its tasks, for the next poll to raise."""
        self._maintenance: asyncio.Task[None] | None = None
        self._is_joining = False
        self._locating: asyncio.Task[None] | None = None
        """Finds positions while the maintenance task waits in a join."""
        self._listener: ConsumerRebalanceListener | None = None
        self._notice: _Notice | None = None
        self._notifier: object = None
        """The thread or task that is in a call of the listener or a callback, or ``None``."""
        self._left: ConsumerGroupMetadata | None = None
        self._missing: set[str] = set()
        """Topics that are missing, or miss assigned partitions; a warning was logged."""
        self._given_up: dict[TopicPartition, GivenUpInput] = {}
        """Partitions that rebalances took after records were delivered; bounded by partitions."""
        self._is_closed = False

    def _readings(self) -> Iterator[Reading]:
        return readings(
            self.counters,
            self.fetcher.partitions,
            client=self._client,
            group_id=self.settings.group_id,
            poll_gap_ratio=0.0 if self._membership is None else self._membership.poll_gap_ratio,
        )

    # --- what is read -------------------------------------------------------------------------

    def subscribe(
        self,
        topics: tuple[str, ...],
        listener: ConsumerRebalanceListener | None = None,
        pattern: re.Pattern[str] | None = None,
    ) -> None:
        """Let the group assign partitions of ``topics``; replaces the last subscription.

        With a ``pattern``, of the topics whose whole name matches it.
        """
        self.check_open()
        group_id = self.group_id("subscribe")
        if self._membership is None and self.fetcher.partitions:
            raise IllegalStateError("partitions are assigned by hand", advice="unsubscribe() first")
        self._listener = listener
        if self._membership is not None and self._membership.is_subscribed_to(topics, pattern):
            return
        self._stop_maintenance()
        if pattern is None:
            # A pattern is looked up later: the rebalance takes what does not match.
            self.fetcher.withhold(tp for tp in self.fetcher.partitions if tp.topic not in topics)
        if self._membership is None:
            self._membership = GroupMembership(
                router=self.router,
                settings=self.settings,
                random=self.random,
                group_id=group_id,
                topics=topics,
                pattern=pattern,
                on_change=self._wake.set,
                counters=self.counters,
            )
        else:
            self._membership.resubscribe(topics, pattern)

    async def assign(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without rebalances; commit those that are dropped."""
        self.check_open()
        if self._membership is not None:
            raise IllegalStateError("topics are subscribed to", advice="unsubscribe() first")
        self._left = None
        self._stop_maintenance()
        wanted = tuple(topic_partitions)
        if self.fetcher.partitions.keys() - wanted:
            await self._commit_last()
            self.check_open()
        self._missing.clear()
        self.fetcher.assign(wanted)

    async def unsubscribe(self) -> None:
        """Give up topics and partitions; leave the group after an automatic commit."""
        self.check_open()
        await self._leave(CLOSE_TIMEOUT_MS)

    @property
    def subscription(self) -> frozenset[str]:
        """The topics subscribed to."""
        return frozenset(self._membership.topics if self._membership is not None else ())

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    def check_open(self) -> None:
        """Raise ``ClientClosedError`` once the consumer is closed."""
        if self._is_closed and self._notifier is None:  # A listener may still commit during close.
            raise ClientClosedError

    def group_id(self, call: str) -> str:
        """The group's id; without one an ``IllegalStateError`` that names ``call``."""
        if self.settings.group_id is None:
            raise IllegalStateError(
                f"{call}() needs a group_id", advice="pass group_id=… to the consumer"
            )
        return self.settings.group_id

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The member's identity in its group, for ``send_offsets_to_transaction``.

        ``IllegalStateError`` with automatic commits: they would commit records that an aborted
        transaction has read, and lose them.
        """
        group_id = self.group_id("group_metadata")
        if self.commits.is_automatic:
            raise IllegalStateError(
                f"the consumer of group {group_id!r} commits automatically: records that an "
                "aborted transaction has read would be committed, and lost",
                advice="make it with enable_auto_commit=False",
            )
        return self._identity()

    def _identity(self) -> ConsumerGroupMetadata:
        """The identity used for commits.

        Without a subscription it is that of the last membership. The group rejects it, since those
        partitions may now belong to another member. ``assign`` starts afresh, without membership.
        """
        if self._membership is not None:
            identity = self._membership.metadata()
        elif self._left is not None:
            return self._left
        else:
            identity = ConsumerGroupMetadata(group_id=self.group_id("commit"))
        topic_ids = {tp.topic: p.topic_id for tp, p in self.fetcher.partitions.items()}
        return replace(
            identity,
            topic_ids=topic_ids,
            given_up=self._given_up,
            delivers_in_commit_order=self.settings.order == "commit",
        )

    # --- poll ---------------------------------------------------------------------------------

    @contextmanager
    def processing(self, timeout_ms: int) -> Iterator[None]:
        """See ``Consumer.processing``; may be used in another thread than the loop's."""
        membership = self._membership
        if membership is None:
            yield
            return
        membership.begin_processing(timeout_ms)
        try:
            yield
        finally:
            membership.end_processing()

    async def poll(
        self, take: Callable[[Fetcher], TakenT | None], *, timeout_ms: float
    ) -> TakenT | None:
        """Return ``take(fetcher)`` once it is not empty, or ``None`` after ``timeout_ms``.

        Raises non-retriable errors, and ``WakeupError``; the next poll continues.
        """
        self.check_open()
        self._report.begin()
        self.counters.record_poll(asyncio.get_running_loop().time())
        await self.commits.call_back()
        membership = self._membership
        if membership is None:
            if not self.fetcher.partitions:
                raise IllegalStateError(
                    "nothing to poll", advice="call subscribe() or assign() first"
                )
            return await self._traced_poll(take, timeout_ms)
        membership.is_polled = True
        try:
            return await self._traced_poll(take, timeout_ms)
        finally:
            membership.is_polled = False
            membership.record_poll()

    async def _traced_poll(
        self, take: Callable[[Fetcher], TakenT | None], timeout_ms: float
    ) -> TakenT | None:
        if self._tracing is None:
            return await self._poll(take, timeout_ms)
        began_ns = epoch_ns()
        taken = await self._poll(take, timeout_ms)
        if taken:
            self._tracing.polled(taken, began_ns, self.settings.group_id)
        return taken

    async def _poll(
        self, take: Callable[[Fetcher], TakenT | None], timeout_ms: float
    ) -> TakenT | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1_000
        if self.commits.is_automatic and self._owns_partitions:
            self.commits.begin_automatic()
        while True:
            self._wake.clear()
            if self._is_closed:
                raise ClientClosedError
            if self._is_woken:
                self._is_woken = False
                raise WakeupError
            self._maintain(may_join=True)
            if (notice := self._notice) is not None:
                self._notice = None
                try:
                    await notice.notify()
                finally:
                    notice.is_over.set()
                continue
            self._raise_failure()
            # From the start of an eager rebalance, treat the partitions as another member's.
            if self._membership is None or self._membership.keeps_partitions:
                taken = take(self.fetcher)
                if taken:
                    return taken
            remaining = deadline - loop.time()
            if remaining <= 0:
                return None
            await self._wait(remaining)

    async def _notify(
        self,
        call: Callable[[frozenset[TopicPartition]], object],
        partitions: Iterable[TopicPartition],
    ) -> None:
        """Call a method of the listener in the application's thread or task."""
        await self._call_user(partial(call, frozenset(partitions)))

    async def _call_user(self, call: Callable[[], object]) -> None:
        former, self._notifier = self._notifier, current_user()
        try:
            await call_in_place(call)
        finally:
            self._notifier = former

    def wakeup(self) -> None:
        """Let the poll in progress, or else the next one, raise ``WakeupError``."""
        self._is_woken = True
        self._wake.set()

    @property
    def is_in_listener(self) -> bool:
        """Whether the current caller is a listener or callback, inside another call."""
        return self._notifier is not None and self._notifier == current_user()

    def check_not_in_listener(self, call: str) -> None:
        """Raise ``IllegalStateError`` if the consumer's own listener makes this ``call``."""
        if self.is_in_listener:
            raise IllegalStateError(
                f"{call}() was called by the consumer's own callback or rebalance listener: return "
                "from it first"
            )

    async def _wait(self, timeout_s: float) -> None:
        """Wait until something changes; a timeout is not an error."""
        timer = asyncio.get_running_loop().call_later(timeout_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def _raise_failure(self) -> None:
        membership = self._membership
        if membership is not None and (lasting := membership.take_failure()) is not None:
            raise lasting
        while (failed := self.fetcher.take_failure()) is not None:
            self._answer_failure(*failed)

    def _answer_failure(self, partition: AssignedPartition, failure: OncelogError) -> None:
        """Recover from ``failure`` by a reset or by reading on, else raise it."""
        reset = self._reset_policy()
        if failure.code is ErrorCode.UNKNOWN_TOPIC_ID:
            _log.warning(
                "%s was deleted and created again: reading it as a new topic — nothing to do, if "
                "somebody meant to replace it",
                partition.topic_partition,
            )
            self.fetcher.reset(partition.topic_partition, None)
            self._maintain(may_join=False)
            return
        if failure.code is ErrorCode.OFFSET_OUT_OF_RANGE and reset is not None:
            _log.warning(
                "%s: offset %s is out of range, resetting to %s — keep records for longer "
                "(retention_ms), or read faster, if records must not be missed",
                partition.topic_partition,
                partition.position,
                self.settings.auto_offset_reset,
            )
            self.fetcher.reset(partition.topic_partition, reset)
            self._maintain(may_join=False)
            return
        if failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._can_read_on(
            {partition.topic_partition}
        ):
            return
        raise failure

    def _can_read_on(self, missing: AbstractSet[TopicPartition]) -> bool:
        """Whether there is more to read than ``missing``; if so, log a warning with their topics.

        If not, the application must get an error, or it would wait forever for a misspelt topic.
        For subscribed topics, the group's leader soon assigns the partitions that exist.
        """
        known = self.router.known_topics
        if self._membership is not None:
            # What matches a pattern may be created at any time.
            is_left = self._membership.pattern is not None or any(
                topic in known for topic in self._membership.topics
            )
        else:
            is_left = any(_exists(known, tp) for tp in self.fetcher.partitions.keys() - missing)
        for topic_partition in sorted(missing):
            if is_left and topic_partition.topic not in self._missing:
                self._missing.add(topic_partition.topic)
                _log.warning(
                    "partition %s does not exist (any more): reading the others — take it out of "
                    "assign() if it was deleted",
                    topic_partition,
                )
        return is_left

    # --- maintenance --------------------------------------------------------------------------

    def _maintain(self, *, may_join: bool) -> None:
        """Start the maintenance task if there is work for it; raise the error of the last one.

        Only a poll ``may_join``: what was delivered before it counts as processed, and so may be
        committed before the partitions are given up.
        """
        if self._maintenance in self._tasks.running:
            if (
                self._is_joining
                and self._locating not in self._tasks.running
                and self._unresolved()
            ):
                # A member that keeps its partitions may need positions before all have joined.
                self._locating = self._tasks.spawn(self._run_maintenance(False))
                self._locating.add_done_callback(lambda _: self._wake.set())
            return
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        joins = may_join and self._needs_join()
        if joins or self._unresolved():
            self._maintenance = self._tasks.spawn(self._run_maintenance(joins))
            self._maintenance.add_done_callback(lambda _: self._wake.set())

    def _stop_maintenance(self) -> None:
        tasks = (self._maintenance, self._locating)
        self._maintenance = self._locating = self._failure = self._notice = None
        for task in tasks:
            if task is not None:
                task.cancel()

    def _on_failure(self, error: BaseException) -> None:
        if not isinstance(error, OncelogError):
            error = bug_error("a task of the consumer", error)
        self._failure = error
        self._wake.set()

    def _needs_join(self) -> bool:
        return self._membership is not None and self._membership.needs_join

    def _unresolved(self) -> list[AssignedPartition]:
        return [p for p in self.fetcher.partitions.values() if p.position is None]

    async def _run_maintenance(self, joins: bool) -> None:
        """The maintenance task: join if asked to, then find positions until all are known.

        A rebalance requested later is left to the next poll.
        """
        backoff = consumer_backoff(self.settings, self.random)
        while True:
            try:
                if joins:
                    await self._join()
                    joins = False
                unresolved = self._unresolved()
                if not unresolved:
                    return
                missing = await self._find_positions(unresolved)
                if not missing:
                    continue
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not self._can_read_on(missing):
                    await self.router.leader(min(missing))
            except OncelogError as error:
                code = error.code
                if not is_retriable(code) and not (
                    code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._can_read_on(frozenset())
                ):
                    raise
                _log.info("%s; retrying", error)
            if self._needs_join() and not joins and not self._is_joining:
                return
            await asyncio.sleep(backoff.delay_ms(code) / 1_000)

    async def _join(self) -> None:
        """Join the group, and take and give up what its new generation says."""
        membership = self._membership
        assert membership is not None
        self._is_joining = True
        try:
            # What a cooperative member gives up it commits later, and it keeps the rest.
            await self._commit_last(() if membership.keeps_partitions else None)
            assigned = None
            while assigned is None:
                if not membership.keeps_partitions:
                    await self._give_up(membership, frozenset(self.fetcher.partitions))
                elif unwanted := {tp for tp, p in self.fetcher.partitions.items() if p.is_withheld}:
                    await self._revoke(membership, unwanted)
                assigned = await membership.join(tuple(self.fetcher.partitions))
        finally:
            self._is_joining = False
        former = frozenset(self.fetcher.partitions)
        if revoked := former.difference(assigned):
            await self._revoke(membership, revoked)
            membership.ask_to_join()
        self.fetcher.assign(assigned)
        if self._listener is not None:
            added = former.symmetric_difference(assigned) - revoked
            await self._in_poll(partial(self._notify, self._listener.on_assigned, added))

    async def _revoke(
        self, membership: GroupMembership, partitions: AbstractSet[TopicPartition]
    ) -> None:
        """Give up ``partitions`` in a poll: what was delivered before counts as processed."""
        self.fetcher.withhold(partitions)
        await self._in_poll(_nothing)
        await self._commit_last(partitions)
        await self._give_up(membership, partitions)

    async def _give_up(
        self, membership: GroupMembership, partitions: AbstractSet[TopicPartition]
    ) -> None:
        """Tell the listener, and drop ``partitions``; unless committed they are read again."""
        if not membership.may_commit:
            self.counters.lost_partitions += len(partitions)
        if self._listener is not None and partitions:
            await self._in_poll(partial(self._notify_revoked, membership, partitions))
        self._release(partitions)

    async def _notify_revoked(
        self, membership: GroupMembership, partitions: AbstractSet[TopicPartition]
    ) -> None:
        """Tell the listener that the partitions are revoked, or lost."""
        if self._listener is not None and partitions:
            is_lost = not membership.may_commit
            call = self._listener.on_lost if is_lost else self._listener.on_revoked
            await self._notify(call, partitions)

    async def _in_poll(self, notify: Callable[[], Awaitable[None]]) -> None:
        """Have a poll ``notify`` the listener, and wait until it has."""
        notice = self._notice = _Notice(notify)
        self._wake.set()
        await notice.is_over.wait()

    def _release(self, partitions: AbstractSet[TopicPartition]) -> None:
        """Drop ``partitions``; their next owner starts at the committed offsets."""
        moment, assigned = next_moment(), self.fetcher.partitions
        # A new dict: group metadata already handed out keeps the old one.
        self._given_up = self._given_up | {
            tp: GivenUpInput(given_up_at=moment, delivered_at=assigned[tp].delivered_at)
            for tp in partitions
            if assigned[tp].delivered_at
        }
        self.fetcher.assign([tp for tp in assigned if tp not in partitions])
        self._missing.clear()

    async def _find_positions(
        self, partitions: list[AssignedPartition]
    ) -> AbstractSet[TopicPartition]:
        """Try once to find the position of each partition; return those that do not exist."""
        moves = {partition: partition.moves for partition in partitions}
        committed: dict[TopicPartition, OffsetAndMetadata] = {}
        names = {p.topic_partition.topic for p in partitions}
        topics = await self.router.metadata(names)
        if not all(_exists(topics, p.topic_partition) for p in partitions):
            # The missing partitions may have been created since.
            topics = await self.router.metadata(names, refresh=True)
        missing = {p.topic_partition for p in partitions if not _exists(topics, p.topic_partition)}
        partitions = [p for p in partitions if p.topic_partition not in missing]
        self._missing -= {p.topic_partition.topic for p in partitions}
        asked = [p.topic_partition for p in partitions if p.reset_timestamp is None]
        if asked and self.settings.group_id is not None:
            committed = await fetch_committed(
                self.router,
                self.settings.group_id,
                asked,
                random=self.random,
                timeout_ms=LOOKUP_TIMEOUT_MS,
            )
        targets: dict[TopicPartition, int] = {}
        for partition in partitions:
            topic_partition = partition.topic_partition
            self._check_cleanup(topics[topic_partition.topic])
            # Offsets are valid in this topic only: the leader rejects them in another.
            partition.topic_id = topics[topic_partition.topic].topic_id
            if partition.reset_timestamp is None and topic_partition in committed:
                partition.topic_id = committed[topic_partition].topic_id or partition.topic_id
                position = partition.position_of(committed[topic_partition])
                self._set_position(partition, moves, position)
            else:
                targets[topic_partition] = self._reset_target(partition)
        found = await self._offsets_at(targets)
        for partition in partitions:
            if partition.topic_partition in found:
                self._set_position(partition, moves, found[partition.topic_partition])
        return missing

    async def _offsets_at(self, targets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offset of each partition for its time; the end if no record is as young."""
        replies = await list_offsets(
            self.router,
            targets,
            isolation_level=self.settings.isolation_level,
            random=self.random,
            timeout_ms=LOOKUP_TIMEOUT_MS,
        )
        found = {tp: reply.offset for tp, reply in replies.items() if reply.offset >= 0}
        if ends := dict.fromkeys(replies.keys() - found.keys(), LATEST_TIMESTAMP):
            found |= await self._offsets_at(ends)
        return found

    def _check_cleanup(self, topic: TopicMetadata) -> None:
        """Compaction removes records and markers, by which a position in commit order is told."""
        cleanup_policy = dict(topic.settings).get("cleanup_policy", "delete")
        if self.settings.order == "commit" and "compact" in cleanup_policy:
            raise PolicyViolationError(
                f"{topic.name} has cleanup_policy={cleanup_policy!r}: order='commit' reads topics "
                "that are not compacted",
                advice="use order='offset'",
            )

    def _reset_target(self, partition: AssignedPartition) -> int:
        if partition.reset_timestamp is not None:
            return partition.reset_timestamp
        target = self._reset_policy()
        if target is None:
            raise OffsetOutOfRangeError(
                f"no offset is committed for {partition.topic_partition} and "
                "auto_offset_reset='none'",
                advice="seek, or use 'earliest' or 'latest'",
            )
        return target

    def _reset_policy(self) -> int | None:
        """What ``auto_offset_reset`` means now: a time, the log's start or end; else ``None``."""
        age_ms = self.settings.reset_age_ms
        if age_ms is not None:
            return max(0, self.router.clock.now_ms() - age_ms)
        return _RESETS.get(self.settings.auto_offset_reset)

    def _set_position(
        self, partition: AssignedPartition, moves: Mapping[AssignedPartition, int], offset: int
    ) -> None:
        """Start at ``offset``, unless a seek or rebalance happened during the look-up."""
        is_assigned = self.fetcher.partitions.get(partition.topic_partition) is partition
        if is_assigned and partition.moves == moves[partition]:
            self.fetcher.seek(partition.topic_partition, offset)

    async def position(self, topic_partition: TopicPartition) -> int:
        """Offset of the next record (inclusive), once it is known."""
        self.check_open()
        deadline = asyncio.get_running_loop().time() + self.settings.default_api_timeout_ms / 1_000
        while True:
            self._wake.clear()
            self.check_open()
            partition = self.fetcher.partition(topic_partition)
            if partition.position is not None:
                return partition.position
            if self._notifier is not None:
                # The maintenance task waits for the listener, which is the caller.
                await self._find_positions([partition])
                continue
            self._maintain(may_join=False)
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                raise IllegalStateError(f"the position of {topic_partition} is not known yet")
            await self._wait(remaining)

    # --- commit -------------------------------------------------------------------------------

    def positions(self) -> dict[TopicPartition, int]:
        """The known positions of the assigned partitions."""
        return {
            partition.topic_partition: partition.position
            for partition in self.fetcher.partitions.values()
            if partition.position is not None
        }

    async def commit(self, offsets: CommitOffsets) -> None:
        """Commit ``offsets`` as this member; durable on return."""
        self.check_open()
        self.group_id("commit")
        await self.commits.commit(self.commits.with_topic_ids(offsets))

    async def commit_async(self, offsets: CommitOffsets, callback: CommitCallback | None) -> None:
        """Begin to commit ``offsets`` as this member; ``callback`` is told how it ends."""
        self.check_open()
        self.group_id("commit_async")
        await self.commits.begin(self.commits.with_topic_ids(offsets), callback)

    def _judge_commit(self, error: OncelogError, who: ConsumerGroupMetadata) -> OncelogError:
        """A commit was rejected: the member may have to join again. Returns the error to raise."""
        if self._membership is None:
            return error
        return self._membership.on_commit_error(error, who.generation_id)

    @property
    def _owns_partitions(self) -> bool:
        return self._membership is None or (
            self._membership.may_commit and not self._membership.needs_join
        )

    async def _commit_last(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        timeout_ms: float = LAST_COMMIT_TIMEOUT_MS,
    ) -> None:
        """The last commits before partitions are given up, if the member still owns them."""
        if self._membership is None or self._membership.may_commit:
            await self.commits.commit_last(partitions, timeout_ms=timeout_ms)

    # --- the end ------------------------------------------------------------------------------

    async def abandon(self) -> None:
        """Leave the group and stop without a commit: what was processed is unknown."""
        self._is_closed = True
        self._report.stop()
        self._stop_maintenance()
        membership, self._membership = self._membership, None
        self.fetcher.assign(())
        if membership is not None:
            await membership.close()

    async def close(self, timeout_ms: float) -> None:
        """Commit if commits are automatic, leave the group, stop.

        Takes up to ``timeout_ms`` plus the time of the listener and callbacks. Safe to repeat.
        Calls waiting for the consumer raise ``ClientClosedError`` at once.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._wake.set()
        try:
            await self._leave(timeout_ms)
        finally:
            self._report.stop()
            self.commits.cancel()
            await self.fetcher.close()

    async def _leave(self, timeout_ms: float) -> None:
        """Commit, then leave the group; the commits may take four fifths of the time."""
        self._stop_maintenance()
        membership = self._membership
        topic_ids = {tp.topic: p.topic_id for tp, p in self.fetcher.partitions.items()}
        try:
            await self._commit_last(timeout_ms=timeout_ms * 4 / 5)
            if membership is not None:
                await self._notify_revoked(membership, frozenset(self.fetcher.partitions))
        finally:
            self._membership = None
            self._release(frozenset(self.fetcher.partitions))
            if membership is not None:
                self._left = replace(membership.metadata(), topic_ids=topic_ids)
                await membership.close(timeout_ms / 5)
            await self.commits.call_back()


async def _nothing() -> None:
    """What a poll does to show that it has begun."""


def _exists(topics: Mapping[str, TopicMetadata], topic_partition: TopicPartition) -> bool:
    """Whether the partition exists according to the metadata ``topics``."""
    topic = topics.get(topic_partition.topic)
    return topic is not None and topic.find(topic_partition.partition) is not None
