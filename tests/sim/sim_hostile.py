"""How hostile applications call the clients, and what each call has to keep to.

``Habits``, drawn per life, say how an application behaves: it cancels its own calls, calls twice at
once, thinks for longer than every timeout, and more. The applications are in ``sim_hostile_apps``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from sim_stage import Player

from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.api.consuming.core import ConsumerRebalanceListener
from oncelog.api.records import ConsumerRecord
from oncelog.storage.exceptions import ClientClosedError, IllegalStateError, OncelogError
from oncelog.storage.model import TopicPartition

ResultT = TypeVar("ResultT")

SLACK_MS = 2_000
"""The attempt that is under way when the time is over, and what tells of it."""

LISTENER_MAX_MS = 20_000
"""What a listener that commits may add to a poll: its calls, some of them again."""

ITERATION_S = 0.2
ITERATION_MAX_MS = LISTENER_MAX_MS
"""A step of an iteration has no timeout: the program cancels it sooner."""

LONG_S = 4.5
"""Of a long thought; half of it is longer than a session, all of it than a transaction may be."""


class InterruptedCallError(Exception):
    """The program has cancelled its own call."""


TOLERATED = (IllegalStateError, InterruptedCallError)
"""What one of two tasks may get that read at once: a refusal, or what its program did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How one life of an application behaves; ratios are per occasion."""

    is_static: bool
    has_listener: bool
    cancel_ratio: float
    twin_ratio: float
    long_ratio: float
    span_ratio: float
    gather_ratio: float
    iterate_ratio: float
    abort_ratio: float
    drop_ratio: float
    stale_ratio: float
    commits_when_revoked: bool


def drawn_habits(random: Random) -> Habits:
    """Each habit is often not there at all."""

    def ratio(high: float) -> float:
        return random.choice((0.0, high / 3, high))

    return Habits(
        is_static=random.random() < 0.4,
        has_listener=random.random() < 0.6,
        cancel_ratio=ratio(0.2),
        twin_ratio=ratio(0.3),
        long_ratio=ratio(0.06),
        span_ratio=ratio(0.8),
        gather_ratio=ratio(0.4),
        iterate_ratio=ratio(0.4),
        abort_ratio=ratio(0.3),
        drop_ratio=random.choice((0.1, 0.5)),
        stale_ratio=ratio(0.2),
        commits_when_revoked=random.random() < 0.6,
    )


# --- what is noted ----------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Transaction:
    """What an application knows of one transaction; ``outcome`` is unknown until it is told."""

    name: str
    values: list[str] = field(default_factory=list)
    outcome: str = "unknown"


@dataclass(slots=True)
class Ledger:
    """What all applications did, were told, and complain of."""

    acknowledged: dict[str, tuple[TopicPartition, int]] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    made: list[object] = field(default_factory=list)
    """Every client, also what no program refers to any more: no garbage collection may decide."""

    def end(self, transaction: Transaction, outcome: str) -> None:
        """An answer has told how it ended."""
        transaction.outcome = outcome
        self.counts[outcome] += 1


# --- calls ------------------------------------------------------------------------------------


class Caller:
    """Makes the calls of one application: each in its time, some cancelled, some twice at once."""

    def __init__(self, player: Player, ledger: Ledger, habits: Habits) -> None:
        self.player = player
        self.ledger = ledger
        self.habits = habits
        self.random = player.random
        self._cancelled: set[asyncio.Task[Any] | None] = set()
        self._parents: dict[asyncio.Task[Any] | None, asyncio.Task[Any] | None] = {}
        """Of tasks that are cancelled with the one that waits for them."""

    def happens(self, ratio: float) -> bool:
        """Whether something of this ratio happens now."""
        return self.random.random() < ratio

    def complain(self, text: str) -> None:
        """Something that no application may be met with."""
        now_s = self.player.stage.world.now_s
        self.ledger.complaints.append(f"{now_s:.3f} s, {self.player.client!r}: {text}")
        self.player.stage.world.note(f"COMPLAINT: {text}")

    async def think(self) -> None:
        """Mostly for a moment, now and then for longer than every timeout."""
        if self.happens(self.habits.long_ratio):
            self.ledger.counts["long thoughts"] += 1
            await asyncio.sleep(self.random.uniform(0.5, 1.0) * LONG_S)
        else:
            await self.player.pause(30)

    async def call(
        self, name: str, make: Callable[[], Awaitable[ResultT]], limit_ms: float
    ) -> ResultT:
        """One call; ``InterruptedCallError`` if the program has cancelled it meanwhile."""
        if not self.happens(self.habits.cancel_ratio):
            return await self.timed(name, make, limit_ms)
        delay_s = self.random.choice((0.0, 0.002, 0.05, 1.0)) * self.random.random()
        return await self.cancelled(name, make, limit_ms, delay_s)

    async def cancelled(
        self, name: str, make: Callable[[], Awaitable[ResultT]], limit_ms: float, delay_s: float
    ) -> ResultT:
        """A call that is cancelled after a while, unless it has ended before."""
        # Not ensure_future: what is thrown away with its loop would begin it on another one.
        task = asyncio.get_running_loop().create_task(self.timed(name, make, limit_ms))
        await asyncio.sleep(0)  # A call that is cancelled before it begins is none.
        await asyncio.wait({task}, timeout=delay_s)
        if not task.done():
            self.ledger.counts[f"cancelled {name}"] += 1
            self._cancelled.add(task)
            task.cancel()
            await asyncio.wait({task}, timeout=SLACK_MS / 1_000)
            if not task.done():
                self.complain(f"{name} goes on although it was cancelled")
                raise InterruptedCallError(name)
        if task.cancelled():
            raise InterruptedCallError(name)
        return task.result()

    async def twice(
        self,
        name: str,
        make: Callable[[], Awaitable[object]],
        limit_ms: float,
        cancel_after_s: float | None = None,
    ) -> list[BaseException | None]:
        """Two tasks make the same call of the same client at once; what each of them raised."""
        self.ledger.counts[f"twin {name}"] += 1
        if cancel_after_s is None:
            twins = [self.timed(name, make, limit_ms) for _ in range(2)]
        else:
            twins = [self.cancelled(name, make, limit_ms, cancel_after_s) for _ in range(2)]
        tasks = [asyncio.get_running_loop().create_task(twin) for twin in twins]
        self._parents.update(dict.fromkeys(tasks, asyncio.current_task()))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return [result if isinstance(result, BaseException) else None for result in results]

    async def timed(
        self, name: str, make: Callable[[], Awaitable[ResultT]], limit_ms: float
    ) -> ResultT:
        """One call; complains if it takes too long, or raises what it should not."""
        loop = asyncio.get_running_loop()
        is_over = False

        # On the client's own timers, and twice: a process that was paused has to end its call.
        def look(is_last: bool) -> None:
            if not is_over and is_last:
                self.complain(f"{name} lasts longer than {limit_ms} ms")
            elif not is_over:
                loop.call_later(1.0, look, True)

        timer = loop.call_later((limit_ms + SLACK_MS) / 1_000, look, False)
        try:
            return await make()
        except OncelogError as error:
            self.ledger.counts[f"{name}: {type(error).__name__}"] += 1
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not {task, self._parents.get(task, task)} & self._cancelled:
                self.complain(f"{name} was cancelled by nobody")
            raise
        except Exception as error:
            self.complain(f"{name} raised {error!r}")
            raise InterruptedCallError(name) from error
        finally:
            is_over = True
            timer.cancel()


# --- reading ----------------------------------------------------------------------------------


class Reading(ConsumerRebalanceListener):
    """One consumer of the group, and what it has delivered of each partition since it has it."""

    def __init__(self, caller: Caller, consumer: AsyncConsumer) -> None:
        self.caller = caller
        self.consumer = consumer
        self.inbox: list[ConsumerRecord] = []
        """Delivered, and in no transaction yet."""
        self.commit_first: Callable[[], Awaitable[None]] | None = None
        """Of a program that commits what is open before its partitions are given up."""
        self._next: dict[TopicPartition, tuple[object, int]] = {}

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """They may come back from what is committed, which is more if that is done first."""
        self._forget(partitions)
        if self.commit_first is not None:
            await self.commit_first()

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """They may come back from what is committed."""
        self._forget(partitions)

    def _forget(self, partitions: frozenset[TopicPartition]) -> None:
        for tp in partitions:
            self._next.pop(tp, None)
        self.inbox = [record for record in self.inbox if record.topic_partition not in partitions]

    async def read(self) -> None:
        """Put into the inbox what one poll brings, or two at once, or a few steps of iteration."""
        caller, consumer = self.caller, self.consumer
        timeout_ms, count = caller.random.choice((0, 50, 300)), caller.random.randint(1, 6)
        limit_ms = timeout_ms + (0 if self.commit_first is None else LISTENER_MAX_MS)

        async def poll() -> None:
            self._take(await consumer.poll(timeout_ms, count))

        iterates = caller.happens(caller.habits.iterate_ratio)
        if caller.happens(caller.habits.twin_ratio):
            if iterates:
                errors = await caller.twice("anext", self._step, ITERATION_MAX_MS, ITERATION_S)
            else:
                errors = await caller.twice("poll", poll, limit_ms)
            for error in errors:
                if error is not None and not isinstance(error, TOLERATED):
                    raise error
            return
        try:
            if iterates:
                for _ in range(count):
                    await caller.cancelled("anext", self._step, ITERATION_MAX_MS, ITERATION_S)
            else:
                await caller.call("poll", poll, limit_ms)
        except InterruptedCallError:
            caller.ledger.counts["reads interrupted"] += 1

    async def _step(self) -> None:
        """One record of an iteration, which is broken off; others wait for the next call."""
        self._take([await anext(self.consumer)])

    def _take(self, records: list[ConsumerRecord]) -> None:
        """Nothing comes twice, or is left out, while the consumer has the partition."""
        given_up = self.consumer.group_metadata().given_up
        for record in records:
            tp = record.topic_partition
            taken = given_up.get(tp)
            held_since = None if taken is None else taken.given_up_at
            before, expected = self._next.get(tp, (held_since, record.offset))
            if before == held_since and record.offset != expected:
                self.caller.complain(f"{tp} delivers {record.offset} where {expected} is due")
            self._next[tp] = (held_since, record.offset + 1)
        self.inbox += records
        self.caller.ledger.counts["records read"] += len(records)

    async def rewind(self) -> None:
        """Go back to what is committed: what is not, is nobody's."""
        if self.consumer.assignment():
            await self.caller.call("seek", self.consumer.seek_to_committed, 0)
        self._next.clear()
        self.inbox.clear()

    async def close_while_polling(self, limit_ms: float) -> None:
        """Another task closes the consumer, which ends the poll of the first."""
        caller = self.caller

        async def poll() -> None:
            self._take(await self.consumer.poll(60_000))

        polling = asyncio.get_running_loop().create_task(caller.timed("poll", poll, limit_ms))
        await asyncio.sleep(0.01)
        await caller.timed("close of consumer", self.consumer.close, limit_ms)
        await asyncio.wait({polling}, timeout=SLACK_MS / 1_000)
        if not polling.done():
            caller.complain("a poll outlives the close of its consumer")
            return
        error = polling.exception()
        if error is not None and not isinstance(error, ClientClosedError):
            raise error
