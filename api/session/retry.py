"""Whether and when a client retries a call.

A retriable error leads to the same call again; any other error is final and goes to the caller.
Randomness comes from an injected generator and time from the running event loop, so that the
simulator controls both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from oncelog.actors.protocol.backoff import backoff_ms
from oncelog.actors.protocol.messages.base import ReplyT
from oncelog.storage.errors import ErrorCode

if TYPE_CHECKING:
    from oncelog.api.config import ConsumerSettings, ProducerSettings

CONCURRENT_TRANSACTIONS_BACKOFF_MS: Final = 20
"""The id's previous transaction is about to complete: retry soon. Source: KIP-98."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffPolicy:
    """Waits between attempts: doubling from ``initial_ms`` up to ``max_ms``, plus or minus jitter.

    ``jitter`` is a fraction of the wait, 0.2 for 20 %. Source: KIP-580.
    """

    initial_ms: int = 100
    max_ms: int = 1_000
    jitter: float = 0.2

    @classmethod
    def of(cls, settings: ProducerSettings | ConsumerSettings) -> BackoffPolicy:
        """The waits that the settings of a client name."""
        return cls(initial_ms=settings.retry_backoff_ms, max_ms=settings.retry_backoff_max_ms)


DEFAULT_BACKOFF: Final = BackoffPolicy()


class Backoff:
    """The waits of one operation; a new operation gets a new one."""

    __slots__ = ("_failures", "_policy", "_random")

    def __init__(self, policy: BackoffPolicy, random: Random) -> None:
        self._policy = policy
        self._random = random
        self._failures = 0

    def delay_ms(self, error: ErrorCode) -> float:
        """How long to wait before the next attempt, in milliseconds, after ``error``.

        ``CONCURRENT_TRANSACTIONS`` waits 20 ms and does not lengthen later waits: the coordinator
        is healthy and busy with the previous transaction.
        """
        if error is ErrorCode.CONCURRENT_TRANSACTIONS:
            return float(CONCURRENT_TRANSACTIONS_BACKOFF_MS)
        policy = self._policy
        base = float(backoff_ms(self._failures, initial_ms=policy.initial_ms, max_ms=policy.max_ms))
        self._failures += 1
        spread = base * policy.jitter
        return base + self._random.uniform(-spread, spread)

    def reset(self) -> None:
        """Start over with the shortest wait, as after a success."""
        self._failures = 0


async def call_with_retries(
    attempt: Callable[[int], Awaitable[ReplyT]],
    *,
    random: Random,
    timeout_ms: float,
    policy: BackoffPolicy = DEFAULT_BACKOFF,
    is_retriable: Callable[[ErrorCode], bool] = lambda error: error.retriable,
) -> ReplyT:
    """Repeat ``attempt`` until its reply is final or ``timeout_ms`` have passed.

    ``attempt`` gets the milliseconds that are left, looks its actor up and calls it; it must be
    safe to repeat. The last reply is returned, so a retriable error in it means that time ran out.
    ``attempt`` runs at least once; a wait that would end after the deadline is not begun.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1_000
    backoff = Backoff(policy, random)
    while True:
        reply = await attempt(max(1, round((deadline - loop.time()) * 1_000)))
        if not is_retriable(reply.error):
            return reply
        delay = backoff.delay_ms(reply.error) / 1_000
        if loop.time() + delay > deadline:
            return reply
        await asyncio.sleep(delay)
