"""``Queue`` and ``AsyncQueue``: any number of workers share the records of topics, one by one.

    with cluster.queue("tasks", group_id="resize") as queue:
        while True:
            for record in queue.take(max_records=10, timeout_ms=1_000):
                work(record)
                queue.accept(record)

A record is with one worker at a time. Its lock lives as long as the worker: when that dies the
record is delivered to another one. To have each result once, accept the record in the transaction
that writes the result::

    with producer.transaction():
        producer.send("results", value=work(record))
        producer.send_acknowledgements_to_transaction(record, queue)

Only committed records are delivered. Records are delivered about in order of their offsets, but
several workers work on them at once, also on those of one key. With ``order="key"`` a record is
delivered once all records of its key before it are accepted or rejected. Source: KIP-932, KIP-1289.

One file: the two are one interface, documented once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TypeAlias

from oncelog.actors.protocol.messages.share import AcknowledgeType
from oncelog.api.config import QueueSettings
from oncelog.api.queueing.core import QueueCore
from oncelog.api.records import QueueAcknowledgements, QueueBacklog, QueueRecord
from oncelog.api.session.event_loop import (
    Blocking,
    LoopThread,
    ProcessBound,
    blocking,
    close_if_forgotten,
)
from oncelog.api.session.routing import Router
from oncelog.storage.exceptions import InvalidRequestError, InvalidTopicError
from oncelog.storage.model import TOPIC_NAME_RULE, is_valid_topic_name

QueueRecords: TypeAlias = QueueRecord | Iterable[QueueRecord]


class AsyncQueue(ProcessBound):
    """``Queue`` for asyncio, with the same methods. Belongs to one event loop.

    Make it with ``cluster.async_queue(...)`` and close it.
    """

    make_there = "pass its settings and make one there with cluster.queue(...)"

    def __init__(
        self,
        router: Router,
        settings: QueueSettings,
        topics: str | Iterable[str],
        random: Random,
        *,
        call_soon: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        self._core = QueueCore(
            router=router,
            settings=settings,
            topics=_checked_topics(topics),
            random=random,
            call_soon=call_soon or asyncio.get_running_loop().call_soon_threadsafe,
        )

    @property
    def settings(self) -> QueueSettings:
        """The settings the queue was made with."""
        return self._core.settings

    async def take(
        self, max_records: int | None = None, timeout_ms: float = 1_000
    ) -> list[QueueRecord]:
        """Take up to ``max_records`` records (default ``max_poll_records``), 1 to 10,000.

        Waits up to ``timeout_ms`` for the first one, then returns an empty list. The worker holds
        what is returned until it is acknowledged, durably: a coordinator that moves knows it.

        ``UnknownTopicOrPartitionError`` if a topic is missing. ``InconsistentGroupProtocolError``
        if the group is a consumer group. ``InvalidRecordStateError`` if an earlier ``accept`` or
        ``reject`` was refused; see ``flush``. ``CorruptRecordError`` for damaged records, once:
        they are rejected, as nobody can read them.
        """
        records = await self._core.take(_checked_count(max_records, self.settings), timeout_ms)
        self._core.delivered()
        return records

    def accept(self, records: QueueRecords) -> None:
        """Finish records: they are never delivered again. Sent soon, durable after ``flush``.

        ``InvalidRecordStateError`` if the worker does not hold one of them: it was acknowledged
        already, or its lock has ended. Then none is accepted.
        """
        self._core.acknowledge(records, AcknowledgeType.ACCEPT)

    def release(self, records: QueueRecords) -> None:
        """Give records back, to be delivered again to any worker. See ``accept``."""
        self._core.acknowledge(records, AcknowledgeType.RELEASE)

    def reject(self, records: QueueRecords) -> None:
        """Drop records: they are never delivered again. See ``accept``."""
        self._core.acknowledge(records, AcknowledgeType.REJECT)

    def renew(self, records: QueueRecords) -> None:
        """Work on records for another ``record_lock_duration_ms``. See ``accept``."""
        self._core.renew(records)

    def acknowledgements(self, records: QueueRecords) -> QueueAcknowledgements:
        """What ``send_acknowledgements_to_transaction`` sends; the worker no longer holds them."""
        return self._core.acknowledgements(records)

    def unsent(self, given: QueueAcknowledgements) -> None:
        """A transaction could not accept these: they are released."""
        self._core.unsent(given)

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until all that was acknowledged is durable.

        ``InvalidRecordStateError`` names records that were accepted or rejected after their lock
        had ended: they are delivered again, so what was done for them may be done twice. Each is
        named once. ``RequestTimedOutError`` after ``timeout_ms`` (default
        ``default_api_timeout_ms``): they are still being sent.
        """
        await self._core.flush(timeout_ms)

    async def backlog(self) -> QueueBacklog:
        """What is not finished, and how old the oldest of it is; for an autoscaler."""
        return await self._core.backlog()

    async def close(self) -> None:
        """Send what was acknowledged, release what was not, and leave the group.

        Raises as ``flush`` does, and leaves even then.
        """
        await self._core.close()

    async def __aenter__(self) -> AsyncQueue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Queue(Blocking[AsyncQueue], ProcessBound):
    """A worker's share of a queue; see the top of this page.

    Make it with ``cluster.queue(...)``; use it as a context manager or ``close`` it. Methods made
    with ``blocking`` are documented in ``AsyncQueue``. Any thread may use it.
    """

    make_there = "pass its settings and make one there with cluster.queue(...)"

    def __init__(
        self,
        router: Router,
        loop_thread: LoopThread,
        settings: QueueSettings,
        topics: str | Iterable[str],
        random: Random,
    ) -> None:
        client = AsyncQueue(router, settings, topics, random, call_soon=loop_thread.call_soon)
        super().__init__(loop_thread, client)
        loop_thread.call_when_closed(client._core._report.stop)
        close_if_forgotten(self, loop_thread, client._core)

    @property
    def settings(self) -> QueueSettings:
        """The settings the queue was made with."""
        return self._client.settings

    def take(self, max_records: int | None = None, timeout_ms: float = 1_000) -> list[QueueRecord]:
        """See ``AsyncQueue.take``. After Ctrl-C the next call returns what it had taken."""
        core = self._client._core
        count = _checked_count(max_records, self.settings)
        records = self._loop_thread.run(core.take(count, timeout_ms))
        core.delivered()
        return records

    def accept(self, records: QueueRecords) -> None:
        """See ``AsyncQueue.accept``."""
        self._client.accept(records)

    def release(self, records: QueueRecords) -> None:
        """See ``AsyncQueue.release``."""
        self._client.release(records)

    def reject(self, records: QueueRecords) -> None:
        """See ``AsyncQueue.reject``."""
        self._client.reject(records)

    def renew(self, records: QueueRecords) -> None:
        """See ``AsyncQueue.renew``."""
        self._client.renew(records)

    def acknowledgements(self, records: QueueRecords) -> QueueAcknowledgements:
        """See ``AsyncQueue.acknowledgements``."""
        return self._client.acknowledgements(records)

    def unsent(self, given: QueueAcknowledgements) -> None:
        """See ``AsyncQueue.unsent``."""
        self._client.unsent(given)

    flush = blocking(AsyncQueue.flush)
    backlog = blocking(AsyncQueue.backlog)
    close = blocking(AsyncQueue.close)

    def __enter__(self) -> Queue:
        """Return the queue itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _checked_topics(topics: str | Iterable[str]) -> Sequence[str]:
    names = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    if not names:
        raise InvalidRequestError("topics is empty: name one topic or more")
    for name in names:
        if not is_valid_topic_name(name):
            raise InvalidTopicError(f"{name!r} is not a topic name: {TOPIC_NAME_RULE}")
    return names


def _checked_count(max_records: int | None, settings: QueueSettings) -> int:
    count = settings.max_poll_records if max_records is None else max_records
    if not 1 <= count <= 10_000:
        raise InvalidRequestError(f"max_records={count}: give 1 to 10,000")
    return count
