"""Producers: ``Producer`` for threads, ``AsyncProducer`` the same with ``await``.

Every producer is idempotent: a record lands once, in order, whatever is retried. With a
``transactional_id`` records and consumer offsets become visible all at once or not at all::

    producer.init_transactions()
    with producer.transaction():
        producer.send("flights", value=b"...", key=b"EWR")
        producer.send_offsets_to_transaction({partition: offset}, consumer.group_metadata())

Errors of a transaction: ``abortable`` ones ask for ``abort_transaction``, ``fatal`` ones for a new
producer. A call that timed out may have taken effect: make the same call again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from random import Random
from types import TracebackType
from typing import Final

from oncelog.actors.protocol.group.offsets import (
    Refusal,
    refusal_of_count,
    refusal_of_position,
)
from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.core import ProducerCore, check_token
from oncelog.api.producing.metrics import ProducerMetrics, metrics_of
from oncelog.api.producing.sending import AsyncSending, SyncSending
from oncelog.api.session.event_loop import LoopThread, close_if_forgotten
from oncelog.api.session.routing import Router
from oncelog.api.transacting.requests import GroupMetadata
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    InvalidGroupIdError,
    InvalidRequestError,
    OncelogError,
    exception_for,
)
from oncelog.storage.model import (
    GROUP_ID_MAX_BYTES,
    TopicPartition,
    is_valid_group_id,
    utf8_bytes,
)

__all__ = ["AsyncProducer", "Producer", "ProducerMetrics"]

Offsets = Mapping[TopicPartition, "int | OffsetAndMetadata"]

GENERATION_ID_MAX: Final = 2**31 - 1


class Producer(SyncSending):
    """Sends records, from any thread. Make it with ``cluster.producer(...)``; close it."""

    def __init__(
        self,
        router: Router,
        loop_thread: LoopThread,
        settings: ProducerSettings,
        *,
        random: Random,
    ) -> None:
        self.settings = settings
        self._core = ProducerCore(
            router=router, settings=settings, random=random, loop=loop_thread.loop
        )
        super().__init__(self._core.sender, loop_thread)
        close_if_forgotten(self, loop_thread, self._core)

    def init_transactions(self) -> bytes | None:
        """Take over the transactional id: older producers with it are fenced from now on.

        What they left open is aborted first. Returns the commit token of the last committed
        transaction, ``None`` if it had none, by which a restarted program knows what is done.
        """
        return self._loop_thread.run(self._core.init_transactions())

    def begin_transaction(self) -> None:
        """Open a transaction. Makes no call; the coordinator learns of it with the first record."""
        self._loop_thread.check()
        self._core.begin_transaction()

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit the next offsets to read of a consumer group with the transaction (KIP-447).

        ``group`` is ``consumer.group_metadata()``; at most 10,000 offsets per call. A member that
        has been replaced is refused with an abortable error, and so is whatever is given after a
        rebalance has taken a partition that was read for this transaction: that is read again.
        Impossible arguments are refused before anything is sent: ``TypeError``,
        ``InvalidRequestError``, ``InvalidTopicError``, ``InvalidGroupIdError`` or
        ``OffsetMetadataTooLargeError`` names the value. Offsets of a topic that was deleted and
        created again are refused. Those of one that is only deleted are, too, once the coordinator
        has heard of it, within minutes; until then they are taken, as what was read is no less
        true, and go with the topic. Once this raises anything, even ``KeyboardInterrupt``, the
        transaction can only be aborted.
        """
        try:
            self._loop_thread.run(self._core.send_offsets(_checked_offsets(offsets, group), group))
        except BaseException as error:
            self._core.offsets_refused(error)
            raise

    def commit_transaction(
        self, token: bytes | None = None, *, despite_refused_sends: bool = False
    ) -> bool:
        """Send what is buffered, wait for it, and commit; on return the transaction is decided.

        ``token``, at most 1 KiB, is stored with the decision and returned by
        ``init_transactions``. Returns whether all of it is already readable; ``False`` if a
        partition was unreachable. Raises an abortable error if a record failed, or if ``send``
        raised in the transaction, unless ``despite_refused_sends`` says to commit without that
        record. After ``RequestTimedOutError``, which comes within ``max_block_ms`` and leaves
        records on their way, call it again, with the same token. An id that
        remembers a version of an application's writes commits only later versions of it;
        anything else raises an abortable error.
        """
        return self._loop_thread.run(
            self._core.commit_transaction(token, despite_refused_sends=despite_refused_sends)
        )

    def abort_transaction(self) -> None:
        """Abort the transaction. After a timeout call it again."""
        self._loop_thread.run(self._core.abort_transaction())

    @contextlib.contextmanager
    def transaction(self, token: bytes | None = None) -> Iterator[Producer]:
        """A transaction as a block: commits at its end, aborts if an exception leaves it."""
        check_token(token)
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            # The error of the block matters more than a failed abort.
            with contextlib.suppress(OncelogError):
                self.abort_transaction()
            raise
        try:
            self.commit_transaction(token)
        except OncelogError as error:
            if error.abortable:
                with contextlib.suppress(OncelogError):
                    self.abort_transaction()
            raise

    def flush(self) -> None:
        """Send what is buffered and wait until the outcome of every record sent so far is known.

        Raises the first failure of the transaction. Outside transactions raises, once, a failure
        whose future was never examined; the others are logged and counted in ``metrics()``.
        """
        self._loop_thread.run(self._core.flush())

    def metrics(self) -> ProducerMetrics:
        """The producer's metrics."""
        return metrics_of(self._core)

    def close(self, timeout_ms: int | None = None) -> None:
        """Deliver what is buffered, or abort an open transaction, within the time; then stop.

        A commit that another thread waits for finishes first. May be called again. What is not
        done in time is left to the transaction timeout.
        """
        self._loop_thread.run(self._core.close(timeout_ms))

    def __enter__(self) -> Producer:
        """The producer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the producer; then raise what ``flush`` would, unless an error leaves the block."""
        self.close()
        if kind is None:
            self._core.raise_untold()


class AsyncProducer(AsyncSending):
    """``Producer`` for the event loop that it is made on."""

    def __init__(self, router: Router, settings: ProducerSettings, *, random: Random) -> None:
        self.settings = settings
        self._core = ProducerCore(
            router=router, settings=settings, random=random, loop=asyncio.get_running_loop()
        )
        super().__init__(self._core.sender)

    async def init_transactions(self) -> bytes | None:
        """See ``Producer.init_transactions``."""
        return await self._core.init_transactions()

    async def begin_transaction(self) -> None:
        """See ``Producer.begin_transaction``."""
        self._core.begin_transaction()

    async def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata) -> None:
        """See ``Producer.send_offsets_to_transaction``."""
        try:
            await self._core.send_offsets(_checked_offsets(offsets, group), group)
        except BaseException as error:
            self._core.offsets_refused(error)
            raise

    async def commit_transaction(
        self, token: bytes | None = None, *, despite_refused_sends: bool = False
    ) -> bool:
        """See ``Producer.commit_transaction``."""
        return await self._core.commit_transaction(
            token, despite_refused_sends=despite_refused_sends
        )

    async def abort_transaction(self) -> None:
        """See ``Producer.abort_transaction``."""
        await self._core.abort_transaction()

    @contextlib.asynccontextmanager
    async def transaction(self, token: bytes | None = None) -> AsyncIterator[AsyncProducer]:
        """See ``Producer.transaction``."""
        check_token(token)
        await self.begin_transaction()
        try:
            yield self
        except BaseException:
            with contextlib.suppress(OncelogError):
                await self.abort_transaction()
            raise
        try:
            await self.commit_transaction(token)
        except OncelogError as error:
            if error.abortable:
                with contextlib.suppress(OncelogError):
                    await self.abort_transaction()
            raise

    async def flush(self) -> None:
        """See ``Producer.flush``."""
        await self._core.flush()

    def metrics(self) -> ProducerMetrics:
        """What this producer has done so far."""
        return metrics_of(self._core)

    async def close(self, timeout_ms: int | None = None) -> None:
        """See ``Producer.close``."""
        await self._core.close(timeout_ms)

    async def __aenter__(self) -> AsyncProducer:
        """The producer itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the producer; then raise what ``flush`` would, unless an error leaves the block."""
        await self.close()
        if kind is None:
            self._core.raise_untold()


# --- checks -----------------------------------------------------------------------------------

_TEXT: Final = "a str"
_POSITION_TYPES: Final = {
    "offset": (int, "an int"),
    "leader_epoch": (int, "an int"),
    "metadata": (str, _TEXT),
    "topic_id": (str, _TEXT),
}


def _checked_offsets(
    offsets: Offsets, group: GroupMetadata
) -> dict[TopicPartition, OffsetAndMetadata]:
    """``offsets`` as they are sent, if a coordinator can take them from ``group``."""
    _check_group(group)
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets must be a mapping, not {type(offsets).__name__}")
    _raise(refusal_of_count(len(offsets)))
    return {tp: _checked_position(tp, offset, group) for tp, offset in offsets.items()}


def _checked_position(
    tp: object, offset: int | OffsetAndMetadata, group: GroupMetadata
) -> OffsetAndMetadata:
    if not isinstance(tp, TopicPartition):
        raise TypeError(
            f"offsets must map TopicPartition to the next offset to read, not {type(tp).__name__}"
        )
    _check_type(f"topic={tp.topic!r}", tp.topic, str, _TEXT)
    _check_type(f"partition={tp.partition!r} of {tp.topic!r}", tp.partition, int, "an int")
    if isinstance(offset, OffsetAndMetadata):
        position = offset
    elif isinstance(offset, int) and not isinstance(offset, bool):
        topic_id = group.topic_ids.get(tp.topic, "")
        position = OffsetAndMetadata(offset=offset, topic_id=topic_id)
    else:
        raise TypeError(
            f"the offset of {tp} must be an int of 0 or more, or OffsetAndMetadata, not {offset!r}"
        )
    for name, (kind, kind_name) in _POSITION_TYPES.items():
        value = getattr(position, name)
        _check_type(f"{name}={value!r:.80} of {tp}", value, kind, kind_name)
    _raise(refusal_of_position(tp, position))
    return position


def _check_group(group: GroupMetadata) -> None:
    names = ("group_id", "generation_id", "member_id", "group_instance_id", "topic_ids")
    if not all(hasattr(group, name) for name in names):
        raise TypeError(f"group must be what consumer.group_metadata() gives, not {group!r}")
    _check_type(f"group_id={group.group_id!r}", group.group_id, str, _TEXT)
    if not is_valid_group_id(group.group_id):
        raise InvalidGroupIdError(
            f"group_id={group.group_id!r:.80}: give 1 to {GROUP_ID_MAX_BYTES} bytes of UTF-8"
        )
    generation_id = group.generation_id
    _check_type(f"generation_id={generation_id!r}", generation_id, int, "an int")
    if not -1 <= generation_id <= GENERATION_ID_MAX:
        raise InvalidRequestError(f"generation_id={generation_id}: give -1 to {GENERATION_ID_MAX}")
    for name in ("member_id", "group_instance_id"):
        value = getattr(group, name)
        if value is None and name == "group_instance_id":
            continue
        _check_type(f"{name}={value!r}", value, str, _TEXT)
        if utf8_bytes(value) is None:
            raise InvalidRequestError(f"{name}={value!r:.80}: give text that UTF-8 can encode")
    if not isinstance(group.topic_ids, Mapping):
        raise TypeError(f"topic_ids={group.topic_ids!r} must be a mapping")


def _check_type(what: str, value: object, kind: type, kind_name: str) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{what} must be {kind_name}")


def _raise(refusal: Refusal) -> None:
    code, words = refusal
    if code is not ErrorCode.NONE:
        raise exception_for(code, words)
