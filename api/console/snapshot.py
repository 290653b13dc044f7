"""What the console asks of a cluster: on behalf of a request, with one user's rights, once for all.

Rules. A ``Viewer`` asks as one user, and all who are logged in as that user share it; no answer
passes from one viewer to another. An answer is used again for as long as it took a hundred times
of CPU to get, so that however large the cluster is, a viewer costs about one percent of a core. A
question that fails leaves the last answer in place, with the time since when it fails. But one
that is refused forgets it: the right to see it may be gone.

One file: a question, its answer, and how long that holds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Generic, Protocol, TypeVar

from oncelog.actors.interfaces import BROKER_ACTORS, Transport
from oncelog.actors.process.clock import SystemClock, monotonic_s
from oncelog.actors.protocol.group.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from oncelog.actors.protocol.messages.cluster import MetadataReply
from oncelog.actors.protocol.messages.group import GroupDescription
from oncelog.actors.protocol.messages.partition import (
    DescribeReplicaReply,
    ProducerDescription,
)
from oncelog.actors.protocol.messages.share import DescribeShareGroupRequest
from oncelog.actors.protocol.messages.transaction import TransactionDescription
from oncelog.actors.rpc.handshake import Identity
from oncelog.api.admin.admin import AsyncAdmin
from oncelog.api.admin.calls import check
from oncelog.api.admin.hanging import HangingTransaction, IncompleteSearchError
from oncelog.api.cli.status import ClusterStatus, FoundCondition, check_may_ask, collect
from oncelog.api.config import QueueSettings
from oncelog.api.processing.job import JobStatus
from oncelog.api.queueing.queue import AsyncQueue
from oncelog.api.records import QueueBacklog
from oncelog.api.session.committed_offsets import lag_of
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    ConnectionFailedError,
    CorruptDataError,
    NetworkError,
    OncelogError,
    SaslAuthenticationFailedError,
    UnknownServerError,
)
from oncelog.storage.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    TopicPartition,
)

ASK_TIMEOUT_MS: Final = 5_000
"""For how long a question is retried; who looks at a page sees the last answer meanwhile."""

WRITE_TIMEOUT_MS: Final = 20_000

FRESH_S: Final = 1.5
"""An answer is used again for at least this long."""

FRESH_MAX_S: Final = 60.0
"""And for at most this long, whatever it cost."""

SEEN_FRESH_MAX_S: Final = 10.0
"""The same for the status, by which somebody judges what is wrong now."""

COST_SHARE: Final = 0.01
"""The part of a core that asking one question again and again may take."""

FIRST_WAIT_S: Final = 8.0
"""How long a page waits for an answer that it never had."""

NEXT_WAIT_S: Final = 0.7
"""How long a page waits for a newer answer before it shows the one that there is."""

ANSWERS_MAX: Final = 100
"""Answers that a viewer keeps; beyond them the one used longest ago is forgotten."""

ASKING_MAX: Final = 8
"""Questions of one viewer that are under way; others wait."""

SAMPLES_MAX: Final = 600
"""Points of a chart; the oldest goes first."""

FORGET_S: Final = 60.0
"""A chart begins anew if nobody has looked for this long."""

CHARTED_GROUPS_MAX: Final = 20
"""Groups with a chart, per viewer; beyond them that of the one looked at longest ago ends."""

GROUP_PARTITIONS_MAX: Final = 1_000
"""Partitions of a group whose lag is asked for; the page says how many there are."""

LOST_S: Final = 6.0
"""After so long without any answer the cluster may be gone, and is looked for again."""

ValueT = TypeVar("ValueT")

_logger = logging.getLogger(__name__)

_REFUSED: Final = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
    }
)


def is_refusal(error: OncelogError | None) -> bool:
    """Whether the cluster has answered that this viewer may not know."""
    return error is not None and error.code in _REFUSED


# --- the cluster ------------------------------------------------------------------------------


class ConnectedCluster(Protocol):
    """What is asked: ``oncelog.Cluster``, or one in memory."""

    address: str

    def transport_as(self, identity: Identity | None) -> tuple[Transport, Callable[[], None]]:
        """Calls as ``identity``, and what closes their connections.

        ``None`` is whoever this connection is of.
        """
        ...

    def jobs(self) -> list[Any]:
        """The running jobs of ``process``; blocks."""
        ...


class Link:
    """The connection that every viewer asks by; another one takes its place after an outage.

    ``replace`` and ``lose`` may be called from any thread. ``want`` is called when a viewer has had
    no answer for ``LOST_S``: it must not block.
    """

    def __init__(self, want: Callable[[], None] = lambda: None) -> None:
        self.cluster: ConnectedCluster | None = None
        self.dashboard_url = ""
        self.number = 0
        """Grows with each connection."""
        self.problem = ""
        """Why there is none."""
        self.want = want

    def replace(self, cluster: ConnectedCluster, dashboard_url: str = "") -> None:
        """From now on ask ``cluster``."""
        self.dashboard_url, self.problem = dashboard_url, ""
        self.cluster = cluster
        self.number += 1

    def lose(self, problem: str) -> None:
        """The connection is gone, and there is no other yet."""
        self.cluster, self.problem = None, problem
        self.number += 1


# --- answers ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer(Generic[ValueT]):
    """The last answer to a question, and why there is no newer one.

    ``value`` is of ``at_ms`` (ms since the epoch); ``None`` before the first. ``error`` is that of
    the last attempt, and ``failing_ms`` the time since when each has failed.
    """

    value: ValueT | None = None
    at_ms: int = 0
    error: OncelogError | None = None
    failing_ms: int = 0
    fresh_until_s: float = 0.0
    task: asyncio.Task[None] | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the viewer may not know."""
        return is_refusal(self.error)


class Answers:
    """The answers of one viewer, each asked for once at a time. Belongs to one event loop."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Answer[Any]] = OrderedDict()
        self._turn = asyncio.Semaphore(ASKING_MAX)
        self._clock = SystemClock()
        self._expiry = 0
        self.answered_s = monotonic_s()
        """When the cluster has last answered anything, in monotonic seconds."""

    def __len__(self) -> int:
        return len(self._kept)

    async def get(
        self,
        key: str,
        ask: Callable[[], Awaitable[ValueT]],
        *,
        fresh_max_s: float = FRESH_MAX_S,
    ) -> Answer[ValueT]:
        """The answer to ``key``; if it is old, ``ask`` is called and awaited for a short time."""
        answer = self._kept.get(key)
        if answer is None:
            answer = self._kept[key] = Answer()
        self._kept.move_to_end(key)
        if answer.task is None and monotonic_s() >= answer.fresh_until_s:
            task = asyncio.ensure_future(self._ask(answer, ask, fresh_max_s))
            task.add_done_callback(_look)
            answer.task = task
        if answer.task is not None:
            is_first = answer.value is None and answer.error is None
            wait_s = FIRST_WAIT_S if is_first else NEXT_WAIT_S
            await asyncio.wait({answer.task}, timeout=wait_s)
        if answer.value is None and answer.error is None:
            answer.error = NetworkError("no answer yet", advice="this page asks again by itself")
        self._forget_oldest()
        return answer

    def _forget_oldest(self) -> None:
        for key in [key for key, one in self._kept.items() if one.task is None]:
            if len(self._kept) <= ANSWERS_MAX:
                return
            del self._kept[key]

    def expire(self) -> None:
        """Something was changed: ask for everything anew, and for what is under way again."""
        self._expiry += 1
        for answer in self._kept.values():
            answer.fresh_until_s = 0.0

    async def _ask(
        self, answer: Answer[ValueT], ask: Callable[[], Awaitable[ValueT]], fresh_max_s: float
    ) -> None:
        """Ask, and put the outcome into ``answer``; raises nothing but a cancellation."""
        try:
            async with self._turn:
                expiry = self._expiry
                began_s, began_cpu_s = monotonic_s(), time.process_time()
                value = await ask()
                # Others' work is in it, and that of other threads: never more than has passed.
                cost_s = min(time.process_time() - began_cpu_s, monotonic_s() - began_s)
            answer.value, answer.at_ms = value, self._clock.now_ms()
            answer.error, answer.failing_ms = None, 0
            fresh_s = min(max(cost_s / COST_SHARE, FRESH_S), fresh_max_s)
            answer.fresh_until_s = monotonic_s() + fresh_s if expiry == self._expiry else 0.0
            self.answered_s = monotonic_s()
        except OncelogError as error:
            self._fail(answer, error)
        except Exception as error:
            # A bug, or a library's own error: the page shows it, the log has where it comes from.
            _logger.exception("a question to the cluster failed — tell its makers: it is a bug")
            self._fail(answer, UnknownServerError(f"{type(error).__name__}: {error}"))
        finally:
            answer.task = None

    def _fail(self, answer: Answer[Any], error: OncelogError) -> None:
        answer.error = error
        answer.failing_ms = answer.failing_ms or self._clock.now_ms()
        answer.fresh_until_s = monotonic_s() + FRESH_S
        if is_refusal(error):
            answer.value = None
        if not error.retriable:
            self.answered_s = monotonic_s()

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = [one.task for one in self._kept.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._kept.clear()


def _look(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.result()


# --- charts -----------------------------------------------------------------------------------


class Samples:
    """The points of one chart: seconds since the epoch, and a value; kept while somebody looks."""

    def __init__(self) -> None:
        self.points: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)

    def add(self, at_ms: int, value: float) -> None:
        """Add a point, unless it is there; forget the others if they are of an earlier look."""
        at_s = at_ms / 1_000
        if self.points and at_s <= self.points[-1][0]:
            return
        if self.points and at_s - self.points[-1][0] > FORGET_S + FRESH_MAX_S:
            self.points.clear()
        self.points.append((at_s, value))

    def as_json(self) -> list[list[float]]:
        """The columns that uPlot draws."""
        return [[at_s for at_s, _ in self.points], [value for _, value in self.points]]


# --- a viewer ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look at the whole cluster, judged; ``rates`` are records a second by topic, if known."""

    status: ClusterStatus
    findings: tuple[FoundCondition, ...]
    state: str
    leaders: Mapping[TopicPartition, DescribeReplicaReply]
    rates: Mapping[str, float]
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """Where a group is in one partition; ``lag`` in offsets, -1 if the end is unknown."""

    topic_partition: TopicPartition
    offset: int
    end_offset: int
    lag: int
    member_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """A group, and its lag in up to ``GROUP_PARTITIONS_MAX`` of ``partition_count`` partitions."""

    group: GroupDescription
    lags: tuple[PartitionLag, ...]
    partition_count: int

    @property
    def lag(self) -> int:
        """The sum of those lags that are known."""
        return sum(max(one.lag, 0) for one in self.lags)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """A queue: its group, backlog, and the counts of each partition that workers asked for."""

    group: GroupDescription
    backlog: QueueBacklog
    partitions: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hanging:
    """What the search found; ``incomplete`` says who has not answered."""

    found: tuple[HangingTransaction, ...]
    incomplete: str = ""


@dataclass(slots=True)
class _Connected:
    """What a viewer has of one connection."""

    number: int
    transport: Transport
    close: Callable[[], None]
    router: Router
    admin: AsyncAdmin
    writes: AsyncAdmin


@dataclass(slots=True)
class _Counted:
    """The high watermarks of an earlier look, for rates."""

    at_ms: int
    ends: dict[TopicPartition, int] = field(default_factory=dict)


class Viewer:
    """Asks as one user; for all who are logged in as that user. Belongs to one event loop."""

    def __init__(
        self, link: Link, identity: Identity | None = None, name: str = "", *, random: Random
    ) -> None:
        self.name = name
        self.answers = Answers()
        self.throughput = Samples()
        self.lags: OrderedDict[str, Samples] = OrderedDict()
        self.last_seen: Seen | None = None
        """The last look in which a controller answered."""
        self._link = link
        self._identity = identity
        self._random = random
        self._clock = SystemClock()
        self._connected: _Connected | None = None
        self._is_closed = False
        self._counted: _Counted | None = None
        self._jobs: dict[str, Any] = {}
        self._jobs_number = -1

    # --- connection -----------------------------------------------------------------------

    @property
    def link(self) -> Link:
        """The connection that this viewer asks by."""
        return self._link

    def connected(self) -> _Connected:
        """The clients of the connection that there is now.

        ``ConnectionFailedError`` without one. After ``LOST_S`` without an answer it asks for
        another connection.
        """
        if self._is_closed:
            raise ConnectionFailedError("this session is over", advice="log in again")
        link = self._link
        if monotonic_s() - self.answers.answered_s > LOST_S or link.cluster is None:
            link.want()
        cluster = link.cluster
        if cluster is None:
            raise ConnectionFailedError(
                link.problem or "the cluster is not connected",
                advice="start it; this page finds it again by itself",
            )
        if self._connected is None or self._connected.number != link.number:
            self._disconnect()
            transport, close = cluster.transport_as(self._identity)
            router = Router(transport, self._clock)
            self._connected = _Connected(
                number=link.number,
                transport=transport,
                close=close,
                router=router,
                admin=AsyncAdmin(router, random=self._random, timeout_ms=ASK_TIMEOUT_MS),
                writes=AsyncAdmin(router, random=self._random, timeout_ms=WRITE_TIMEOUT_MS),
            )
        return self._connected

    def _disconnect(self) -> None:
        connected, self._connected = self._connected, None
        if connected is not None:
            connected.close()

    async def close(self) -> None:
        """Give up what is under way, and close the connections of this user, for good."""
        self._is_closed = True
        await self.answers.close()
        self._disconnect()

    # --- the cluster ----------------------------------------------------------------------

    async def metadata(self) -> Answer[MetadataReply]:
        """Brokers, topics and leaders: one call."""
        return await self.answers.get("metadata", lambda: self.connected().admin.describe_cluster())

    async def seen(self) -> Answer[Seen]:
        """The cluster as ``oncelog status`` sees it: a call to each replica."""
        return await self.answers.get("status", self._see, fresh_max_s=SEEN_FRESH_MAX_S)

    async def _see(self) -> Seen:
        link, connected = self._link, self.connected()
        known = self.last_seen.status.metadata.brokers if self.last_seen else ()
        status = await collect(
            connected.transport,
            address=link.cluster.address if link.cluster else "",
            dashboard_url=link.dashboard_url,
            broker_names=lambda: [f"{BROKER_ACTORS}{one.broker_id}" for one in known],
        )
        check_may_ask(status)
        # Judging thousands of replicas takes a while.
        seen = await asyncio.to_thread(self._judged, status)
        if status.has_controller:
            self.last_seen = seen
            if seen.rates:
                self.throughput.add(seen.at_ms, sum(seen.rates.values()))
        elif self.last_seen is None:
            error = status.metadata.error
            raise NetworkError(
                f"the controller does not answer ({status.metadata.detail or error.name})",
                advice="`oncelog status` says more; this page asks again by itself",
            )
        return seen

    def _judged(self, status: ClusterStatus) -> Seen:
        findings = tuple(status.findings)
        leaders = {
            actor.topic_partition: actor.reply for actor in status.actors if actor.reply.is_leader
        }
        now_ms = self._clock.now_ms()
        is_served = all(one.condition.is_served for one in findings)
        return Seen(
            status=status,
            findings=findings,
            state="serving" if not findings else "degraded" if is_served else "not serving",
            leaders=leaders,
            rates=self._rates(leaders, now_ms),
            at_ms=now_ms,
        )

    def _rates(
        self, leaders: Mapping[TopicPartition, DescribeReplicaReply], now_ms: int
    ) -> dict[str, float]:
        """Records a second by topic since the look before this one, markers included."""
        ends = {tp: reply.high_watermark for tp, reply in leaders.items()}
        before, self._counted = self._counted, _Counted(now_ms, ends)
        passed_s = (now_ms - before.at_ms) / 1_000 if before is not None else 0.0
        rates: dict[str, float] = {}
        if before is None or not 0 < passed_s <= FORGET_S + FRESH_MAX_S:
            return rates
        for tp, end in ends.items():
            grown = max(end - before.ends.get(tp, end), 0)
            rates[tp.topic] = rates.get(tp.topic, 0.0) + grown / passed_s
        return rates

    # --- topics ---------------------------------------------------------------------------

    async def replicas(
        self, topic: str, partitions: tuple[int, ...]
    ) -> Answer[dict[int, DescribeReplicaReply]]:
        """What the leaders of some partitions say, for one who may not see the whole cluster."""

        async def ask() -> dict[int, DescribeReplicaReply]:
            admin = self.connected().admin
            tps = [TopicPartition(topic, number) for number in partitions]
            replies = await asyncio.gather(
                *(admin.describe_replica(tp) for tp in tps), return_exceptions=True
            )
            for reply in replies:
                if isinstance(reply, OncelogError) and is_refusal(reply):
                    raise reply
            return {
                number: reply
                for number, reply in zip(partitions, replies, strict=True)
                if isinstance(reply, DescribeReplicaReply)
            }

        return await self.answers.get(f"replicas {topic} {partitions}", ask)

    async def holders(
        self, partitions: tuple[TopicPartition, ...]
    ) -> Answer[
        dict[TopicPartition, tuple[ProducerDescription, TransactionDescription | None] | None]
    ]:
        """Who holds the last stable offset back: the oldest open transaction of each partition.

        ``None`` for a partition where nobody does. One that did not answer is left out.
        """

        async def ask() -> dict[
            TopicPartition, tuple[ProducerDescription, TransactionDescription | None] | None
        ]:
            admin = self.connected().admin
            replies = await self._producers(partitions)
            oldest = {}
            for tp, producers in replies.items():
                is_open = [one for one in producers if one.current_txn_first_offset >= 0]
                if is_open:
                    oldest[tp] = min(is_open, key=lambda one: one.current_txn_first_offset)
            ids: dict[int, TransactionDescription] = {}
            if oldest:
                wanted = {one.producer_id for one in oldest.values()}
                for one in await admin.list_transactions(producer_ids=sorted(wanted)):
                    ids[one.producer_id] = one
                    ids |= {member.producer_id: one for member in one.members}
            named = {tp: (one, ids.get(one.producer_id)) for tp, one in oldest.items()}
            return {tp: named.get(tp) for tp in replies}

        return await self.answers.get(f"holders {partitions}", ask)

    async def _producers(
        self, partitions: tuple[TopicPartition, ...]
    ) -> dict[TopicPartition, tuple[ProducerDescription, ...]]:
        """The producers of each partition whose leader answers; the error if none does."""
        admin = self.connected().admin
        replies = await asyncio.gather(
            *(admin.describe_producers(tp) for tp in partitions), return_exceptions=True
        )
        found: dict[TopicPartition, tuple[ProducerDescription, ...]] = {}
        problem: OncelogError | None = None
        for tp, reply in zip(partitions, replies, strict=True):
            if isinstance(reply, OncelogError):
                problem = problem or reply
            elif isinstance(reply, BaseException):
                raise reply
            else:
                found[tp] = reply
        if problem is not None and not found:
            raise problem
        return found

    # --- transactions ---------------------------------------------------------------------

    async def transactions(self) -> Answer[list[TransactionDescription]]:
        """Every transactional id that this viewer may see."""
        return await self.answers.get(
            "transactions", lambda: self.connected().admin.list_transactions()
        )

    async def transaction(self, transactional_id: str) -> Answer[TransactionDescription]:
        """One transactional id."""
        return await self.answers.get(
            f"transaction {transactional_id}",
            lambda: self.connected().admin.describe_transaction(transactional_id),
        )

    async def open_since(
        self, one: TransactionDescription, partitions: tuple[TopicPartition, ...]
    ) -> Answer[dict[TopicPartition, int]]:
        """The offset since which a transaction is open in each partition; -1 where it is not.

        A partition that did not answer is left out.
        """
        producer_ids = {one.producer_id, *(member.producer_id for member in one.members)}

        async def ask() -> dict[TopicPartition, int]:
            return {
                tp: max(
                    (
                        producer.current_txn_first_offset
                        for producer in producers
                        if producer.producer_id in producer_ids
                    ),
                    default=-1,
                )
                for tp, producers in (await self._producers(partitions)).items()
            }

        # What was said of an earlier transaction, or before it was decided, says nothing now.
        key = f"open {one.transactional_id} {one.state} {one.last_update_ms} {partitions}"
        return await self.answers.get(key, ask)

    async def hanging(self) -> Answer[Hanging]:
        """Transactions that nobody will end: asks every leader, and some of them twice."""

        async def ask() -> Hanging:
            try:
                found = await self.connected().writes.find_hanging_transactions()
            except IncompleteSearchError as error:
                return Hanging(found=error.found, incomplete=error.what)
            return Hanging(found=tuple(found))

        return await self.answers.get("hanging", ask)

    # --- groups ---------------------------------------------------------------------------

    async def groups(self) -> Answer[list[GroupDescription]]:
        """Every group that this viewer may see."""
        return await self.answers.get("groups", lambda: self.connected().admin.list_groups())

    async def group(self, group_id: str) -> Answer[GroupState]:
        """One group with its lag, which its chart remembers."""
        answer = await self.answers.get(f"group {group_id}", lambda: self._group(group_id))
        if answer.value is not None:
            self._chart(group_id, answer.at_ms, answer.value.lag)
        return answer

    def _chart(self, group_id: str, at_ms: int, lag: int) -> None:
        samples = self.lags.setdefault(group_id, Samples())
        self.lags.move_to_end(group_id)
        while len(self.lags) > CHARTED_GROUPS_MAX:
            self.lags.popitem(last=False)
        samples.add(at_ms, lag)

    async def _group(self, group_id: str) -> GroupState:
        admin = self.connected().admin
        group = await admin.describe_group(group_id)
        committed = await admin.list_group_offsets(group_id, require_stable=False)
        asked = sorted(committed)[:GROUP_PARTITIONS_MAX]
        starts, ends = await asyncio.gather(
            self._offsets(asked, EARLIEST_TIMESTAMP), self._offsets(asked, LATEST_TIMESTAMP)
        )
        owners = {
            tp: member.member_id
            for member in group.members
            for tp in assigned(group, member.assignment)
        }
        lags = []
        for tp in asked:
            offset, end = committed[tp].offset, ends.get(tp, -1)
            is_known = tp in starts and end >= 0
            lag = lag_of(offset, start_offset=starts[tp], end_offset=end) if is_known else -1
            lags.append(
                PartitionLag(
                    topic_partition=tp,
                    offset=offset,
                    end_offset=end,
                    lag=lag,
                    member_id=owners.get(tp, ""),
                )
            )
        return GroupState(group=group, lags=tuple(lags), partition_count=len(committed))

    async def _offsets(
        self, partitions: list[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """The offset for a time of each partition whose leader answers."""
        admin = self.connected().admin
        replies = await asyncio.gather(
            *(admin.list_offsets({tp: timestamp_ms}) for tp in partitions), return_exceptions=True
        )
        found: dict[TopicPartition, int] = {}
        for reply in replies:
            if isinstance(reply, dict):
                found |= reply
            elif not isinstance(reply, OncelogError):
                raise reply
        return found

    async def queue(self, group_id: str) -> Answer[QueueState]:
        """One queue with its backlog."""

        async def ask() -> QueueState:
            connected = self.connected()
            group = await connected.admin.describe_group(group_id)
            request = DescribeShareGroupRequest(group_id=group_id)
            reply = await connected.router.call_group_coordinator(
                group_id, request, timeout_ms=ASK_TIMEOUT_MS
            )
            check(reply)
            topics = sorted({one.topic_partition.topic for one in reply.partitions})
            backlog = QueueBacklog(
                available=0, acquired=0, pending=0, age_ms=0, workers=reply.member_count
            )
            if topics:
                settings = QueueSettings.from_options({"group_id": group_id})
                queue = AsyncQueue(connected.router, settings, topics, self._random)
                backlog = await queue.backlog()
            return QueueState(group=group, backlog=backlog, partitions=reply.partitions)

        answer = await self.answers.get(f"queue {group_id}", ask)
        if answer.value is not None:
            self._chart(group_id, answer.at_ms, answer.value.backlog.total)
        return answer

    # --- jobs -----------------------------------------------------------------------------

    async def jobs(self) -> Answer[list[tuple[Any, JobStatus]]]:
        """The jobs whose groups this viewer may see; asked as whoever started the console.

        Workers have no rights of their own to judge by.
        """

        async def ask() -> list[tuple[Any, JobStatus]]:
            link = self._link
            self.connected()
            if link.cluster is None:
                return []
            visible = {one.group_id for one in await self.connected().admin.list_groups()}
            return await asyncio.to_thread(self._statuses, link.cluster, link.number, visible)

        return await self.answers.get("jobs", ask)

    def _statuses(
        self, cluster: ConnectedCluster, number: int, visible: set[str]
    ) -> list[tuple[Any, JobStatus]]:
        """Each job with its status. Its handle is kept: it knows the rate."""
        if number != self._jobs_number:
            self._jobs, self._jobs_number = {}, number
        is_shown_all = self._identity is None
        found = {
            job.group_id: self._jobs.get(job.group_id, job)
            for job in cluster.jobs()
            if is_shown_all or job.group_id in visible
        }
        self._jobs = found
        return [(job, job.status()) for _, job in sorted(found.items())]


def assigned(group: GroupDescription, assignment: bytes) -> tuple[TopicPartition, ...]:
    """A member's partitions; none if its assignor is not one of ours."""
    if group.protocol_type != PROTOCOL_TYPE:
        return ()
    try:
        return decode_assignment(assignment).partitions
    except CorruptDataError:
        return ()


def is_login_over(error: OncelogError | None) -> bool:
    """Whether the cluster does not know this user with this password any more."""
    return isinstance(error, SaslAuthenticationFailedError)
