"""Periodic scans of a transaction coordinator: transactions left open, and idle ids.

Rules. A transaction is left open when it has timed out, or when the driver it is tied to is gone.
A driver counts as gone only if this process can see that for certain; otherwise the timeout ends
the transaction. Only undecided transactions are aborted: their commit then fails cleanly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from oncelog.actors.config import ClusterConfig
from oncelog.actors.coordination.producer_id_reservation import ProducerIdReservation
from oncelog.actors.coordination.runtime import CoordinatorRuntime
from oncelog.actors.interfaces import Clock, DriverWatch
from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.transaction.machine import TransactionMachine
from oncelog.actors.transactions.completions import TransactionCompletions
from oncelog.storage.errors import ErrorCode

_logger = logging.getLogger(__name__)


class TransactionScans:
    """The loops of one coordinator; run each as a task that ends with it."""

    def __init__(
        self,
        *,
        machine: TransactionMachine,
        runtime: CoordinatorRuntime,
        completions: TransactionCompletions,
        reservation: ProducerIdReservation,
        drivers: DriverWatch,
        config: ClusterConfig,
        clock: Clock,
    ) -> None:
        self._machine = machine
        self._runtime = runtime
        self._completions = completions
        self._reservation = reservation
        self._drivers = drivers
        self._config = config
        self._clock = clock

    async def abort_left_open(self) -> None:
        """Abort what is left open, and complete whatever is decided."""
        while True:
            await asyncio.sleep(max(self._config.transaction_abort_scan_ms, 1) / 1000)
            if self._runtime.unavailable() is not ErrorCode.NONE:
                continue
            self._completions.resume()
            await self._abort_expired()
            await self._abort_abandoned()

    async def _abort_expired(self) -> None:
        for transactional_id in self._machine.upkeep.expired_transactions(self._clock.now_ms()):
            _logger.info("the transaction of %r timed out: aborting", transactional_id)
            await self._abort(
                transactional_id, partial(self._machine.upkeep.decide_timeout, transactional_id)
            )

    async def _abort_abandoned(self) -> None:
        for transactional_id, driver in self._machine.runs.open_drivers():
            if not self._drivers.is_gone(driver):
                continue
            _logger.info(
                "process %d, which wrote as %r, is gone: aborting",
                driver.process_id,
                transactional_id,
            )
            await self._abort(
                transactional_id,
                partial(self._machine.runs.decide_driver_gone, transactional_id, driver),
            )

    async def _abort(self, transactional_id: str, decide: Callable[[int], Decision[Reply]]) -> None:
        await self._reservation.ensure()
        await self._runtime.execute(transactional_id, decide)
        self._completions.ensure(transactional_id)

    async def forget_idle(self) -> None:
        """Forget ids that have been idle for too long."""
        interval_ms = self._config.transactional_id_expiration_check_interval_ms
        while True:
            await asyncio.sleep(interval_ms / 1000)
            if self._runtime.unavailable() is not ErrorCode.NONE:
                continue
            for transactional_id in self._machine.upkeep.idle_ids(self._clock.now_ms()):
                await self._runtime.execute(
                    transactional_id, partial(self._machine.upkeep.decide_expire, transactional_id)
                )
