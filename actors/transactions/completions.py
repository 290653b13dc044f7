"""Sees decided transactions through: markers to every partition, then COMPLETE, one task per id.

Rules. A task runs for each prepared transaction while this coordinator is the newest of its shard.
One that finds a newer coordinator leaves the transaction to that one, for good: an epoch that is
over does not come back.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from oncelog.actors.coordination.runtime import CoordinatorRuntime
from oncelog.actors.process.clock import backoff_ms, monotonic_s
from oncelog.actors.protocol.transaction.machine import TransactionMachine
from oncelog.actors.transactions.end_durations import EndDurations, EndStep
from oncelog.actors.transactions.marker_sender import Delivery, MarkerSender
from oncelog.storage.errors import ErrorCode

_logger = logging.getLogger(__name__)


class TransactionCompletions:
    """The completions of one coordinator. ``spawn`` starts a task that ends with it."""

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
        """Complete whatever is decided, unless it was left to a newer coordinator."""
        unfinished = self._machine.upkeep.unfinished()
        self._left_to_successor.intersection_update(unfinished)
        for transactional_id in unfinished:
            if transactional_id not in self._left_to_successor:
                self.ensure(transactional_id)

    def ensure(self, transactional_id: str) -> asyncio.Task[bool] | None:
        """The task that completes the id's transaction if it is decided, started if need be."""
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
        """Send the markers, log COMPLETE; false when a newer coordinator has taken over.

        COMPLETE is not waited for: it precedes in the log whatever the next transaction logs, and
        a lost one only makes the next coordinator repeat harmless markers.
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
            await asyncio.sleep(backoff_ms(attempt, self._rng) / 1000)
            attempt += 1
        self._left_to_successor.add(transactional_id)
        _logger.warning("the completion of %r is left to a newer coordinator", transactional_id)
        return False

    async def is_visible(self, completion: asyncio.Task[bool] | None) -> bool:
        """Wait a moment for the completion; whether every marker is written."""
        if completion is None:
            return True
        await asyncio.wait({completion}, timeout=self._visibility_wait_ms / 1000)
        is_over = completion.done() and not completion.cancelled()
        return is_over and completion.exception() is None and completion.result()
