"""Complete decided transactions: markers to every partition, then COMPLETE, one task per id.

Rules. A task runs for each prepared transaction while this coordinator is the newest of its shard.
If it finds a newer coordinator it leaves the transaction to that one for good, since old epochs
never return.

All partitions are called in parallel, each with the markers of all its producers. Each is retried
forever, and an unreachable one delays no other. Before each call the coordinator must still be the
one that decided. Repeating a marker is harmless.

| partition answers | then |
|---|---|
| NONE | done |
| anything else, or nothing | ask the controller who leads now, wait, send again |
| nothing yet, and another leads | give the call up, as above |
| - and the controller knows no such partition | its topic was deleted: done |
| INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED | ask the controller for the newest epoch |
| - and that is not ours | somebody newer decides: drop it all |
| - it is ours, INVALID_PRODUCER_EPOCH | a later epoch closed what the marker would close: done |
| - it is ours, TRANSACTION_COORDINATOR_FENCED | wait, send again |
| - it is unknown | wait, send again |

Source: KIP-98, "WriteTxnMarkersRequest"; KIP-890 for the epochs.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import structs

from oncelog.actors.coordination.cluster_view import ANY_AGE_MS, ClusterView
from oncelog.actors.coordination.leader_watch import LeaderWatch
from oncelog.actors.coordination.runtime import CoordinatorRuntime
from oncelog.actors.interfaces import Transport
from oncelog.actors.process.clock import jittered_backoff_ms, loop_ms, monotonic_s
from oncelog.actors.process.metrics import TRANSACTION_END_DURATION_MS, Histogram, MetricSink
from oncelog.actors.protocol.messages.partition import TxnMarker, WriteTxnMarkersRequest
from oncelog.actors.protocol.transaction.transaction_machine import TransactionMachine
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

_logger = logging.getLogger(__name__)

SUPERSEDED: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)
"""A partition has seen a newer coordinator, or a newer epoch of the producer."""


class TransactionCompletions:
    """Runs the completions of one coordinator. ``spawn`` starts a task that ends with it."""

    def __init__(
        self,
        *,
        machine: TransactionMachine,
        runtime: CoordinatorRuntime,
        markers: MarkerSender,
        rng: random.Random,
        visibility_wait_ms: int,
        durations: EndDurations,
        spawn: Callable[[Coroutine[Any, Any, bool]], asyncio.Task[bool]],
    ) -> None:
        self._machine = machine
        self._runtime = runtime
        self._markers = markers
        self._rng = rng
        self._visibility_wait_ms = visibility_wait_ms
        self._durations = durations
        self._spawn = spawn
        self._running: dict[str, asyncio.Task[bool]] = {}
        self._left_to_successor: set[str] = set()

    def resume(self) -> None:
        """Complete all decided transactions, except those left to a newer coordinator."""
        unfinished = self._machine.upkeep.unfinished()
        self._left_to_successor.intersection_update(unfinished)
        for transactional_id in unfinished:
            if transactional_id not in self._left_to_successor:
                self.ensure(transactional_id)

    def ensure(self, transactional_id: str) -> asyncio.Task[bool] | None:
        """The task that completes the id's decided transaction, started if needed."""
        running = self._running.get(transactional_id)
        if self._machine.upkeep.is_prepared(transactional_id) and (
            running is None or running.done()
        ):
            running = self._spawn(self._complete(transactional_id))
            self._running[transactional_id] = running
            running.add_done_callback(lambda task: self._ended(transactional_id, task))
        return running

    def _ended(self, transactional_id: str, task: asyncio.Task[bool]) -> None:
        if self._running.get(transactional_id) is task:
            del self._running[transactional_id]

    async def _complete(self, transactional_id: str) -> bool:
        """Send the markers, then log COMPLETE; false if a newer coordinator has taken over.

        It does not wait for COMPLETE, which precedes the next transaction's records in the log. If
        it is lost, the next coordinator only repeats harmless markers.
        """
        epoch = self._runtime.coordinator_epoch

        def is_current() -> bool:
            is_serving = self._runtime.unavailable() is ErrorCode.NONE
            return is_serving and self._runtime.coordinator_epoch == epoch

        began_s = monotonic_s()
        delivery = await self._markers.send(
            self._machine.upkeep.markers_due(transactional_id),
            coordinator_epoch=epoch,
            is_current=is_current,
        )
        if delivery is Delivery.DONE:
            began_s = self._durations.observe(EndStep.MARKERS, began_s)
        attempt = 0
        while delivery is Delivery.DONE and is_current():
            reply = await self._runtime.execute(
                transactional_id,
                lambda now_ms: self._machine.upkeep.decide_complete(transactional_id, now_ms),
                is_durable_before_reply=False,
            )
            if reply.error is ErrorCode.NONE:
                self._durations.observe(EndStep.COMPLETION, began_s)
                return True
            await asyncio.sleep(jittered_backoff_ms(attempt, self._rng) / 1000)
            attempt += 1
        self._left_to_successor.add(transactional_id)
        _logger.info("the completion of %r is left to a newer coordinator", transactional_id)
        return False

    async def is_visible(self, completion: asyncio.Task[bool] | None) -> bool:
        """Wait a moment for the completion; return whether every marker is written."""
        if completion is None:
            return True
        await asyncio.wait({completion}, timeout=self._visibility_wait_ms / 1000)
        is_over = completion.done() and not completion.cancelled()
        return is_over and completion.exception() is None and completion.result()


class Delivery(enum.Enum):
    """How sending the markers of one transaction ended."""

    DONE = "done"
    """Every partition that exists has its markers, durably."""
    DROPPED = "dropped"
    """This coordinator must stop: a newer one continues."""


@dataclass(slots=True, kw_only=True)
class _Sending:
    """Shared by the deliveries of one transaction: if one is superseded, all are dropped."""

    coordinator_epoch: int
    is_current: Callable[[], bool]
    is_dropped: bool = False


class MarkerSender:
    """Sends markers for the coordinator that leads the log partition ``shard``."""

    def __init__(
        self,
        *,
        transport: Transport,
        cluster: ClusterView,
        rng: random.Random,
        call_timeout_ms: int,
        shard: TopicPartition,
    ) -> None:
        self._transport = transport
        self._cluster = cluster
        self._rng = rng
        self._call_timeout_ms = call_timeout_ms
        self._shard = shard

    async def send(
        self,
        markers: Sequence[TxnMarker],
        *,
        coordinator_epoch: int,
        is_current: Callable[[], bool],
    ) -> Delivery:
        """Write ``markers`` to all their partitions, however long it takes.

        ``is_current`` is asked before every call; once it is false nothing more is sent.
        """
        waiting: dict[TopicPartition, dict[int, TxnMarker]] = {}
        for marker in markers:
            for tp in marker.partitions:
                alone = structs.replace(marker, partitions=(tp,))
                waiting.setdefault(tp, {})[marker.producer_id] = alone
        sending = _Sending(coordinator_epoch=coordinator_epoch, is_current=is_current)
        deliveries = [self._deliver(tp, due, sending) for tp, due in waiting.items()]
        if len(deliveries) == 1:  # As most transactions: no separate task.
            await deliveries[0]
        else:
            await asyncio.gather(*deliveries)
        return Delivery.DROPPED if sending.is_dropped else Delivery.DONE

    async def _deliver(
        self, tp: TopicPartition, due: dict[int, TxnMarker], sending: _Sending
    ) -> None:
        """Send the ``due`` markers to one partition until none is left, or all are dropped."""
        attempt = 0
        while due:
            as_of_ms = loop_ms() if attempt else ANY_AGE_MS
            location = await self._cluster.locate(tp, as_of_ms=as_of_ms)
            if location.is_gone:
                _logger.info("%s is gone: it needs no markers", tp)
                return
            sending.is_dropped = sending.is_dropped or not sending.is_current()
            if sending.is_dropped:
                return
            if location.actor is not None:
                answers = await self._write(tp, location.actor, due, sending.coordinator_epoch)
                await self._take_answers(tp, due, answers, sending)
            if due:
                await asyncio.sleep(jittered_backoff_ms(attempt, self._rng) / 1000)
                attempt += 1

    async def _write(
        self,
        tp: TopicPartition,
        actor: str,
        markers: Mapping[int, TxnMarker],
        coordinator_epoch: int,
    ) -> Mapping[int, ErrorCode]:
        """Make one call; return producer id → the leader's answer."""
        request = WriteTxnMarkersRequest(
            coordinator_epoch=coordinator_epoch, markers=tuple(markers.values())
        )
        watch = LeaderWatch(actor, lambda: self._leader_now(tp))
        reply = await watch.call(self._transport, request, timeout_ms=self._call_timeout_ms)
        if reply.error is not ErrorCode.NONE:
            return dict.fromkeys(markers, reply.error)
        answered = {result.producer_id: result.error for result in reply.results}
        return {
            producer_id: answered.get(producer_id, ErrorCode.UNKNOWN_SERVER_ERROR)
            for producer_id in markers
        }

    async def _leader_now(self, tp: TopicPartition) -> str | None:
        return (await self._cluster.locate(tp, as_of_ms=loop_ms())).actor

    async def _take_answers(
        self,
        tp: TopicPartition,
        due: dict[int, TxnMarker],
        answers: Mapping[int, ErrorCode],
        sending: _Sending,
    ) -> None:
        """Remove the finished markers from ``due``; note if all must be dropped."""
        refused: dict[int, ErrorCode] = {}
        for producer_id, error in answers.items():
            if error is ErrorCode.NONE:
                del due[producer_id]
            elif error in SUPERSEDED:
                _logger.info("%s refuses marker of producer %d: %s", tp, producer_id, error.name)
                refused[producer_id] = error
            elif not error.retriable:
                _logger.error(
                    "%s rejects a marker with %s; it is sent again — if this goes on, readers of "
                    "committed records wait there: see the log of the partition's leader",
                    *(tp, error.name),
                )
        if not refused:
            return
        # Ask after the rejection: a coordinator that caused it had its epoch before that.
        as_of_ms = loop_ms() + 1
        newest_epoch = await self._cluster.leader_epoch(self._shard, as_of_ms=as_of_ms)
        if newest_epoch is None:
            return
        if newest_epoch > sending.coordinator_epoch:
            sending.is_dropped = True
            return
        for producer_id, error in refused.items():
            if error is ErrorCode.INVALID_PRODUCER_EPOCH:
                # I-06: the newer epoch could only begin there after this transaction was closed.
                # Such repeats follow a coordinator that died before COMPLETE was on disk.
                _logger.info("%s has a newer epoch of producer %d: no marker", tp, producer_id)
                del due[producer_id]


class EndStep(enum.Enum):
    """A step of an end; the value is its metric tag."""

    DECISION = "decision"
    MARKERS = "markers"
    COMPLETION = "completion"


class EndDurations:
    """Durations of the steps of ending transactions at one coordinator, a histogram for each.

    | step, of a commit or an abort | from | to |
    |---|---|---|
    | decision | the request is queued | PREPARE is durable |
    | markers | they are sent | every partition has its marker, durably |
    | completion | that | COMPLETE is in the log, not yet durable |
    """

    def __init__(self) -> None:
        self._of = {step: Histogram(TRANSACTION_END_DURATION_MS) for step in EndStep}

    def observe(self, step: EndStep, began_s: float) -> float:
        """Note that a step that began at ``began_s`` ends now; return the current time."""
        now_s = monotonic_s()
        self._of[step].observe(1_000 * (now_s - began_s))
        return now_s

    def count(self, step: EndStep) -> int:
        """Number of these steps that have ended since the last report."""
        return self._of[step].count

    def report(self, metrics: MetricSink, broker_id: int) -> None:
        """Report what ended since the last report."""
        for step, durations in self._of.items():
            durations.report(metrics, {"step": step.value, "broker": str(broker_id)})
