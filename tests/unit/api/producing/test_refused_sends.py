"""A send that raised inside a transaction: what was not accepted is not silently left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.actors.protocol.messages.transaction import Run
from oncelog.api.batching.interceptors import ProducerInterceptor, ProducerRecord
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.member import AsyncTransactionMember, Membership
from oncelog.api.producing.producer import AsyncProducer, Producer
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.api.session.event_loop import LoopThread
from oncelog.storage.exceptions import TransactionAbortableError, UnknownTopicOrPartitionError
from oncelog.storage.model import TopicPartition

SETTINGS = ProducerSettings(transactional_id="loader", max_request_size=100)
MEMBERSHIP = Membership(transactional_id="query", run=Run(number=1, id="a"), token=b"batch-1")

REFUSAL = r"send\(\) rejected"

REFUSED: list[Callable[[Any], Any]] = [
    lambda producer: producer.send("t", b"." * 200),
    lambda producer: producer.send("t", "a string"),
    lambda producer: producer.send("t", b"a", headers=[("h", 1)]),
    lambda producer: producer.send("t", b"a", timestamp_ms=2**70),
    lambda producer: producer.send("missing", b"a"),
    lambda producer: producer.send("t", b"a", partition=7),
    lambda producer: producer.send_arrow("t", pa.table({"value": [b"a", b"." * 200]})),
    lambda producer: producer.send_arrow("t", pa.table({"nothing": [1]})),
]


@pytest.fixture
def threaded(cluster: Any) -> Iterator[Producer]:
    loop_thread = LoopThread()
    with Producer(cluster.router(), loop_thread, SETTINGS, random=Random(5)) as producer:
        producer.init_transactions()
        yield producer
    loop_thread.close()


@pytest.mark.parametrize("send", REFUSED)
def test_a_commit_after_a_refused_send_is_refused(cluster: Any, run: Any, send: Any) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = AsyncProducer(cluster.router(), SETTINGS, random=Random(5))
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send("t", b"first")
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is
            await send(producer)
        with pytest.raises(TransactionAbortableError, match=REFUSAL):
            await producer.flush()
        with pytest.raises(TransactionAbortableError, match="despite_refused_sends=True"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"next")
        await producer.close()

    run(story())
    assert leader.committed_values() == [b"next"]


@pytest.mark.parametrize("send", REFUSED[:4] + REFUSED[6:])
def test_threads_are_refused_as_well(cluster: Any, threaded: Producer, send: Any) -> None:
    cluster.create("t")
    threaded.begin_transaction()
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is
        send(threaded)
    with pytest.raises(TransactionAbortableError, match=REFUSAL):
        threaded.commit_transaction()
    threaded.abort_transaction()


def test_the_application_may_say_that_it_commits_without(cluster: Any, threaded: Producer) -> None:
    (leader,) = cluster.create("t")
    threaded.begin_transaction()
    threaded.send("t", b"first")
    with pytest.raises(TypeError):
        threaded.send("t", "a string")
    threaded.send("t", b"second")
    threaded.commit_transaction(despite_refused_sends=True)
    threaded.begin_transaction()
    threaded.send("t", b"third")
    threaded.commit_transaction()
    assert leader.committed_values() == [b"first", b"second", b"third"]


def test_a_block_aborts_if_a_refusal_in_it_was_caught(cluster: Any, threaded: Producer) -> None:
    (leader,) = cluster.create("t")

    def write() -> None:
        with threaded.transaction():
            threaded.send("t", b"first")
            with pytest.raises(TypeError):
                threaded.send("t", "a string")

    with pytest.raises(TransactionAbortableError, match=REFUSAL):
        write()
    with threaded.transaction():
        threaded.send("t", b"next")
    assert leader.committed_values() == [b"next"]


def test_a_refusal_outside_a_transaction_spoils_none(cluster: Any, threaded: Producer) -> None:
    (leader,) = cluster.create("t")
    with pytest.raises(TypeError):
        threaded.send("t", "a string")
    with threaded.transaction():
        threaded.send("t", b"first")
    assert leader.committed_values() == [b"first"]


def test_a_send_that_was_cancelled_while_it_waited_counts_as_refused(
    cluster: Any, run: Any
) -> None:
    async def story() -> None:
        producer = AsyncProducer(cluster.router(), SETTINGS, random=Random(5))
        await producer.init_transactions()
        await producer.begin_transaction()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(producer.send("missing", b"a"), 0.1)
        with pytest.raises(TransactionAbortableError, match=REFUSAL):
            await producer.commit_transaction()
        await producer.abort_transaction()
        await producer.close()

    run(story())


def test_a_member_that_was_refused_a_record_cannot_win(cluster: Any, run: Any) -> None:
    cluster.create("t")

    async def story() -> None:
        member = AsyncTransactionMember(
            cluster.router(), ProducerSettings(), MEMBERSHIP, random=Random(1)
        )
        await member.enlist()
        await member.send("t", b"first")
        with pytest.raises(UnknownTopicOrPartitionError):
            await member.send("missing", b"a")
        with pytest.raises(TransactionAbortableError, match=REFUSAL):
            await member.flush()
        with pytest.raises(TransactionAbortableError, match=REFUSAL):
            assert member.winner
        await member.close()

    run(story())


# --- interrupts and positions -----------------------------------------------------------------


class Interrupted(ProducerInterceptor):
    """Ctrl-C comes just while the first record is on its way through here."""

    def __init__(self) -> None:
        self.has_come = False

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        if not self.has_come:
            self.has_come = True
            raise KeyboardInterrupt
        return record


def intercepted() -> ProducerSettings:
    return ProducerSettings(transactional_id="loader", interceptors=(Interrupted(),))


def test_a_send_that_was_interrupted_counts_as_refused(cluster: Any) -> None:
    (leader,) = cluster.create("t")
    loop_thread = LoopThread()
    producer = Producer(cluster.router(), loop_thread, intercepted(), random=Random(5))
    producer.init_transactions()
    producer.begin_transaction()
    with pytest.raises(KeyboardInterrupt):
        producer.send("t", b"first")
    with pytest.raises(TransactionAbortableError, match="KeyboardInterrupt"):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("t", b"next")
    producer.close()
    loop_thread.close()
    assert leader.committed_values() == [b"next"]


def test_a_coroutine_whose_send_was_interrupted_is_refused_as_well(cluster: Any, run: Any) -> None:
    cluster.create("t")

    async def story() -> None:
        producer = AsyncProducer(cluster.router(), intercepted(), random=Random(5))
        await producer.init_transactions()
        await producer.begin_transaction()
        # Caught within the loop, which would end with it.
        with pytest.raises(KeyboardInterrupt):
            await producer.send("t", b"first")
        with pytest.raises(TransactionAbortableError, match="KeyboardInterrupt"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        await producer.close()

    run(story())


PLACE = TopicPartition("t", 0)
GROUP = ConsumerGroupMetadata(group_id="g")
WRONG_OFFSETS: list[tuple[Any, Any, str]] = [
    ({PLACE: "x"}, GROUP, "must be an int of 0 or more"),
    ({PLACE: 5.0}, GROUP, "must be an int of 0 or more"),
    ({"t": 1}, GROUP, "must map TopicPartition"),
    ([PLACE], GROUP, "must be a mapping, not list"),
    ({PLACE: 5}, None, r"group_metadata\(\) gives, not None"),
]
REFUSED_OFFSETS = r"send_offsets_to_transaction\(\) raised"


@pytest.mark.parametrize(("offsets", "group", "words"), WRONG_OFFSETS)
def test_a_transaction_does_not_commit_without_its_positions(
    cluster: Any, threaded: Producer, offsets: Any, group: Any, words: str
) -> None:
    (leader,) = cluster.create("t")
    threaded.begin_transaction()
    threaded.send("t", b"first")
    with pytest.raises(TypeError, match=words):
        threaded.send_offsets_to_transaction(offsets, group)
    with pytest.raises(TransactionAbortableError, match=REFUSED_OFFSETS):
        threaded.commit_transaction(despite_refused_sends=True)
    threaded.abort_transaction()
    with threaded.transaction():
        threaded.send("t", b"next")
    assert leader.committed_values() == [b"next"]


def test_wrong_positions_spoil_the_transaction_of_a_coroutine_and_no_other(
    cluster: Any, run: Any
) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = AsyncProducer(cluster.router(), SETTINGS, random=Random(5))
        await producer.init_transactions()
        for is_in_transaction in (False, True, False):
            if is_in_transaction:
                await producer.begin_transaction()
            with pytest.raises(TypeError):
                await producer.send_offsets_to_transaction({PLACE: "x"}, GROUP)  # type: ignore[dict-item]
            if is_in_transaction:
                with pytest.raises(TransactionAbortableError, match=REFUSED_OFFSETS):
                    await producer.flush()
                with pytest.raises(TransactionAbortableError, match=REFUSED_OFFSETS):
                    await producer.commit_transaction()
                await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"next")
        await producer.close()

    run(story())
    assert leader.committed_values() == [b"next"]


def test_positions_whose_call_was_interrupted_before_it_began_count_as_refused(
    cluster: Any, threaded: Producer, monkeypatch: Any
) -> None:
    """Ctrl-C while the thread waits; the loop has not even begun with them."""
    cluster.create("t")
    threaded.begin_transaction()

    def interrupted(coroutine: Any) -> None:
        coroutine.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threaded._loop_thread, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            threaded.send_offsets_to_transaction({PLACE: OffsetAndMetadata(offset=5)}, GROUP)
    with pytest.raises(TransactionAbortableError, match=REFUSED_OFFSETS):
        threaded.commit_transaction()
    threaded.abort_transaction()
