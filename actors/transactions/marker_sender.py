"""Brings the markers of decided transactions to every partition: the last step of a transaction.

Rules. All partitions are called in parallel, each with the verdicts on all its producers, and each
is retried forever: one that is unreachable delays no other. Before each call the coordinator must
still be the one that decided. Repeating a marker is harmless.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from oncelog.actors.coordination.cluster_view import ANY_AGE_MS, ClusterView
from oncelog.actors.coordination.leader_watch import LeaderWatch
from oncelog.actors.interfaces import Transport
from oncelog.actors.process.clock import backoff_ms, loop_ms
from oncelog.actors.protocol.messages.partition import TxnMarker, WriteTxnMarkersRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

_logger = logging.getLogger(__name__)

SUPERSEDED: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)
"""A partition has seen a newer coordinator, or a newer epoch of the producer."""


class Delivery(enum.Enum):
    """How sending the markers of one transaction ended."""

    DONE = "done"
    """Every partition that exists has its markers, durably."""
    DROPPED = "dropped"
    """This coordinator must not go on: a newer one does."""


@dataclass(slots=True, kw_only=True)
class _Sending:
    """What the deliveries of one transaction share: one that is superseded drops them all."""

    coordinator_epoch: int
    is_current: Callable[[], bool]
    is_dropped: bool = False


class MarkerSender:
    """Sends markers, in the name of the coordinator that leads the log partition ``shard``."""

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
        if len(deliveries) == 1:  # Most transactions of one record: no task of its own.
            await deliveries[0]
        else:
            await asyncio.gather(*deliveries)
        return Delivery.DROPPED if sending.is_dropped else Delivery.DONE

    async def _deliver(
        self, tp: TopicPartition, due: dict[int, TxnMarker], sending: _Sending
    ) -> None:
        """Send what is ``due`` to one partition until nothing is left, or all is dropped."""
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
                await asyncio.sleep(backoff_ms(attempt, self._rng) / 1000)
                attempt += 1

    async def _write(
        self,
        tp: TopicPartition,
        actor: str,
        markers: Mapping[int, TxnMarker],
        coordinator_epoch: int,
    ) -> Mapping[int, ErrorCode]:
        """One call: what a leader answers to each of ``markers``, by producer id."""
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
        """Take the markers that need no more sending out of ``due``; see whether to go on."""
        refused: dict[int, ErrorCode] = {}
        for producer_id, error in answers.items():
            if error is ErrorCode.NONE:
                del due[producer_id]
            elif error in SUPERSEDED:
                _logger.warning("%s refuses marker of producer %d: %s", tp, producer_id, error.name)
                refused[producer_id] = error
            elif not error.retriable:
                _logger.error("%s answers %s to a marker; sending again", tp, error.name)
        if not refused:
            return
        # Asked after the refusal: a coordinator that caused it had its epoch before that.
        as_of_ms = loop_ms() + 1
        newest_epoch = await self._cluster.leader_epoch(self._shard, as_of_ms=as_of_ms)
        if newest_epoch is None:
            return
        if newest_epoch > sending.coordinator_epoch:
            sending.is_dropped = True
            return
        for producer_id, error in refused.items():
            if error is ErrorCode.INVALID_PRODUCER_EPOCH:
                # I-06: the newer epoch could only begin there once this transaction was closed.
                # A coordinator that died before COMPLETE was on disk leaves such repetitions.
                _logger.warning("%s is past the marker of producer %d: left out", tp, producer_id)
                del due[producer_id]
