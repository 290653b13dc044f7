"""The share groups of a shard: turns of the machine on the shard's log, sessions and waiting calls.

Requests to one group that arrive while its log is written wait, and are then decided together: so
one record of a partition has the acknowledgements of many calls. Turns follow the rules of
``share_groups``.

A call that acquires and finds nothing waits here. Whenever records become available one waiting
call is woken, and wakes the next when it has got some: a thousand idle workers cost no more than
one. What can be read is asked of the leaders, one question at a time, while anybody waits.

A session ends when its member is silent for too long, or when its process ends: on any host with a
broker that is known within a second. If that is wrong, the member joins again.

One file: turns, sessions and waiting calls act on the same groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from msgspec import structs

from oncelog.actors.coordination.cluster_view import ClusterView
from oncelog.actors.coordination.process_watch import ended_members
from oncelog.actors.groups.apply_queue import ApplyQueue
from oncelog.actors.groups.key_reader import KeyReader
from oncelog.actors.interfaces import Clock, DriverWatch, Transport, leader_address
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.process.metrics import (
    QUEUE_BACKLOG,
    QUEUE_OLDEST_UNFINISHED_MS,
    MetricSink,
)
from oncelog.actors.protocol.messages.base import Reply, ReplyT
from oncelog.actors.protocol.messages.group import (
    DeleteGroupReply,
    DeleteGroupRequest,
    GroupDescription,
    GroupMemberDescription,
)
from oncelog.actors.protocol.messages.partition import ListOffsetsRequest
from oncelog.actors.protocol.messages.share import (
    DescribeShareGroupReply,
    DescribeShareGroupRequest,
    ShareAcknowledgeReply,
    ShareAcknowledgeRequest,
    ShareAcquireReply,
    ShareAcquireRequest,
    ShareGroupHeartbeatReply,
    ShareGroupHeartbeatRequest,
    TxnShareAcknowledgeRequest,
)
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.actors.protocol.queue.share_groups import ReadableRange, ShareGroups, ShareTurn
from oncelog.actors.replica.replica_log import AppendOutcome
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    IsolationLevel,
    TopicPartition,
)

WAITING_MAX: Final = 20_000
"""Requests to one group that wait for its turn; one more is ``COORDINATOR_NOT_AVAILABLE``."""

ACQUIRE_WAIT_MAX_MS: Final = 30_000
"""How long a call that acquires may wait for records."""

SESSION_SCAN_MS: Final = 250
"""Interval of looking for sessions that have ended."""

POLL_MIN_MS: Final = 5
"""Interval of asking leaders what can be read, while calls wait; doubled while nothing is new."""
POLL_MAX_MS: Final = 80

METADATA_AGE_MS: Final = 10_000
"""How old the known partitions of a topic may be: new ones are found within this time."""

PROTOCOL_TYPE: Final = "share"

ReplyT_co = TypeVar("ReplyT_co", bound=Reply, covariant=True)


class _GroupRequest(Protocol[ReplyT_co]):
    """A request to one group."""

    @property
    def group_id(self) -> str: ...

    def failed(self, error: ErrorCode, detail: str = "") -> ReplyT_co: ...


@dataclass(slots=True)
class _Waiting:
    """A request that waits for its group's turn; ``failed`` makes the reply of an error."""

    failed: Callable[[ErrorCode], Reply]
    decide: Callable[[ShareTurn], Reply] | None
    answer: asyncio.Future[Any]
    transaction: TxnShareAcknowledgeRequest | None = None
    """Set instead of ``decide`` for one in a transaction."""
    is_join: bool = False

    def reply(self, reply: Reply, error: ErrorCode = ErrorCode.NONE) -> None:
        """Answer it, unless its caller has gone."""
        if not self.answer.done():
            self.answer.set_result(reply if error is ErrorCode.NONE else self.failed(error))


@dataclass(slots=True)
class _Session:
    epoch: int
    process: DriverProcess | None
    deadline_ms: float
    is_ending: bool = False


@dataclass(slots=True)
class _Parked:
    """Calls of one group that found nothing to acquire, the longest waiting first."""

    calls: dict[asyncio.Future[None], tuple[str, ...]] = field(default_factory=dict)
    """Each with the topics it may acquire from."""
    poll: asyncio.Task[None] | None = None


class ShareCoordinator:
    """Serves share groups in one leader epoch; a coordinator that loads again makes a new one.

    ``committed`` waits for an append, and returns the client's error. ``unavailable`` says whether
    this shard may be served. ``is_plain`` says whether a group id is a consumer group's.
    """

    def __init__(
        self,
        *,
        shares: ShareGroups,
        queue: ApplyQueue,
        cluster: ClusterView,
        transport: Transport,
        clock: Clock,
        drivers: DriverWatch,
        session_timeout_ms: int,
        call_timeout_ms: int,
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        committed: Callable[[AppendOutcome], Awaitable[ErrorCode]],
        unavailable: Callable[[str | None], ErrorCode],
        is_plain: Callable[[str], bool],
    ) -> None:
        self._shares = shares
        self._queue = queue
        self._cluster = cluster
        self._transport = transport
        self._clock = clock
        self._drivers = drivers
        self._session_timeout_ms = session_timeout_ms
        self._call_timeout_ms = call_timeout_ms
        self._spawn = spawn
        self._committed = committed
        self._unavailable = unavailable
        self._is_plain = is_plain
        self._keys = KeyReader(
            shares=shares,
            cluster=cluster,
            transport=transport,
            call_timeout_ms=call_timeout_ms,
            spawn=spawn,
        )
        self._lines: dict[str, list[_Waiting]] = {}
        """Groups with a turn under way → the requests that wait for the next one."""
        self._in_turn: dict[str, list[_Waiting]] = {}
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._scan: asyncio.Task[None] | None = None
        self._parked: dict[str, _Parked] = {}
        self._ranges: dict[TopicPartition, ReadableRange] = {}
        """What can be read of the partitions of members' topics."""
        self._refreshes: dict[tuple[str, ...], asyncio.Task[bool]] = {}
        self._first_seen: dict[tuple[str, TopicPartition], tuple[int, float]] = {}
        """The first unfinished offset of each partition, and since when it has been it."""
        self._reported: frozenset[str] = frozenset()
        self._is_closed = False

    # --- begin and end --------------------------------------------------------------------

    def begin(self) -> None:
        """Serve what the log has: all sessions start now, and what markers ended is settled."""
        for group_id in self._shares.group_ids():
            group = self._shares.find(group_id)
            for member_id, member in {} if group is None else group.members.items():
                self._live_on(group_id, member_id, member.epoch, member.process)
            if group is not None and not group.is_settled:
                self.settle((group_id,))

    def close(self, failure: BaseException | None = None) -> None:
        """Answer all calls ``NOT_COORDINATOR``, or raise ``failure`` from them."""
        self._is_closed = True
        for line in (*self._lines.values(), *self._in_turn.values()):
            if failure is not None:
                self._fail(line, failure)
            for waiting in line:
                waiting.reply(Reply(), ErrorCode.NOT_COORDINATOR)
        self._lines.clear()
        self._in_turn.clear()
        self._sessions.clear()
        for parked in self._parked.values():
            for call in parked.calls:
                if not call.done():
                    call.set_result(None)
        self._parked.clear()

    def is_share(self, group_id: str) -> bool:
        """Whether the id is a share group's, or is about to be."""
        on_their_way = (*self._lines.get(group_id, ()), *self._in_turn.get(group_id, ()))
        is_joined = any(one.is_join for one in on_their_way)
        return is_joined or self._shares.find(group_id) is not None

    def settle(self, group_ids: Iterable[str]) -> None:
        """Write the outcome of markers that were applied, soon.

        If that fails this shard is led no longer, and the next coordinator does it.
        """

        def decide(turn: ShareTurn) -> Reply:
            turn.settle()
            return Reply()

        for group_id in group_ids:
            self._enqueue(group_id, _Waiting(_failed, decide, _unheard()))

    # --- requests -------------------------------------------------------------------------

    async def heartbeat(self, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatReply:
        """Join, durably, live on, or leave, durably."""
        group_id, member_id = request.group_id, request.member_id
        if request.member_epoch and not request.is_leaving:
            group = self._shares.find(group_id)
            error = (
                ErrorCode.UNKNOWN_MEMBER_ID
                if group is None
                else group.check_member(member_id, request.member_epoch)
            )
            reply = ShareGroupHeartbeatReply(error=error, member_epoch=request.member_epoch)
        else:
            reply = await self._execute(
                request, lambda turn: self._join(turn, request), is_join=not request.is_leaving
            )
        if reply.error is not ErrorCode.NONE:
            return reply
        if request.is_leaving:
            self._sessions.pop((group_id, member_id), None)
            return reply
        self._live_on(group_id, member_id, reply.member_epoch, request.process)
        return structs.replace(reply, session_timeout_ms=self._session_timeout_ms)

    def _join(
        self, turn: ShareTurn, request: ShareGroupHeartbeatRequest
    ) -> ShareGroupHeartbeatReply:
        if self._is_plain(request.group_id):
            return request.failed(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"{request.group_id!r} is a consumer group: give the queue another group_id",
            )
        return turn.heartbeat(request)

    async def acquire(self, request: ShareAcquireRequest) -> ShareAcquireReply:
        """Acquire, durably; waits for records."""
        group_id = request.group_id
        deadline_ms = loop_ms() + min(max(request.max_wait_ms, 0), ACQUIRE_WAIT_MAX_MS)
        is_refreshed = False
        while True:
            self._live_on(group_id, request.member_id, request.member_epoch)
            # Ahead: what is known already is not held up by a leader that is away.
            reading = self._keys.read(group_id, self._readable(group_id))
            reply = await self._execute(
                request,
                lambda turn: turn.acquire(request, self._ranges, self._keys.known(group_id)),
            )
            if reply.error is not ErrorCode.NONE or reply.acquired:
                return reply
            topics = self._topics(group_id, request.member_id)
            if not is_refreshed:
                is_refreshed = True
                await self._refresh(topics)
                await self._until_read(self._keys.read(group_id, self._readable(group_id)))
            elif loop_ms() >= deadline_ms:
                return reply
            # The turn may have made room, by gaps that it archived: then there are more to read.
            elif reading := reading or self._keys.read(group_id, self._readable(group_id)):
                # Nobody is parked meanwhile, so nobody else asks where other partitions end.
                self._begin_refresh(topics)
                await self._until_read(reading)
            else:
                await self._park(group_id, topics, deadline_ms)
            error = self._unavailable(group_id)
            if error is not ErrorCode.NONE:
                return request.failed(error)

    async def _until_read(self, reading: asyncio.Task[bool] | None) -> None:
        """Wait for keys, or for a while: other partitions may have something meanwhile."""
        if reading is None:
            return
        await asyncio.wait((reading,), timeout=POLL_MAX_MS / 1_000)
        is_read = reading.done() and not reading.cancelled() and reading.exception() is None
        if not is_read or not reading.result():
            await asyncio.sleep(POLL_MAX_MS / 1_000)

    async def acknowledge(self, request: ShareAcknowledgeRequest) -> ShareAcknowledgeReply:
        """Acknowledge, durably."""
        self._live_on(request.group_id, request.member_id, request.member_epoch)
        return await self._execute(request, lambda turn: turn.acknowledge(request))

    async def txn_acknowledge(self, request: TxnShareAcknowledgeRequest) -> ShareAcknowledgeReply:
        """Accept in a transaction, durably: pending until its marker."""
        self._live_on(request.group_id, request.member_id, request.member_epoch)
        return await self._execute(request, None, transaction=request)

    async def describe(self, request: DescribeShareGroupRequest) -> DescribeShareGroupReply:
        """Describe a group, with what can be read now; refused while a leader does not tell it."""
        is_known = await self._refresh(tuple(sorted(self._topics_of(request.group_id))))
        error = self._unavailable(request.group_id)
        if error is not ErrorCode.NONE:
            return request.failed(error)
        if not is_known:
            # Without the end of a partition, a full queue would look empty.
            return request.failed(ErrorCode.NETWORK_EXCEPTION, "a leader does not tell its end")
        self._queue.catch_up()
        return self._shares.describe(request.group_id, self._readable(request.group_id))

    def report_metrics(self, sink: MetricSink) -> None:
        """Report what is not finished, by ends that were asked for at the last report."""
        topics: set[str] = set()
        seen: dict[tuple[str, TopicPartition], tuple[int, float]] = {}
        now_ms, group_ids = loop_ms(), self._shares.group_ids()
        for group_id in group_ids:
            backlog, oldest_ms = 0, 0.0
            for one in self._shares.describe(group_id, self._readable(group_id)).partitions:
                topics.add(one.topic_partition.topic)
                count = one.available_count + one.acquired_count + one.pending_count
                if not count:
                    continue
                backlog += count
                key = (group_id, one.topic_partition)
                former = self._first_seen.get(key)
                is_same = former is not None and former[0] == one.start_offset
                seen[key] = former if former and is_same else (one.start_offset, now_ms)
                oldest_ms = max(oldest_ms, now_ms - seen[key][1])
            sink.set(QUEUE_BACKLOG, backlog, {"group": group_id})
            sink.set(QUEUE_OLDEST_UNFINISHED_MS, oldest_ms, {"group": group_id})
        for group_id in self._reported.difference(group_ids):
            sink.set(QUEUE_BACKLOG, 0, {"group": group_id})
            sink.set(QUEUE_OLDEST_UNFINISHED_MS, 0, {"group": group_id})
        self._first_seen, self._reported = seen, frozenset(group_ids)
        if topics:
            self._spawn(self._refresh(tuple(sorted(topics))))

    def _topics_of(self, group_id: str) -> set[str]:
        """The topics that a group has read, or that its members want to."""
        group = self._shares.find(group_id)
        if group is None:
            return set()
        topics = {tp.topic for tp in group.partitions}
        return topics.union(*(member.topics for member in group.members.values()))

    def _readable(self, group_id: str) -> dict[TopicPartition, ReadableRange]:
        topics = self._topics_of(group_id)
        return {tp: known for tp, known in self._ranges.items() if tp.topic in topics}

    def descriptions(self, group_ids: Collection[str] | None) -> list[GroupDescription]:
        """The named groups that exist, or all, as ``describe_groups`` shows them."""
        found = []
        for group_id in self._shares.group_ids():
            group = self._shares.find(group_id)
            if group is None or (group_ids is not None and group_id not in group_ids):
                continue
            members = tuple(
                GroupMemberDescription(
                    member_id=member_id, group_instance_id=None, client_id="", assignment=b""
                )
                for member_id in sorted(group.members)
            )
            found.append(
                GroupDescription(
                    group_id=group_id,
                    state="Stable" if members else "Empty",
                    protocol_type=PROTOCOL_TYPE,
                    protocol_name="",
                    generation_id=group.next_epoch - 1,
                    members=members,
                )
            )
        return found

    async def delete(self, request: DeleteGroupRequest) -> DeleteGroupReply:
        """Delete a group without members and open transactions, durably."""
        reply = await self._execute(request, lambda turn: DeleteGroupReply(error=turn.delete()))
        if reply.error is ErrorCode.NONE:
            self._keys.forget(request.group_id)
        return reply

    # --- turns ----------------------------------------------------------------------------

    async def _execute(
        self,
        request: _GroupRequest[ReplyT],
        decide: Callable[[ShareTurn], ReplyT] | None,
        *,
        transaction: TxnShareAcknowledgeRequest | None = None,
        is_join: bool = False,
    ) -> ReplyT:
        """Have a request decided in the group's next turn; return once that is durable."""
        answer: asyncio.Future[ReplyT] = asyncio.get_running_loop().create_future()
        if len(self._lines.get(request.group_id, ())) >= WAITING_MAX:
            detail = f"{WAITING_MAX} requests to {request.group_id!r} wait already"
            return request.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, detail)
        waiting = _Waiting(request.failed, decide, answer, transaction, is_join)
        self._enqueue(request.group_id, waiting)
        return await answer

    def _enqueue(self, group_id: str, waiting: _Waiting) -> None:
        if self._is_closed:
            waiting.reply(Reply(), ErrorCode.NOT_COORDINATOR)
            return
        line = self._lines.get(group_id)
        if line is None:
            line = self._lines[group_id] = []
            self._spawn(self._take_turns(group_id, line))
        line.append(waiting)

    async def _take_turns(self, group_id: str, line: list[_Waiting]) -> None:
        try:
            while line and not self._is_closed:
                if not await self._until_markers_are_applied(group_id):
                    continue
                batch = self._in_turn[group_id] = list(line)
                line.clear()
                await self._take_turn(group_id, batch)
                self._in_turn.pop(group_id, None)
        except Exception as failure:
            self._fail((*self._in_turn.pop(group_id, ()), *line), failure)
            raise
        finally:
            if self._lines.get(group_id) is line:
                del self._lines[group_id]

    def _fail(self, line: Iterable[_Waiting], failure: BaseException) -> None:
        for waiting in line:
            if not waiting.answer.done():
                waiting.answer.set_exception(failure)

    async def _until_markers_are_applied(self, group_id: str) -> bool:
        """Whether no marker that may change the group is on its way; if one was, it no longer is.

        A turn may begin only if nothing was waited for.
        """
        outcome = self._queue.marker_of(
            lambda producer_id: self._shares.has_pending(producer_id, group_id)
        )
        if outcome is None:
            return True
        if await self._committed(outcome) is not ErrorCode.NONE:
            # The shard is no longer led: its calls are about to be answered.
            await asyncio.sleep(POLL_MIN_MS / 1_000)
        return False

    async def _take_turn(self, group_id: str, batch: list[_Waiting]) -> None:
        """Decide and append in this turn of the event loop; answer once all is durable."""
        error = self._unavailable(None)
        if error is not ErrorCode.NONE:
            for waiting in batch:
                waiting.reply(Reply(), error)
            return
        now_ms = self._clock.now_ms()
        turn = self._shares.begin(group_id)
        decided = [(one, one.decide(turn)) for one in batch if one.decide is not None]
        records = turn.records()
        written = AppendOutcome(error=ErrorCode.NONE, next_offset=0)
        if records:
            written = self._queue.append(group_id, records, now_ms)
        if written.error is not ErrorCode.NONE:
            # Nothing of it was written: what follows must not rest on it.
            turn = self._shares.begin(group_id)
        in_transactions = [
            (one, *self._append_pending(group_id, turn, one.transaction, now_ms))
            for one in batch
            if one.transaction is not None
        ]
        error = await self._committed(written) if records else ErrorCode.NONE
        for waiting, reply in decided:
            waiting.reply(reply, error)
        for waiting, reply, outcome in in_transactions:
            waiting.reply(
                reply, ErrorCode.NONE if outcome is None else await self._committed(outcome)
            )
        if records:
            # Something may be available, or there is room for more. Who acquired wakes the next.
            self._wake(group_id)

    def _append_pending(
        self, group_id: str, turn: ShareTurn, request: TxnShareAcknowledgeRequest, now_ms: int
    ) -> tuple[ShareAcknowledgeReply, AppendOutcome | None]:
        reply, records = turn.txn_acknowledge(request)
        if not records:
            return reply, None
        outcome = self._queue.append(group_id, records, now_ms, request)
        if outcome.error is ErrorCode.NONE:
            turn.accepted(request)
        return reply, outcome

    # --- sessions -------------------------------------------------------------------------

    def _live_on(
        self, group_id: str, member_id: str, epoch: int, process: DriverProcess | None = None
    ) -> None:
        """Restart a session. A new epoch begins one, once its join is durable."""
        session = self._sessions.get((group_id, member_id))
        group = self._shares.find(group_id)
        is_member = group is not None and group.check_member(member_id, epoch) is ErrorCode.NONE
        if not is_member:
            return
        if session is None or session.epoch != epoch:
            session = self._sessions[group_id, member_id] = _Session(epoch, process, 0)
            if self._scan is None:
                self._scan = self._spawn(self._end_sessions())
        session.deadline_ms = loop_ms() + self._session_timeout_ms

    async def _end_sessions(self) -> None:
        """The task that looks for them, while there are any."""
        while self._sessions:
            await asyncio.sleep(SESSION_SCAN_MS / 1_000)
            await self.end_sessions()
        self._scan = None

    async def end_sessions(self) -> None:
        """Remove the members that were silent for too long, or whose process is gone."""
        processes = [one.process for one in self._sessions.values() if one.process is not None]
        ended = await ended_members(self._drivers, processes)
        now_ms = loop_ms()
        # As of now: there are none any more if this shard is not led here any more.
        for (group_id, member_id), session in list(self._sessions.items()):
            is_over = now_ms >= session.deadline_ms or session.process in ended
            if is_over and not session.is_ending:
                session.is_ending = True
                self._spawn(self._end_session(group_id, member_id, session))

    async def _end_session(self, group_id: str, member_id: str, session: _Session) -> None:
        def decide(turn: ShareTurn) -> Reply:
            turn.remove(member_id, session.epoch)
            return Reply()

        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._enqueue(group_id, _Waiting(_failed, decide, answer))
        if (await answer).error is not ErrorCode.NONE:
            session.is_ending = False
        elif self._sessions.get((group_id, member_id)) is session:
            del self._sessions[group_id, member_id]

    # --- waiting calls --------------------------------------------------------------------

    def _topics(self, group_id: str, member_id: str) -> tuple[str, ...]:
        group = self._shares.find(group_id)
        member = None if group is None else group.members.get(member_id)
        return () if member is None else member.topics

    async def _park(self, group_id: str, topics: tuple[str, ...], deadline_ms: float) -> None:
        """Wait until something may be available, or the time is up."""
        parked = self._parked.setdefault(group_id, _Parked())
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        parked.calls[call] = topics
        if parked.poll is None:
            parked.poll = self._spawn(self._poll(group_id, parked))
        try:
            await asyncio.wait((call,), timeout=max(deadline_ms - loop_ms(), 0) / 1_000)
        finally:
            parked.calls.pop(call, None)

    def _wake(self, group_id: str) -> None:
        """Wake the call that waits longest, for each set of topics that calls wait for."""
        parked = self._parked.get(group_id)
        if parked is None:
            return
        woken: set[tuple[str, ...]] = set()
        for call, topics in parked.calls.items():
            if topics not in woken and not call.done():
                woken.add(topics)
                call.set_result(None)

    async def _poll(self, group_id: str, parked: _Parked) -> None:
        """While calls wait, ask what can be read, and wake them when there is more."""
        delay_ms = POLL_MIN_MS
        while parked.calls and self._parked.get(group_id) is parked:
            await asyncio.sleep(delay_ms / 1_000)
            topics = tuple(sorted({name for names in parked.calls.values() for name in names}))
            before = self._ends(topics)
            await self._refresh(topics)
            is_new = self._ends(topics) != before
            delay_ms = POLL_MIN_MS if is_new else min(2 * delay_ms, POLL_MAX_MS)
            if is_new:
                self._wake(group_id)
        parked.poll = None
        if self._parked.get(group_id) is parked and not parked.calls:
            del self._parked[group_id]

    def _ends(self, topics: tuple[str, ...]) -> dict[TopicPartition, ReadableRange]:
        return {tp: known for tp, known in self._ranges.items() if tp.topic in topics}

    # --- what can be read -----------------------------------------------------------------

    async def _refresh(self, topics: tuple[str, ...]) -> bool:
        """Ask the leaders of ``topics`` what can be read; callers share one question.

        Returns whether each of them told it.
        """
        if not topics:
            return True
        task = self._begin_refresh(topics)
        await asyncio.wait((task,))
        return not task.cancelled() and task.exception() is None and task.result()

    def _begin_refresh(self, topics: tuple[str, ...]) -> asyncio.Task[bool]:
        task = self._refreshes.get(topics)
        if task is None:
            task = self._refreshes[topics] = self._spawn(self._ask(topics))
            task.add_done_callback(lambda _: self._refreshes.pop(topics, None))
        return task

    async def _ask(self, topics: tuple[str, ...]) -> bool:
        as_of_ms = int(loop_ms()) - METADATA_AGE_MS
        error, known = await self._cluster.topics(topics, as_of_ms=as_of_ms)
        if error is ErrorCode.NONE:
            for tp in [tp for tp in self._ranges if tp.topic in topics and tp.topic not in known]:
                del self._ranges[tp]
        told = await asyncio.gather(
            *(
                self._ask_leader(
                    TopicPartition(name, partition.partition),
                    topic.topic_id,
                    leader_address(topic, partition),
                )
                for name, topic in known.items()
                for partition in topic.partitions
            )
        )
        return error is ErrorCode.NONE and all(told)

    async def _ask_leader(self, tp: TopicPartition, topic_id: str, leader: str | None) -> bool:
        known = self._ranges.get(tp)
        start_offset = known.start_offset if known is not None else None
        if known is not None and known.topic_id != topic_id:
            start_offset = None
        if leader is None:
            self._cluster.invalidate(tp.topic)
            return False
        if start_offset is None:
            start_offset = await self._offset(tp, leader, EARLIEST_TIMESTAMP)
        end_offset = await self._offset(tp, leader, LATEST_TIMESTAMP)
        if start_offset is None or end_offset is None:
            return False
        self._ranges[tp] = ReadableRange(topic_id, start_offset, end_offset)
        return True

    async def _offset(self, tp: TopicPartition, leader: str, timestamp_ms: int) -> int | None:
        """An offset as its leader tells it; None if it does not."""
        request = ListOffsetsRequest(
            topic_partition=tp,
            timestamp_ms=timestamp_ms,
            isolation_level=IsolationLevel.READ_COMMITTED,
        )
        reply = await self._transport.call(leader, request, timeout_ms=self._call_timeout_ms)
        if reply.error is not ErrorCode.NONE:
            self._cluster.invalidate(tp.topic)
            return None
        return reply.offset


def _failed(error: ErrorCode) -> Reply:
    return Reply(error=error)


def _unheard() -> asyncio.Future[Reply]:
    """An answer that nobody waits for."""
    return asyncio.get_running_loop().create_future()
