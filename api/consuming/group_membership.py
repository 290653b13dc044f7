"""A consumer's side of the classic group protocol: join, sync, heartbeat, leave.

States, and the transitions out of each:

===========  =======================================================================================
JOINING      not a member, or asked to rejoin: the next poll calls ``join``
STABLE       member of ``generation_id``; heartbeats run. REBALANCE_IN_PROGRESS → JOINING with the
             generation kept: the member has its place, and may commit. UNKNOWN_MEMBER_ID,
             ILLEGAL_GENERATION, or no poll within ``max_poll_interval_ms`` → JOINING without it:
             the place is lost, and the partitions may already be another member's
FENCED       another member took over the ``group_instance_id``: final, ``failure`` says so
===========  =======================================================================================

In an *eager* rebalance a member gives up its partitions before it joins. In a *cooperative* one it
names them as it joins and goes on reading. It then gives up only those that it is not assigned any
more, and joins again; the next generation assigns them. So no partition has two owners. All
strategies of a member must be cooperative for that: a group changes over in two rounds, in the
first of which its members know both and are eager.

Joins begin only inside a poll: what was delivered before counts as processed. A static member (one
with a ``group_instance_id``) does not leave on close: restarted within its session timeout it gets
its partitions back without a rebalance.
Source: KIP-62, KIP-345, KIP-394, KIP-429, KIP-792.

One file: joining, heartbeats and leaving are transitions of one state machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import re
from collections.abc import Callable
from random import Random
from typing import Final

from oncelog.actors.protocol.group.consumer_protocol import (
    ASSIGNORS,
    COOPERATIVE_STICKY,
    NO_GENERATION,
    PROTOCOL_TYPE,
    ConsumerAssignment,
    Subscriber,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from oncelog.actors.protocol.messages.group import (
    DescribeGroupsRequest,
    GroupProtocol,
    HeartbeatReply,
    HeartbeatRequest,
    JoinGroupReply,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    SyncGroupReply,
    SyncGroupRequest,
)
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.metrics import ConsumerCounters
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.api.session.committed_offsets import consumer_backoff
from oncelog.api.session.event_loop import cancelled_by_program
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    OncelogError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    exception_for,
)
from oncelog.storage.model import INTERNAL_TOPICS, TopicPartition

JOIN_MARGIN_MS: Final = 5_000
"""How much longer than the rebalance timeout the reply to a join may take."""

LEAVE_TIMEOUT_MS: Final = 1_000
"""How long a leaving member waits for the reply, and for its group's coordinator."""

_REJOIN: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.MEMBER_ID_REQUIRED,
    }
)
"""Error codes that make the member join (again) at once."""

_log = logging.getLogger(__name__)


def bug_error(who: str, bug: BaseException) -> OncelogError:
    """The error that the application gets when a task of ours ended with an unexpected error."""
    error = UnknownServerError(f"{who} ended because of a bug: {bug!r}")
    error.__cause__ = bug
    _log.error("%s — report it, with this traceback", error, exc_info=bug)
    return error


class MembershipState(enum.Enum):
    """A consumer's state in its group; see the module's table."""

    JOINING = "joining"
    STABLE = "stable"
    FENCED = "fenced"


class GroupMembership:
    """One consumer in one group. Belongs to one event loop.

    ``on_change`` is called when a waiting poll has something to do: rejoin, or raise ``failure``.
    """

    def __init__(
        self,
        *,
        router: Router,
        settings: ConsumerSettings,
        random: Random,
        group_id: str,
        topics: tuple[str, ...],
        on_change: Callable[[], None],
        pattern: re.Pattern[str] | None = None,
        counters: ConsumerCounters | None = None,
    ) -> None:
        self.state = MembershipState.JOINING
        self.failure: OncelogError | None = None
        self.topics = topics
        """The topics subscribed to; with a ``pattern``, those that matched at the last join."""
        self.pattern = pattern
        self.is_polled = False
        """Whether a poll is in progress: however long it waits, the member counts as polling."""
        self.generation_id = -1
        self.member_id = ""
        self._member_once = ""
        """The member id in the last reply to a join."""
        self._joined = ConsumerGroupMetadata(
            group_id=group_id, group_instance_id=settings.group_instance_id
        )
        self._router = router
        self._settings = settings
        self._random = random
        self._group_id = group_id
        self._on_change = on_change
        self.is_cooperative: Final = settings.partition_assignment_strategy == (COOPERATIVE_STICKY,)
        """Whether rebalances are cooperative."""
        self._assigned: tuple[TopicPartition, ...] = ()
        self._owned: tuple[TopicPartition, ...] = ()
        """What the member keeps as it joins."""
        self._heartbeats: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._last_poll_s = self._loop.time()
        self._processing_until_s = 0.0
        self._divided: dict[str, int] = {}
        """Partition counts of the topics that this member, as the group's leader, has assigned: 0
        for a topic that does not exist.
        """
        self._counters = counters or ConsumerCounters()
        self._matched_s = 0.0
        """When the names of all topics were last compared with the pattern."""
        self._missing: list[str] = []
        """Subscribed topics that do not exist and that a warning has named."""

    # --- what the consumer asks ---------------------------------------------------------------

    @property
    def needs_join(self) -> bool:
        """Whether the next poll must ``join``."""
        return self.state is MembershipState.JOINING

    @property
    def keeps_partitions(self) -> bool:
        """Whether the member's partitions are its own: not once it must give all up to join."""
        if self.state is MembershipState.JOINING:
            return self.is_cooperative and self.generation_id >= 0
        return self.state is MembershipState.STABLE

    @property
    def may_commit(self) -> bool:
        """Whether the coordinator may still accept commits from this member's generation."""
        return self.generation_id >= 0 and self.state is not MembershipState.FENCED

    def take_failure(self) -> OncelogError | None:
        """The error for the next poll to raise: once if the member may join again, else always."""
        failure = self.failure
        if self.state is MembershipState.JOINING:
            self.failure = None
        return failure

    def metadata(self) -> ConsumerGroupMetadata:
        """The identity in commits, with which the coordinator rejects a zombie's.

        Kept from one join to the next. An evicted member must not become anonymous, because an
        empty group would accept its commits.
        """
        return self._joined

    def record_poll(self) -> None:
        """The application polls: restart the ``max_poll_interval_ms`` clock."""
        self._last_poll_s = asyncio.get_running_loop().time()

    def begin_processing(self, timeout_ms: int) -> None:
        """The application processes what it polled; counts as polling for up to ``timeout_ms``.

        This and ``end_processing`` may be called from another thread than the loop's.
        """
        self._processing_until_s = self._loop.time() + timeout_ms / 1_000

    def end_processing(self) -> None:
        """Processing ended: the poll clock restarts, or expires if processing took too long."""
        now_s = self._loop.time()
        if now_s < self._processing_until_s:
            self._last_poll_s = now_s
        self._processing_until_s = 0.0

    def is_subscribed_to(self, topics: tuple[str, ...], pattern: re.Pattern[str] | None) -> bool:
        """Whether these topics, in any order, or this pattern are what is subscribed to."""
        if pattern is not None or self.pattern is not None:
            return pattern == self.pattern
        return set(topics) == set(self.topics)

    def resubscribe(self, topics: tuple[str, ...], pattern: re.Pattern[str] | None = None) -> None:
        """Subscribe to other topics from the next poll on."""
        self.topics = topics
        self.pattern = pattern
        self._ask_to_join()

    def on_commit_error(self, error: OncelogError, generation_id: int) -> OncelogError:
        """A commit was rejected; return the error for the application.

        If the group has moved on without the member, it joins again. If the member was joining, it
        keeps what it has, and may commit again after the rebalance: ``RebalanceInProgressError``.
        """
        is_of_now = generation_id == self.generation_id
        if self.state is MembershipState.STABLE and is_of_now and error.code in _REJOIN:
            self._on_group_error(error.code)
        elif error.code is ErrorCode.ILLEGAL_GENERATION and self.keeps_partitions:
            return exception_for(
                ErrorCode.REBALANCE_IN_PROGRESS,
                f"group {self._group_id!r} has begun generation {self.generation_id} after the "
                f"commit was begun in {generation_id}",
                advice="poll, then commit what is still assigned",
            )
        return error

    def ask_to_join(self) -> None:
        """Let the next poll join again: what the member has given up is to be assigned."""
        self._ask_to_join()

    # --- joining ------------------------------------------------------------------------------

    async def join(
        self, owned: tuple[TopicPartition, ...] = ()
    ) -> tuple[TopicPartition, ...] | None:
        """Join or rejoin, and return the partitions of the new generation.

        ``owned`` is what the member keeps meanwhile. ``None`` if it has lost its place, and thereby
        all that: it must give that up, then call again.

        Waits for the other members, and retries retriable errors indefinitely. Raises any other
        error as ``OncelogError``; then it may be called again.
        """
        self._owned = owned
        await self._stop_heartbeats()
        backoff = consumer_backoff(self._settings, self._random)
        began_s = self._loop.time()
        while True:
            self.record_poll()
            had_member_id = bool(self.member_id)
            error, detail = await self._attempt()
            if error is ErrorCode.NONE:
                self.record_poll()
                self._counters.joins.add(began_s, self._loop.time())
                self.state = MembershipState.STABLE
                self._heartbeats = asyncio.get_running_loop().create_task(self._beat())
                self._heartbeats.add_done_callback(self._stopped_beating)
                _log.info(
                    "group %s: generation %d, %d partitions",
                    self._group_id,
                    self.generation_id,
                    len(self._assigned),
                )
                return self._assigned
            self._forget_identity_after(error)
            if owned and not self.keeps_partitions and error in _REJOIN:
                return None
            if error is ErrorCode.MEMBER_ID_REQUIRED and not had_member_id:
                continue
            self._counters.failed_joins += 1
            if error not in _REJOIN and not error.retriable:
                raise self._refused(error, detail)
            await asyncio.sleep(backoff.delay_ms(error) / 1_000)

    async def _attempt(self) -> tuple[ErrorCode, str]:
        """One join and one sync; on ``NONE`` generation, member id and assignment are new."""
        if self.pattern is not None:
            try:
                self.topics = await self._matching(self.pattern)
            except OncelogError as error:
                return error.code, str(error)
        else:
            await self._check_topics(self.topics)
        self._divided = {}
        joined = await self._call_join()
        if joined.error is not ErrorCode.NONE:
            if joined.error is ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = joined.member_id
            return joined.error, joined.detail
        self.member_id = self._member_once = joined.member_id
        self.generation_id = joined.generation_id
        is_leader = joined.leader_id == joined.member_id
        assignments: tuple[MemberAssignment, ...] = ()
        if is_leader and joined.skip_assignment:
            self._divided = await self._divided_before(joined)
        elif is_leader:
            try:
                assignments = await self._assign(joined)
            except OncelogError as error:
                # Without partition counts nothing can be assigned. The next join gets the same
                # generation, and so another try.
                return error.code, str(error)
        synced = await self._call_sync(joined, assignments)
        if synced.error is not ErrorCode.NONE:
            return synced.error, synced.detail
        self._assigned = decode_assignment(synced.assignment).partitions
        self._joined = ConsumerGroupMetadata(
            group_id=self._group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
        )
        return ErrorCode.NONE, ""

    async def _matching(self, pattern: re.Pattern[str]) -> tuple[str, ...]:
        """The topics whose whole name matches now, without internal ones; maybe none."""
        known = await self._router.all_topics()
        self._matched_s = self._loop.time()
        return tuple(
            sorted(
                name for name in known if pattern.fullmatch(name) and name not in INTERNAL_TOPICS
            )
        )

    async def _check_pattern(self) -> None:
        """Now and then, trigger a rebalance if other topics match the pattern than at the join."""
        pattern = self.pattern
        age_s = self._loop.time() - self._matched_s
        if pattern is None or age_s < self._settings.metadata_max_age_ms / 1_000:
            return
        try:
            topics = await self._matching(pattern)
        except OncelogError as error:
            _log.info("group %s: %s; looking for topics later", self._group_id, error)
            return
        if topics != self.topics and self.pattern is pattern:
            _log.info("group %s: the topics that match changed, rejoining", self._group_id)
            self._ask_to_join()

    async def _check_topics(self, topics: tuple[str, ...]) -> None:
        """Warn about missing topics; raise if none exists, since the wait would never end."""
        try:
            known = await self._router.metadata(topics)
        except OncelogError as error:
            if not error.retriable:
                raise
            _log.info("group %s: topics are not known yet: %s", self._group_id, error)
            return
        missing = sorted(set(topics) - known.keys())
        if missing and not known:
            raise UnknownTopicOrPartitionError(
                f"subscribed to topics that do not exist: {', '.join(missing)}",
                advice="create them first",
            )
        if missing and missing != self._missing:
            _log.warning(
                "group %s: subscribed topics do not exist: %s; reading the others — create them, "
                "or correct their names",
                *(self._group_id, ", ".join(missing)),
            )
        self._missing = missing

    async def _call_join(self) -> JoinGroupReply:
        settings = self._settings
        request = JoinGroupRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            is_first=self.member_id != self._member_once,
            group_instance_id=settings.group_instance_id,
            client_id=settings.client_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            protocol_type=PROTOCOL_TYPE,
            protocols=tuple(map(self._protocol, settings.partition_assignment_strategy)),
            process=self._router.process,
        )
        # Who has no member id yet is given one at once. If that call is lost, only another helps.
        is_parked = bool(self.member_id)
        return await self._router.call_group_coordinator(
            self._group_id,
            request,
            timeout_ms=settings.max_poll_interval_ms + JOIN_MARGIN_MS
            if is_parked
            else settings.request_timeout_ms,
        )

    def _protocol(self, strategy: str) -> GroupProtocol:
        # For the other assignors the bytes must not change from one join to the next, or the
        # coordinator would see a changed member. An eager member keeps nothing as it joins.
        owned = {"sticky": self._assigned, COOPERATIVE_STICKY: self._owned}.get(strategy, ())
        subscription = Subscription(
            topics=self.topics,
            owned_partitions=owned,
            generation_id=self._joined.generation_id if owned else NO_GENERATION,
        )
        return GroupProtocol(name=strategy, metadata=encode_subscription(subscription))

    async def _assign(self, joined: JoinGroupReply) -> tuple[MemberAssignment, ...]:
        """As the group's leader, assign the partitions of all subscribed topics."""
        subscribers = [
            Subscriber(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                topics=subscription.topics,
                owned_partitions=subscription.owned_partitions,
                generation_id=subscription.generation_id,
            )
            for member in joined.members
            for subscription in (decode_subscription(member.metadata),)
        ]
        topics = {topic for subscriber in subscribers for topic in subscriber.topics}
        known = await self._router.metadata(topics, refresh=True)
        counts = {topic: len(metadata.partitions) for topic, metadata in known.items()}
        self._divided = dict.fromkeys(topics, 0) | counts
        plan = ASSIGNORS[joined.protocol_name](subscribers, counts)
        return tuple(
            MemberAssignment(
                member_id=member_id,
                assignment=encode_assignment(ConsumerAssignment(partitions=partitions)),
            )
            for member_id, partitions in plan.items()
        )

    async def _divided_before(self, joined: JoinGroupReply) -> dict[str, int]:
        """As a leader that has rejoined without a new assignment: the partition counts assigned.

        An unknown count is taken as 0, so that it soon assigns the partitions after all.
        """
        divided = {
            topic: 0
            for member in joined.members
            for topic in decode_subscription(member.metadata).topics
        }
        described = await self._router.call_group_coordinator(
            self._group_id,
            DescribeGroupsRequest(group_ids=(self._group_id,)),
            timeout_ms=self._settings.request_timeout_ms,
        )
        for group in described.groups:
            for member in group.members:
                for tp in decode_assignment(member.assignment).partitions:
                    divided[tp.topic] = max(divided.get(tp.topic, 0), tp.partition + 1)
        return divided

    async def _call_sync(
        self, joined: JoinGroupReply, assignments: tuple[MemberAssignment, ...]
    ) -> SyncGroupReply:
        request = SyncGroupRequest(
            group_id=self._group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        return await self._router.call_group_coordinator(
            self._group_id,
            request,
            timeout_ms=self._settings.max_poll_interval_ms + JOIN_MARGIN_MS,
        )

    def _forget_identity_after(self, error: ErrorCode) -> None:
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""
        if not error.retriable:
            self.generation_id = -1

    def _refused(self, error: ErrorCode, detail: str) -> OncelogError:
        failure = exception_for(error, detail and f"group {self._group_id!r}: {detail}")
        if error is ErrorCode.FENCED_INSTANCE_ID:
            self.state = MembershipState.FENCED
            self.failure = failure
        return failure

    # --- heartbeats ---------------------------------------------------------------------------

    async def _beat(self) -> None:
        """The heartbeat task; it ends when the member must join with a new generation."""
        settings = self._settings
        backoff = consumer_backoff(self._settings, self._random)
        wait_s = settings.heartbeat_interval_ms / 1_000
        while True:
            await asyncio.sleep(wait_s)
            if self.poll_gap_ratio > 1:
                await self._leave_after_silence()
                return
            began_s = self._loop.time()
            reply = await self._call_heartbeat()
            wait_s = settings.heartbeat_interval_ms / 1_000
            if reply.error is ErrorCode.NONE:
                self._counters.heartbeats.add(began_s, self._loop.time())
                backoff.reset()
                await self._check_pattern()
                await self._check_partition_counts()
            elif reply.error is ErrorCode.REBALANCE_IN_PROGRESS:
                # Keep sending heartbeats: the session must live until the application polls again.
                self._on_group_error(reply.error)
            elif reply.error.retriable:
                wait_s = min(wait_s, backoff.delay_ms(reply.error) / 1_000)
            else:
                self._on_group_error(reply.error)
                return

    def _stopped_beating(self, task: asyncio.Task[None]) -> None:
        """Heartbeats end when the next join is pending, or when they are stopped.

        Any other end, by a bug or a foreign cancellation, is raised by the next poll.
        """
        if task.cancelled():
            if task is self._heartbeats:
                self.failure = cancelled_by_program("consumer")
                self._on_change()
        elif (bug := task.exception()) is not None:
            self.failure = bug_error(f"the heartbeats in group {self._group_id!r}", bug)
            self._ask_to_join()

    @property
    def poll_gap_ratio(self) -> float:
        """The time without a poll or processing, as a fraction of ``max_poll_interval_ms``.

        0 during a poll or processing.
        """
        now_s = self._loop.time()
        if self.is_polled or now_s < self._processing_until_s:
            return 0.0
        return 1_000 * (now_s - self._last_poll_s) / self._settings.max_poll_interval_ms

    async def _check_partition_counts(self) -> None:
        """As the group's leader, trigger a rebalance when partitions or topics come or go."""
        divided = self._divided
        try:
            known = await self._router.metadata(
                divided, age_max_ms=self._settings.metadata_max_age_ms
            )
        except OncelogError as error:
            _log.info("group %s: %s; checking its topics later", self._group_id, error)
            return
        counts = {topic: len(known[topic].partitions) if topic in known else 0 for topic in divided}
        if counts != divided and self._divided is divided:
            _log.info("group %s: the partitions of its topics changed, rejoining", self._group_id)
            self._divided = {}
            self._ask_to_join()

    async def _call_heartbeat(self) -> HeartbeatReply:
        request = HeartbeatRequest(
            group_id=self._group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id,
            process=self._router.process,
        )
        # A call that waits longer than a third of the session would hide a lost coordinator.
        timeout_ms = min(self._settings.request_timeout_ms, self._settings.session_timeout_ms // 3)
        return await self._router.call_group_coordinator(
            self._group_id, request, timeout_ms=max(1, timeout_ms)
        )

    def _on_group_error(self, error: ErrorCode) -> None:
        """The coordinator reports that this member has lost its place, or is about to."""
        if self.state is MembershipState.STABLE:
            _log.info("group %s: %s, rejoining", self._group_id, error.name)
        if error in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED):
            self._ask_to_join()
            return
        self._forget_identity_after(error)
        if error in _REJOIN:
            self._ask_to_join()
        else:
            self.failure = self._refused(error, "")
            self._on_change()

    def _ask_to_join(self) -> None:
        if self.state is MembershipState.STABLE:
            self.state = MembershipState.JOINING
        self._on_change()

    async def _leave_after_silence(self) -> None:
        """No poll for too long: let other members have the partitions. Source: KIP-62."""
        _log.warning(
            "group %s: no poll for more than max_poll_interval_ms=%d, leaving — process fewer "
            "records per poll or raise it",
            self._group_id,
            self._settings.max_poll_interval_ms,
        )
        if self._settings.group_instance_id is None:
            await self._call_leave()
        self.generation_id = -1
        self._ask_to_join()

    async def _stop_heartbeats(self) -> None:
        task, self._heartbeats = self._heartbeats, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # --- leaving ------------------------------------------------------------------------------

    async def close(self, timeout_ms: float = LEAVE_TIMEOUT_MS) -> None:
        """Stop heartbeats and leave the group; a static member stays until its session ends.

        Waits for the coordinator for ``timeout_ms`` at most; with 0 it is not told.
        """
        await self._stop_heartbeats()
        if self._settings.group_instance_id is None and self.member_id:
            await self._call_leave(timeout_ms)
        self.state = MembershipState.JOINING
        self.generation_id = -1
        self.member_id = ""
        self._assigned = ()

    async def _call_leave(self, timeout_ms: float = LEAVE_TIMEOUT_MS) -> None:
        request = LeaveGroupRequest(
            group_id=self._group_id, members=(LeavingMember(member_id=self.member_id),)
        )
        # One attempt: if it fails, the coordinator notices when the session expires.
        call = self._router.call_group_coordinator(
            self._group_id, request, timeout_ms=max(1, int(timeout_ms))
        )
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(call, timeout_ms / 1_000)
        self.member_id = ""
