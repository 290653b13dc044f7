"""A host: one process that holds several replicas of a broker.

Each replica starts, fails, restarts and ends by itself; they share the event loop, the disk threads
and the connections. The controller has the list of replicas. The host asks for it when it starts
and whenever it is told to, so a late or lost call does no harm.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import structs

from oncelog.actors.config import HostConfig
from oncelog.actors.interfaces import CONTROLLER_ACTOR, actor_of, host_actor, replica_key
from oncelog.actors.launch.assembly import (
    DiskRefusedError,
    Environment,
    LeadershipLostError,
    ReplicaServer,
    shell_of,
)
from oncelog.actors.process.background import OwnTasks, wait_until_done
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.brokers import PingReply, PingRequest
from oncelog.actors.protocol.messages.cluster import (
    HoldReplicasReply,
    HoldReplicasRequest,
    HostedReplica,
    HostedReplicasRequest,
    MetadataReply,
    MetadataRequest,
)
from oncelog.actors.protocol.messages.partition import (
    EndedFetch,
    FetchReply,
    FetchRequest,
    FetchTogetherReply,
    FetchTogetherRequest,
    SharedFetch,
)
from oncelog.actors.replica.opening import ExpectedLog
from oncelog.actors.rpc.actor_transport import LocalTransport
from oncelog.actors.rpc.call_meter import NO_REPORTS, CallReports
from oncelog.actors.rpc.dispatch import NO_AUDIT, Dispatch
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    shard_of,
)
from oncelog.storage.records.batch import Buffer

_logger = logging.getLogger(__name__)

LIST_RETRY_MS: Final = 50
LIST_RETRY_MAX_MS: Final = 1_000
"""Back-off if the controller does not answer, first and maximum."""

SHARED_ANSWER_MS: Final = 400
"""How long replicas that ask for their topic's settings share an answer."""

SESSIONS_MAX: Final = 1_000
"""Consumers whose fetches a host keeps, each until its next call."""

FETCHES_MAX: Final = 10_000
"""Fetches of one consumer that are under way at a host, or ended and not told yet."""

FETCHES_IN_ALL_MAX: Final = 100_000
"""Those of all consumers."""

ENDED_MAX_BYTES: Final = 16 * 1_048_576
"""Records of one consumer's fetches that have ended: beyond them its others wait to begin."""

ENDED_IN_ALL_MAX_BYTES: Final = 256 * 1_048_576
"""Those of all consumers."""

SESSION_MS: Final = 10_000
"""How long a host keeps the fetches of a consumer that does not call."""

WAIT_MAX_MS: Final = SESSION_MS // 2
"""How long a call may wait; the next one comes before the session ends."""

BEGUN_AT_ONCE: Final = 50
"""Replicas started before calls to the others are answered again."""


class Host:
    """Holds the replicas that the controller lists for it; see the module.

    ``environment`` is that of the process, whose calls ``dispatch`` answers. A replica that must
    restart does so alone. A broken invariant or another bug ends the whole process.
    """

    def __init__(
        self, config: HostConfig, environment: Environment, reports: CallReports = NO_REPORTS
    ) -> None:
        self.config = config
        self.dispatch = Dispatch(
            self,
            on_bug=environment.die,
            reports=reports,
            find=self.find,
            door=environment.door,
            audit=environment.audit or NO_AUDIT,
            directory=environment.directory,
        )
        name = host_actor(config.number, config.broker_id)
        transport = LocalTransport(name, self.dispatch, environment.transport)
        self.environment = dataclasses.replace(environment, transport=transport)
        self._servers: dict[str, ReplicaServer] = {}
        self._tasks = OwnTasks(environment.die)
        self._fetches = FetchSessions(self.dispatch.answer_here, self._tasks)
        self._holding = asyncio.Lock()
        self._lists_wanted = 0
        self._lists_done = 0
        self._begun_count = 0
        self._asking: dict[MetadataRequest, asyncio.Task[MetadataReply]] = {}

    def __repr__(self) -> str:
        return f"Host({host_actor(self.config.number, self.config.broker_id)})"

    def begin(self) -> None:
        """Ask for the list and hold its replicas, in a task of its own."""
        self._tasks.spawn(self._hold_listed())

    def find(self, key: str) -> ReplicaServer | None:
        """The server of replica ``key`` (see ``replica_key``); ``None`` if it is not here."""
        return self._servers.get(key)

    def key_for(self, request: Request[Any]) -> str:
        """The key of the replica that ``request`` names, for a call without a key; "" if none."""
        tp = getattr(request, "topic_partition", None)
        for key, server in self._servers.items():
            leadership = server.replica.leadership
            wanted = tp or shard_named_in(
                request,
                transaction_state_partitions=leadership.transaction_state_partitions,
                offsets_partitions=leadership.offsets_partitions,
            )
            if wanted == server.replica.topic_partition:
                return key
        return ""

    @property
    def servers(self) -> dict[str, ReplicaServer]:
        """The replicas held now, by the name that an actor of their own would have."""
        return {
            actor_of(server.replica.topic_partition, self.config.broker_id): server
            for server in self._servers.values()
        }

    async def ping(self, request: PingRequest) -> PingReply:
        """Answer that this process is alive, and which of its replicas are offline."""
        await asyncio.sleep(request.hold_ms / 1000)
        servers = self._servers.values()
        return PingReply(
            offline_replicas=tuple(one for server in servers for one in server.offline_replicas()),
            refusing_replicas=tuple(
                one for server in servers for one in server.refusing_replicas()
            ),
        )

    async def hold_replicas(self, request: HoldReplicasRequest) -> HoldReplicasReply:  # noqa: ARG002
        """Hold what the controller lists from now on; end replicas of deleted topics."""
        await self._hold_listed()
        return HoldReplicasReply()

    async def fetch_together(self, request: FetchTogetherRequest) -> FetchTogetherReply:
        """Begin fetches of several replicas, and return those that have ended."""
        return await self._fetches.fetch(request)

    async def _metadata(self, request: MetadataRequest) -> MetadataReply:
        """Ask the controller, sharing the answer with replicas that ask the same soon after.

        All partitions of a topic ask at about the same time, and one answer has them all.
        """
        loop = asyncio.get_running_loop()
        asking = self._asking.get(request)
        if asking is None:
            timeout_ms = self.config.cluster.internal_call_timeout_ms
            asking = self._tasks.spawn(
                self.environment.transport.call(CONTROLLER_ACTOR, request, timeout_ms=timeout_ms)
            )
            self._asking[request] = asking
            loop.call_later(SHARED_ANSWER_MS / 1000, self._asking.pop, request, None)
        # Shielded, since others wait for the same answer.
        return await asyncio.shield(asking)

    # --- which replicas to hold -----------------------------------------------------------

    async def _hold_listed(self) -> None:
        """Return once the host holds what the controller listed after this call was made."""
        self._lists_wanted += 1
        number = self._lists_wanted
        async with self._holding:
            if self._lists_done >= number:
                return
            number = self._lists_wanted
            await self._hold(await self._listed())
            self._lists_done = number

    async def _listed(self) -> tuple[HostedReplica, ...]:
        request = HostedReplicasRequest(broker_id=self.config.broker_id, host=self.config.number)
        timeout_ms = self.config.cluster.internal_call_timeout_ms
        delay_ms = LIST_RETRY_MS
        while True:
            reply = await self.environment.transport.call(
                CONTROLLER_ACTOR, request, timeout_ms=timeout_ms
            )
            if reply.error is ErrorCode.NONE:
                return reply.replicas
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = min(2 * delay_ms, LIST_RETRY_MAX_MS)

    async def _hold(self, replicas: tuple[HostedReplica, ...]) -> None:
        listed = {
            replica_key(replica.topic_id, replica.topic_partition.partition): replica
            for replica in replicas
        }
        for key, server in list(self._servers.items()):
            # A replica that has moved and removed its files may be placed here again.
            is_spent = server.has_moved and key in listed and not listed[key].is_leaving
            if key not in listed or is_spent:
                self._tasks.spawn(self._servers.pop(key).end())
        missing = [key for key in listed if key not in self._servers]
        for count, key in enumerate(missing, start=1):
            self._begin(key, listed[key])
            if count % BEGUN_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _begin(self, key: str, replica: HostedReplica) -> None:
        tp = replica.topic_partition
        self._begun_count += 1
        incarnation = f"{self.environment.incarnation}-{self._begun_count}"
        environment = dataclasses.replace(
            self.environment,
            incarnation=incarnation,
            die=functools.partial(self._ended, key, incarnation),
            shared_metadata=self._metadata,
        )
        self._servers[key] = ReplicaServer(
            self.config.replica(tp.topic, tp.partition),
            environment,
            shell_of,
            listed=ExpectedLog(topic_id=replica.topic_id, is_in_sync=replica.is_in_sync),
        )

    # --- the end of a replica -------------------------------------------------------------

    def _ended(self, key: str, incarnation: str, error: BaseException) -> None:
        """A server cannot go on: restart it, unless it met a bug or has ended already."""
        if not isinstance(error, (LeadershipLostError, DiskRefusedError)):
            self.environment.die(error)
        server = self._servers.get(key)
        if server is None or server.environment.incarnation != incarnation or server.is_stopped:
            return
        _logger.info("%r begins again: %s", server, error)
        del self._servers[key]
        self._tasks.spawn(self._restart_server(server))

    async def _restart_server(self, server: ReplicaServer) -> None:
        await server.end()
        await self._hold_listed()


# --- fetches that travel together -----------------------------------------------------------------


class FetchSessions:
    """Fetches that consumers have under way at one host, by session. Bounded in four ways.

    A session that no call names for ``SESSION_MS`` is dropped. So is the one that was called
    longest ago if there are more than ``SESSIONS_MAX``, or ``FETCHES_IN_ALL_MAX`` fetches, or their
    records have ``ENDED_IN_ALL_MAX_BYTES``. Its fetches end with it, and its consumer begins them
    anew.
    """

    def __init__(
        self, answer: Callable[[str, FetchRequest], Awaitable[FetchReply]], tasks: OwnTasks
    ) -> None:
        self._answer = answer
        self._tasks = tasks
        self._sessions: dict[str, _FetchSession] = {}
        """The session called last is the last."""

    async def fetch(self, request: FetchTogetherRequest) -> FetchTogetherReply:
        """See ``FetchTogetherRequest``."""
        session = self._sessions.pop(request.session_id, None)
        is_new = session is None
        if session is None:
            session = _FetchSession(self._answer, self._tasks)
        while self._is_full_with(session, len(request.fetches)):
            self._sessions.pop(next(iter(self._sessions))).end()
        self._sessions[request.session_id] = session
        session.keep(functools.partial(self._drop, request.session_id, session))
        reply = await session.next(request)
        return structs.replace(reply, is_new=True) if is_new else reply

    def _is_full_with(self, session: _FetchSession, new_count: int) -> bool:
        """Whether another session must go before ``session`` begins so many fetches."""
        others = self._sessions.values()
        if not others or len(others) >= SESSIONS_MAX or not new_count:
            return len(others) >= SESSIONS_MAX
        if sum(each.ended_bytes for each in others) >= ENDED_IN_ALL_MAX_BYTES:
            return True
        return session.count + sum(each.count for each in others) + new_count > FETCHES_IN_ALL_MAX

    def _drop(self, session_id: str, session: _FetchSession) -> None:
        if self._sessions.get(session_id) is session:
            del self._sessions[session_id]
        session.end()


class _FetchSession:
    """The fetches of one consumer: under way, and ended but not told yet."""

    def __init__(
        self, answer: Callable[[str, FetchRequest], Awaitable[FetchReply]], tasks: OwnTasks
    ) -> None:
        self._answer = answer
        self._tasks = tasks
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._ended: dict[int, FetchReply] = {}
        self.ended_bytes = 0
        """Records of the fetches that have ended and are not told yet."""
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._waiter: asyncio.Future[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """How many fetches it has."""
        return len(self._under_way) + len(self._ended)

    def keep(self, drop: Callable[[], None]) -> None:
        """A call: ``drop`` is called if no other comes in time."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(SESSION_MS / 1_000, drop)

    def end(self) -> None:
        """Give up all fetches, and let the call that waits return."""
        if self._expiry is not None:
            self._expiry.cancel()
        for task in self._under_way.values():
            task.cancel()
        self._ended.clear()
        self._count_ended(-self.ended_bytes)
        self._wake()

    async def next(self, request: FetchTogetherRequest) -> FetchTogetherReply:
        """Begin the new fetches, and return what has ended, once there is something."""
        self._wake()
        if self.count + len(request.fetches) > FETCHES_MAX:
            return request.failed(
                ErrorCode.INVALID_REQUEST, f"a session may have {FETCHES_MAX} fetches under way"
            )
        for one in request.fetches:
            if one.number not in self._under_way and one.number not in self._ended:
                self._under_way[one.number] = self._tasks.spawn(self._fetch(one))
        if not self._ended and request.max_wait_ms > 0:
            waiter = self._waiter = asyncio.get_running_loop().create_future()
            await wait_until_done(waiter, min(request.max_wait_ms, WAIT_MAX_MS) / 1_000)
        return self._take(request.max_bytes)

    async def _fetch(self, one: SharedFetch) -> None:
        try:
            while self.ended_bytes >= ENDED_MAX_BYTES:
                await self._has_room.wait()
            reply = await self._answer(one.key, one.fetch)
        finally:
            del self._under_way[one.number]
        self._ended[one.number] = reply
        self._count_ended(len(reply.records))
        self._wake()

    def _count_ended(self, size_bytes: int) -> None:
        self.ended_bytes += size_bytes
        if self.ended_bytes < ENDED_MAX_BYTES:
            self._has_room.set()
        else:
            self._has_room.clear()

    def _wake(self) -> None:
        """Let the call that waits return: with what has ended, or for a newer one."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _take(self, max_bytes: int) -> FetchTogetherReply:
        ended: list[EndedFetch] = []
        records: list[Buffer] = []
        left = max_bytes
        while self._ended and (not ended or left > 0):
            number = next(iter(self._ended))
            reply = self._ended.pop(number)
            left -= len(reply.records)
            self._count_ended(-len(reply.records))
            records.append(reply.records)
            if reply.records:
                reply = structs.replace(reply, records=b"")
            ended.append(EndedFetch(number=number, reply=reply))
        return FetchTogetherReply(ended=tuple(ended), records=tuple(records))


def shard_named_in(
    request: Request[Any], *, transaction_state_partitions: int, offsets_partitions: int
) -> TopicPartition | None:
    """The coordinator that ``request`` is for, by its transactional id or group id."""
    transactional_id = getattr(request, "transactional_id", None)
    group_id = getattr(request, "group_id", None)
    if group_id and offsets_partitions:
        return TopicPartition(CONSUMER_OFFSETS_TOPIC, shard_of(group_id, offsets_partitions))
    if transactional_id and transaction_state_partitions:
        shard = shard_of(transactional_id, transaction_state_partitions)
        return TopicPartition(TRANSACTION_STATE_TOPIC, shard)
    return None
