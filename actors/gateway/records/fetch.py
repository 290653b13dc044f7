"""Fetch: each partition's leader is asked by itself, and the answer goes out once there is enough.

A *poll* is what a connection has asked of one partition at one offset. Its leader waits for records
and answers by itself, so a poll may outlive the request that began it:

==========================  ========================================================================
event                       what becomes of the poll
==========================  ========================================================================
request, same offset        it is that request's; nothing is asked again
request, another offset     it is dropped, and another one is begun
reply with records          for the request that waits, or kept for the next one
reply with an error         for the request that waits; forgotten if none does
reply without records       its bounds are remembered; asked again while a request waits
answered                    it is idle
records did not fit         kept for the next request
==========================  ========================================================================

So one slow leader holds nobody up: the answer has what there is by then, and of each other
partition the bounds that are known. And an idle partition costs little: a poll that found nothing
waits at its leader for longer than its client does, up to ``IDLE_WAIT_MAX_MS``.

``min_bytes`` is for all partitions together. Each of n leaders waits for its nth part of what is
missing when it is asked: if none has that, all of them together have not enough. One that has it is
asked for more if that is not enough. Then the others' parts may be enough sooner than is noticed
here, but never later than ``max_wait_ms``.

There are no fetch sessions: a client that asks for one hears session 0, and names all partitions
each time. All of them are in the answer, as clients insist.

Bytes are never copied: the records of an answer are those of the leader's reply. A leader of this
broker does not send many records: it says in which file they are, and they are read here. That
waits for no disk: what is not in memory the leader is asked for again, and then sends.

One file: the states of a poll, and the requests that wait for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import UNSET, structs

from oncelog.actors.gateway.calls import Call, Client
from oncelog.actors.gateway.errors import of_leader
from oncelog.actors.gateway.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from oncelog.actors.gateway.records.producer_ids import Spawn
from oncelog.actors.process.background import resolve_future
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages import partition as leader_messages
from oncelog.actors.protocol.messages.partition import NO_BROKER, FetchReply
from oncelog.storage.disk.file_system import CAN_READ_CACHED, read_cached
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_OFFSET, FilePart, IsolationLevel, TopicPartition
from oncelog.storage.segments.frames import holds_from

if TYPE_CHECKING:
    from oncelog.actors.gateway.records.handlers import Found, Leaders, Place

_logger = logging.getLogger(__name__)

ANSWER_MAX_BYTES: Final = 57_671_680
"""Records of one answer, but for a first batch that is larger. Kafka's ``fetch.max.bytes``."""

PARTITIONS_MAX: Final = 20_000
"""Partitions that one request may name, and polls of one connection."""

WAIT_MAX_MS: Final = 60_000
"""How long a request waits for records, though its client would wait longer."""

IDLE_WAIT_MAX_MS: Final = 5_000
"""How long a poll that has found nothing waits at its leader, though its client asks sooner."""

GRACE_MS: Final = 100
"""For how long after a request's time an answer is waited for that its leader has just given."""

LEADER_TIMEOUT_MS: Final = 10_000
"""How long a leader may take beyond the time it was told to wait."""

WAITING_PER_ACTOR_MAX: Final = 500
"""Polls that wait at one actor; beyond that a leader answers at once with what it has.

All calls of this gateway to an actor share a connection, on which few more may be in progress.
"""

LEADER_WAIT_MAX_MS: Final = 10_000
"""How long a leader is told to wait at a time, for a client that would wait longer."""

KEPT_MS: Final = 10_000
"""For how long records are kept for a client's next request."""

KEPT_CLIENT_MAX_BYTES: Final = 16 * 1_048_576
"""Records that are kept for one connection; what comes beyond them is dropped, and read again."""

KEPT_MAX_BYTES: Final = 128 * 1_048_576
"""The same for all connections; beyond that what was kept first is dropped."""

NAMED_AGAIN_MS: Final = 60_000
"""How long a client that was sent to a follower, and asks here all the same, is not sent again."""

FOLLOWER_AGAIN_MS: Final = 10_000
"""How long the leader is asked in place of a follower that refused."""

FILE_PART_MAX_MS: Final = 500
"""How long a leader's word holds in which file records are: a later file may take its place."""

FILES_AGAIN_MS: Final = 100
"""How long a leader sends its records after some of them could not be read here.

Most of what is on the disk only costs no second question then.
"""

FETCH_SESSION_ID_NOT_FOUND: Final = 70
INVALID_FETCH_SESSION_EPOCH: Final = 71

_TOPIC_ID_VERSION: Final = 13

_REMEMBERED: Final = "fetch"
"""The name of what a client's connection remembers."""

_KNOWN_ERRORS: Final = frozenset(
    {
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""The errors that a consumer expects here: of any other Java's throws an exception."""

_UNKNOWN: Final = (NO_OFFSET, NO_OFFSET, NO_OFFSET)
"""The bounds of a partition of which nothing is known yet."""


class _Key(NamedTuple):
    """What must be the same if a poll is to answer a request."""

    fetch_offset: int
    leader_epoch: int
    level: IsolationLevel
    topic_id: str
    rack: str
    """The rack that the leader is told: it may name a follower there."""
    follower: str | None
    """The follower that is asked in place of the leader."""
    rules_version: int
    """That of the rules by which the client may read."""


class _Poll:
    """What a connection has asked of a partition at one offset, and what came of it."""

    __slots__ = (
        "bounds",
        "ends_ms",
        "is_asked",
        "key",
        "max_bytes",
        "owner",
        "place",
        "reply",
        "request",
        "tp",
        "waits_ms",
    )

    def __init__(self, owner: _Connection, tp: TopicPartition, place: Found, key: _Key) -> None:
        self.owner = owner
        self.tp = tp
        self.place = place
        self.key = key
        self.max_bytes = 0
        self.reply: FetchReply | None = None
        """Records, an error or the name of a follower: what has not been answered yet."""
        self.bounds = _UNKNOWN
        """The newest high watermark, last stable offset and log start."""
        self.is_asked = False
        self.ends_ms = 0
        """When its leader ends its wait."""
        self.waits_ms = 0
        """For how long its leader was told to wait last."""
        self.request: _Waiting | None = None
        """The request in progress that it is for."""

    @property
    def size_bytes(self) -> int:
        """The bytes of the records that are ready."""
        return 0 if self.reply is None else len(self.reply.records)


class _Connection:
    """What one client's connection has asked."""

    __slots__ = ("kept_bytes", "last", "named_ms", "polls")

    def __init__(self) -> None:
        self.polls: dict[TopicPartition, _Poll] = {}
        self.kept_bytes = 0
        self.last: TopicPartition | None = None
        """The partition whose records were the last in an answer."""
        self.named_ms: dict[TopicPartition, int] = {}
        """When a follower was last named; bounded as the polls are."""


class _Waiting:
    """A request in progress: it waits for enough bytes, for anything else to tell, or its end."""

    __slots__ = (
        "_timer",
        "_woken",
        "call",
        "ends_ms",
        "is_due",
        "late",
        "min_bytes",
        "polls",
        "ready_bytes",
    )

    def __init__(self, call: Call, request: FetchRequest) -> None:
        self.call = call
        # For nothing nobody waits.
        wait_ms = min(max(request.max_wait_ms, 0), WAIT_MAX_MS) if request.min_bytes > 0 else 0
        self.ends_ms = loop_ms() + wait_ms
        self.min_bytes = max(request.min_bytes, 1)
        self.polls: list[_Poll] = []
        self.ready_bytes = 0
        self.is_due = False
        """There is more to tell than that there are some records."""
        self.late: set[_Poll] | None = None
        """Once the time is over: the polls whose leaders have just ended their wait."""
        self._woken: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_complete(self) -> bool:
        """Whether to answer now."""
        return self.is_due or self.ready_bytes >= self.min_bytes

    @property
    def is_open(self) -> bool:
        """Whether a leader may still wait for it."""
        return not self.is_complete and self.late is None and loop_ms() < self.ends_ms

    def join(self, poll: _Poll) -> None:
        """Wait for this poll too, in place of an earlier request."""
        poll.request = self
        self.polls.append(poll)
        if poll.reply is not None:
            self._take(poll, poll.reply)

    def replied(self, poll: _Poll, before_bytes: int) -> None:
        """The leader has answered a poll, which had ``before_bytes`` of records before."""
        self.ready_bytes -= before_bytes
        if poll.reply is not None:
            self._take(poll, poll.reply)
        if self.late is not None:
            self.late.discard(poll)
        if self._woken is not None and (self.is_complete or self.late == set()):
            resolve_future(self._woken, None)

    def _take(self, poll: _Poll, reply: FetchReply) -> None:
        """An error is told at once, and so is what fills its share: no more could come."""
        size_bytes = len(reply.records)
        self.ready_bytes += size_bytes
        if 2 * size_bytes >= poll.max_bytes or not size_bytes:
            self.is_due = True

    async def wait(self) -> None:
        """Return once the request is complete, or its time is over."""
        if self.is_complete or not self.polls:
            return
        loop = asyncio.get_running_loop()
        self._woken = loop.create_future()
        self._timer = loop.call_at(self.ends_ms / 1_000, self._end)
        try:
            await self._woken
        finally:
            self._timer.cancel()

    def _end(self) -> None:
        """The time is over: wait a little for leaders whose time is over too, but no longer."""
        loop = asyncio.get_running_loop()
        assert self._woken is not None
        begun_ms = loop_ms() - GRACE_MS
        self.late = {
            poll
            for poll in self.polls
            if poll.is_asked and poll.request is self and begun_ms < poll.ends_ms <= self.ends_ms
        }
        if self.late:
            self._timer = loop.call_later(GRACE_MS / 1_000, resolve_future, self._woken, None)
        else:
            resolve_future(self._woken, None)


class Fetches:
    """Answers Fetch; has what is kept for clients."""

    def __init__(self, leaders: Leaders, spawn: Spawn, *, broker_id: int) -> None:
        self._leaders = leaders
        self._spawn = spawn
        self._broker_id = broker_id
        self._waiting: Counter[str] = Counter()
        """Polls that wait, by the actor that holds the replica."""
        self._refused_until_ms: dict[TopicPartition, int] = {}
        """Until when not to ask this broker's follower."""
        self._unread_until_ms: dict[TopicPartition, int] = {}
        """Until when leaders send records, since they could not be read here."""
        self._kept: dict[_Poll, int] = {}
        """Polls with records that no request waits for, and until when; the oldest come first."""
        self._kept_bytes = 0
        self._sweep: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Drop what is kept."""
        for poll in list(self._kept):
            self._drop(poll)
        if self._sweep is not None:
            self._sweep.cancel()

    async def handle(self, call: Call, request: FetchRequest) -> FetchResponse:
        """Begin what is not on its way yet, wait, and answer."""
        if request.session_id:
            return FetchResponse(error_code=FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch > 0:
            return FetchResponse(error_code=INVALID_FETCH_SESSION_EPOCH)
        connection = _connection(call.client)
        wanted = await self._wanted(call, request)
        # From here to the wait nothing else runs.
        waiting = _Waiting(call, request)
        polls = self._join(connection, waiting, request, wanted)
        max_bytes = min(max(request.max_bytes, 0), ANSWER_MAX_BYTES)
        self._ask_for(waiting, wanted, polls, max_bytes)
        try:
            await waiting.wait()
            return self._answer(connection, waiting, request, polls, max_bytes)
        finally:
            self._leave(waiting)

    # --- polls ----------------------------------------------------------------------------

    async def _wanted(self, call: Call, request: FetchRequest) -> list[_Wanted]:
        """What is asked for, in order; of each topic with its name, and where its leaders are."""
        names = None
        if call.version >= _TOPIC_ID_VERSION:
            names = await self._leaders.names_of({topic.topic_id for topic in request.topics})
        named = [
            (topic, topic.topic if names is None else names.get(topic.topic_id))
            for topic in request.topics
        ]
        asked = [
            (name, one.partition)
            for topic, name in named
            if name is not None
            for one in topic.partitions
        ]
        places = iter(await self._leaders.find_all(asked[:PARTITIONS_MAX]))
        wanted = []
        for topic, name in named:
            for one in topic.partitions:
                place: Found = ErrorCode.UNKNOWN_TOPIC_ID
                if name is not None:
                    place = next(places, ErrorCode.UNKNOWN_SERVER_ERROR)
                if names is not None and not isinstance(place, ErrorCode):
                    # Another topic may have the name by now.
                    is_same = place.topic.topic_id == topic.topic_id.hex()
                    place = place if is_same else ErrorCode.UNKNOWN_TOPIC_ID
                wanted.append(_Wanted(one, name or "", place))
        return wanted

    def _join(
        self,
        connection: _Connection,
        waiting: _Waiting,
        request: FetchRequest,
        wanted: Sequence[_Wanted],
    ) -> list[_Poll | ErrorCode]:
        """The poll of each partition: one that is on its way, or a new one; or an error."""
        level = (
            IsolationLevel.READ_COMMITTED
            if request.isolation_level
            else IsolationLevel.READ_UNCOMMITTED
        )
        rules_version = waiting.call.cluster.door.version
        polls: list[_Poll | ErrorCode] = []
        for partition, name, place in wanted:
            if isinstance(place, ErrorCode):
                if place in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_SERVER_ERROR):
                    polls.append(place)
                    continue
                tp = TopicPartition(name, partition.partition)
                topic_id, rack, follower = "", "", None
            else:
                tp, topic_id = place.tp, place.topic.topic_id
                rack, follower = self._nearby(connection, place, request.rack_id)
            key = _Key(
                partition.fetch_offset,
                partition.current_leader_epoch,
                level,
                topic_id,
                rack,
                follower,
                rules_version,
            )
            poll = self._poll(connection, tp, place, key)
            waiting.join(poll)
            polls.append(poll)
        return polls

    def _nearby(self, connection: _Connection, place: Place, rack: str) -> tuple[str, str | None]:
        """The rack that the leader is told, and this broker's follower if that is asked instead.

        A client with a rack is sent to the node of a follower there, and asks that node. If it
        asks here all the same, it cannot reach that node, or has had an error there.
        """
        if not rack:
            return "", None
        now_ms, tp = loop_ms(), place.tp
        if self._refused_until_ms.get(tp, now_ms) > now_ms:
            return "", None
        follower = place.follower(self._broker_id)
        if follower is not None:
            return "", follower
        named_ms = connection.named_ms.get(tp)
        is_told = named_ms is None or now_ms - named_ms >= NAMED_AGAIN_MS
        return (rack if is_told else ""), None

    def _poll(self, connection: _Connection, tp: TopicPartition, place: Found, key: _Key) -> _Poll:
        """The poll of a connection at an offset."""
        found = connection.polls.get(tp)
        if found is not None and found.key == key:
            self._release(found)
            found.place = place
            return found
        poll = _Poll(connection, tp, place, key)
        if found is not None:
            poll.bounds = found.bounds
            self._drop(found)
        elif len(connection.polls) >= PARTITIONS_MAX:
            self._forget_oldest(connection)
        connection.polls[tp] = poll
        return poll

    def _forget_oldest(self, connection: _Connection) -> None:
        """Make room for a poll, and for the name of its follower."""
        oldest = next(iter(connection.polls.values()))
        self._drop(oldest)
        connection.named_ms.pop(oldest.tp, None)
        del connection.polls[oldest.tp]

    # --- asking ---------------------------------------------------------------------------

    def _ask_for(
        self,
        waiting: _Waiting,
        wanted: Sequence[_Wanted],
        polls: Sequence[_Poll | ErrorCode],
        max_bytes: int,
    ) -> None:
        """Ask the leaders of polls that are neither asked nor ready; each gets a part of the room.

        Of what is asked at the same time all fits into one answer, but for first batches that are
        larger: so little is read that must wait for the next one, and no partition starves.
        """
        new = [
            (poll, one.partition.partition_max_bytes)
            for poll, one in zip(polls, wanted, strict=True)
            if not isinstance(poll, ErrorCode) and poll.reply is None and not poll.is_asked
        ]
        for poll, partition_max_bytes in new:
            if not poll.is_asked:
                poll.max_bytes = max(min(partition_max_bytes, max_bytes // len(new)), 1)
                self._ask(waiting, poll)

    def _ask(self, waiting: _Waiting, poll: _Poll, *, is_again: bool = False) -> None:
        """Ask a poll's leader, in a task of its own."""
        missing_bytes = max(waiting.min_bytes - waiting.ready_bytes, 1)
        min_bytes = poll.size_bytes + -(-missing_bytes // len(waiting.polls))
        min_bytes = max(min(min_bytes, poll.max_bytes // 2), 1)
        now_ms = loop_ms()
        waits_ms = max(waiting.ends_ms - now_ms, 0)
        if waits_ms and min_bytes == 1:
            # Whatever comes is told at once. It need not be asked for again so soon.
            waits_ms = max(waits_ms, min(2 * poll.waits_ms, IDLE_WAIT_MAX_MS))
        waits_ms = min(waits_ms, LEADER_WAIT_MAX_MS)
        holder = _holder(poll)
        if self._waiting[holder] >= WAITING_PER_ACTOR_MAX:
            waits_ms = 0
        if is_again and not waits_ms:
            # It would be answered as just now.
            return
        key = poll.key
        asked = leader_messages.FetchRequest(
            topic_partition=poll.tp,
            fetch_offset=key.fetch_offset,
            isolation_level=key.level,
            max_wait_ms=waits_ms,
            min_bytes=min_bytes,
            max_bytes=poll.max_bytes,
            leader_epoch=key.leader_epoch,
            topic_id=key.topic_id if waiting.call.version >= _TOPIC_ID_VERSION else "",
            client_rack=key.rack,
            from_follower=key.follower is not None,
            reads_files_of=self._reads_files_of(poll.tp, now_ms),
        )
        poll.is_asked = True
        poll.waits_ms = waits_ms
        poll.ends_ms = now_ms + waits_ms
        self._waiting[holder] += waits_ms > 0
        self._spawn(self._question(waiting.call, poll, asked, holder))

    async def _question(
        self, call: Call, poll: _Poll, asked: leader_messages.FetchRequest, holder: str
    ) -> None:
        """Ask for a poll, and give back its place at the actor."""
        try:
            reply = await self._reply(call, poll, asked)
            part = reply.file_part
            if isinstance(part, FilePart):
                read = _read(reply, part, asked.fetch_offset)
                reply = read or await self._unread(call, poll, asked)
        finally:
            self._waiting[holder] -= asked.max_wait_ms > 0
            if not self._waiting[holder]:
                del self._waiting[holder]
        self._replied(poll, reply)

    async def _reply(
        self, call: Call, poll: _Poll, asked: leader_messages.FetchRequest
    ) -> FetchReply:
        """The follower's reply, or else the leader's: no error of a follower is a client's."""
        timeout_ms = asked.max_wait_ms + LEADER_TIMEOUT_MS
        follower = poll.key.follower
        if follower is not None:
            reply = await call.ask(follower, asked, timeout_ms=timeout_ms)
            if reply.error in (ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
                return reply
            self._remember(self._refused_until_ms, poll.tp, FOLLOWER_AGAIN_MS)
            asked = structs.replace(asked, from_follower=False)
        return await self._leaders.ask(call, poll.place, asked, timeout_ms=timeout_ms)

    @staticmethod
    def _remember(until_ms: dict[TopicPartition, int], tp: TopicPartition, for_ms: int) -> None:
        if len(until_ms) >= PARTITIONS_MAX:
            until_ms.clear()
        until_ms[tp] = loop_ms() + for_ms

    def _reads_files_of(self, tp: TopicPartition, now_ms: int) -> int:
        """This broker, unless records of the partition could not be read a moment ago."""
        is_read = CAN_READ_CACHED and self._unread_until_ms.get(tp, now_ms) <= now_ms
        return self._broker_id if is_read else NO_BROKER

    async def _unread(
        self, call: Call, poll: _Poll, asked: leader_messages.FetchRequest
    ) -> FetchReply:
        """The reply with the records, which cannot be read here."""
        self._remember(self._unread_until_ms, poll.tp, FILES_AGAIN_MS)
        return await self._reply(call, poll, structs.replace(asked, reads_files_of=NO_BROKER))

    def _replied(self, poll: _Poll, reply: FetchReply) -> None:
        """A leader has answered."""
        poll.is_asked = False
        self._release(poll)
        request, before_bytes = poll.request, poll.size_bytes
        is_answer = reply.error is ErrorCode.NONE
        if is_answer and reply.high_watermark != NO_OFFSET:
            poll.bounds = (reply.high_watermark, reply.last_stable_offset, reply.log_start_offset)
        # Who does not answer in time may do so next time.
        is_told = not is_answer and reply.error is not ErrorCode.REQUEST_TIMED_OUT
        if len(reply.records) or (
            not before_bytes and (is_told or reply.preferred_read_replica != NO_BROKER)
        ):
            poll.reply = reply
        if request is None:
            self._keep(poll)
            return
        request.replied(poll, before_bytes)
        has_waited = loop_ms() >= poll.ends_ms - 1
        if request.is_open and (has_waited or poll.size_bytes > before_bytes):
            self._ask(request, poll, is_again=True)

    # --- answering ------------------------------------------------------------------------

    def _answer(
        self,
        connection: _Connection,
        waiting: _Waiting,
        request: FetchRequest,
        polls: Sequence[_Poll | ErrorCode],
        max_bytes: int,
    ) -> FetchResponse:
        """What is there now; what does not fit stays with its poll."""
        told = self._told(connection, waiting, max_bytes)
        throttle_ms = 0
        responses = []
        found = iter(polls)
        for topic in request.topics:
            partitions = []
            for partition in topic.partitions:
                poll = next(found)
                if isinstance(poll, ErrorCode):
                    partitions.append(_unknown(partition, poll))
                    continue
                reply = told.get(poll)
                partitions.append(_data(poll, reply))
                if reply is not None and reply.throttle_ms is not UNSET:
                    throttle_ms = max(throttle_ms, reply.throttle_ms)
            responses.append(FetchableTopicResponse(topic.topic, topic.topic_id, partitions))
        return FetchResponse(throttle_ms, responses=responses)

    def _told(
        self, connection: _Connection, waiting: _Waiting, max_bytes: int
    ) -> dict[_Poll, FetchReply]:
        """The replies to answer with, which their polls no longer have."""
        ready = waiting.polls
        if waiting.ready_bytes > max_bytes:
            # Begin behind the one that was last: so each has its turn.
            tps = [one.tp for one in ready]
            first = tps.index(connection.last) + 1 if connection.last in tps else 0
            ready = ready[first:] + ready[:first]
        told: dict[_Poll, FetchReply] = {}
        taken_bytes = 0
        for poll in ready:
            reply = poll.reply
            size_bytes = poll.size_bytes
            if reply is None or poll.request is not waiting:
                continue
            if taken_bytes and taken_bytes + size_bytes > max_bytes:
                continue
            taken_bytes += size_bytes
            told[poll], poll.reply = reply, None
            if size_bytes:
                connection.last = poll.tp
            elif reply.preferred_read_replica != NO_BROKER:
                connection.named_ms[poll.tp] = loop_ms()
        return told

    def _leave(self, waiting: _Waiting) -> None:
        """The request ends; its polls go on for the next one."""
        for poll in waiting.polls:
            if poll.request is waiting:
                poll.request = None
                self._keep(poll)

    # --- what is kept ---------------------------------------------------------------------

    def _keep(self, poll: _Poll) -> None:
        """Keep a poll's records for the next request; an error would be old by then."""
        size_bytes = poll.size_bytes
        if not size_bytes:
            poll.reply = None
            return
        owner = poll.owner
        if poll.owner.polls.get(poll.tp) is not poll or (
            # One may have any size: else who always comes too late would never be heard.
            owner.kept_bytes and owner.kept_bytes + size_bytes > KEPT_CLIENT_MAX_BYTES
        ):
            poll.reply = None
            return
        self._kept[poll] = loop_ms() + KEPT_MS
        self._kept_bytes += size_bytes
        owner.kept_bytes += size_bytes
        while self._kept_bytes > KEPT_MAX_BYTES and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(KEPT_MS / 1_000, self._drop_old)

    def _release(self, poll: _Poll) -> None:
        """A request takes over the poll."""
        if self._kept.pop(poll, None) is not None:
            self._kept_bytes -= poll.size_bytes
            poll.owner.kept_bytes -= poll.size_bytes

    def _drop(self, poll: _Poll) -> None:
        """Forget what the poll has; if its client asks for it, its leader is asked again."""
        self._release(poll)
        if poll.request is None:
            poll.reply = None

    def _drop_old(self) -> None:
        """Drop what was kept for long, also that of connections that are gone."""
        now_ms = loop_ms()
        self._sweep = None
        for poll, until_ms in list(self._kept.items()):
            if until_ms > now_ms:
                delay_s = (until_ms - now_ms) / 1_000
                self._sweep = asyncio.get_running_loop().call_later(delay_s, self._drop_old)
                break
            self._drop(poll)


class _Wanted(NamedTuple):
    """A partition that a client asks for, and where its leader is; or why nobody is asked."""

    partition: FetchPartition
    name: str
    place: Found


def _connection(client: Client) -> _Connection:
    found = client.remembered.get(_REMEMBERED)
    if not isinstance(found, _Connection):
        found = client.remembered[_REMEMBERED] = _Connection()
    return found


def _holder(poll: _Poll) -> str:
    """The actor that a poll is answered by: a host of several replicas, or a replica's own."""
    actor = poll.key.follower
    if actor is None and not isinstance(poll.place, ErrorCode):
        actor = poll.place.actor
    return (actor or "").partition("/")[0]


def _data(poll: _Poll, reply: FetchReply | None) -> PartitionData:
    """The answer for a partition; without a reply that there is nothing new."""
    bounds = poll.bounds
    is_committed = poll.key.level is IsolationLevel.READ_COMMITTED
    aborted: list[AbortedTransaction] | None = [] if is_committed else None
    if reply is None:
        return PartitionData(
            poll.tp.partition, 0, *bounds, aborted_transactions=aborted, records=b""
        )
    error = 0 if reply.error is ErrorCode.NONE else _code(reply.error)
    if reply.aborted_transactions:
        aborted = [
            AbortedTransaction(one.producer_id, one.first_offset)
            for one in reply.aborted_transactions
        ]
    return PartitionData(
        poll.tp.partition,
        error,
        reply.high_watermark,
        reply.last_stable_offset,
        reply.log_start_offset,
        None,
        None,
        None,
        aborted,
        reply.preferred_read_replica,
        reply.records,
    )


def _read(reply: FetchReply, part: FilePart, offset: int) -> FetchReply | None:
    """The reply with the records that its leader has left in their file; ``None``: not to be had.

    The file may have been replaced since, or its log cut: what is read must fit to what was asked.
    """
    identity, told_ms = (part.device, part.inode), reply.told_ms
    try:
        records = read_cached(part.path, identity, part.position, part.size_bytes)
    except OSError as error:
        _logger.debug("%s is not read here: %s", part.path, error)
        return None
    is_new = told_ms is not UNSET and abs(loop_ms() - told_ms) <= FILE_PART_MAX_MS
    if records is None or not is_new or not holds_from(records, offset, part.next_offset):
        return None
    return structs.replace(reply, records=records, file_part=UNSET, told_ms=UNSET)


def _code(error: ErrorCode) -> int:
    """The error as a consumer expects it."""
    code = of_leader(error)
    if code in _KNOWN_ERRORS:
        return code
    known = ErrorCode.NOT_LEADER_OR_FOLLOWER if error.retriable else ErrorCode.UNKNOWN_SERVER_ERROR
    return int(known)


def _unknown(partition: FetchPartition, code: ErrorCode) -> PartitionData:
    return PartitionData(
        partition.partition, int(code), NO_OFFSET, aborted_transactions=None, records=b""
    )
