"""The futures of records share the outcome of their batch."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable

import pytest
from deadlines import DEADLINE_S

from oncelog.api.batching.delivery import (
    BatchDelivery,
    BatchMetadata,
    RecordFuture,
    RecordMetadata,
    TableDelivery,
)
from oncelog.api.batching.open_batches import OpenBatches
from oncelog.storage.exceptions import InvalidRecordError, InvalidTimestampError
from oncelog.storage.model import TopicPartition

T0 = TopicPartition("t", 0)
MakeFutures = Callable[[BatchDelivery, int], list[RecordFuture]]


@pytest.fixture
def make() -> MakeFutures:
    """Makes the futures of the records of one batch; record n has the timestamp 100 + n."""
    batches = OpenBatches(
        known_topics={}, now_ms=int, batch_bytes=1, record_bytes_max=1, buffer_bytes_max=1
    )

    def futures(delivery: BatchDelivery, count: int) -> list[RecordFuture]:
        batch = batches.new_batch(delivery, 0.0)
        return [batches.put(batch, (None, b"", 100 + n, ()), 1) for n in range(count)]

    return futures


def test_each_record_has_its_own_offset_and_timestamp(make: MakeFutures) -> None:
    delivery = BatchDelivery(T0, 2)
    futures = make(delivery, 2)
    delivery.finish(40, -1)
    assert [future.result(0) for future in futures] == [
        RecordMetadata("t", 0, 40, 100),
        RecordMetadata("t", 0, 41, 101),
    ]


def test_the_append_time_of_the_log_replaces_the_clients(make: MakeFutures) -> None:
    delivery = BatchDelivery(T0, 1)
    delivery.finish(0, 777)
    assert make(delivery, 1)[0].result(0).timestamp_ms == 777


def test_a_duplicate_too_old_to_be_placed_has_no_offset(make: MakeFutures) -> None:
    delivery = BatchDelivery(T0, 2)
    delivery.finish(-1, -1)
    assert make(delivery, 2)[1].result(0).offset == -1


def test_a_result_that_is_not_there_in_time_raises_timeout(make: MakeFutures) -> None:
    (future,) = make(BatchDelivery(T0, 1), 1)
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(0)
    with pytest.raises(concurrent.futures.TimeoutError):
        future.exception(0)
    assert future.running()


def test_a_waiting_thread_is_woken(make: MakeFutures) -> None:
    delivery = BatchDelivery(T0, 1)
    (future,) = make(delivery, 1)
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(future.result(DEADLINE_S).offset))
    thread.start()
    delivery.finish(3, -1)
    thread.join(DEADLINE_S)
    assert got == [3]


def test_a_failure_is_raised_by_every_future_of_the_batch(make: MakeFutures) -> None:
    delivery = BatchDelivery(T0, 2)
    futures = make(delivery, 2)
    delivery.finish(error=InvalidRecordError("bad"))
    for future in futures:
        with pytest.raises(InvalidRecordError, match="bad"):
            future.result(0)
        assert isinstance(future.exception(0), InvalidRecordError)


def test_the_neighbours_of_a_refused_record_raise_an_error_of_their_own(
    make: MakeFutures,
) -> None:
    delivery = BatchDelivery(T0, 3)
    futures = make(delivery, 3)
    error, other = InvalidTimestampError("too old"), InvalidRecordError("a neighbour is too old")
    delivery.finish(error=error, refused=(1,), neighbours=other)
    assert [future.exception(0) for future in futures] == [other, error, other]
    assert delivery.error is error


def test_the_first_outcome_stays(make: MakeFutures) -> None:
    delivery = BatchDelivery(T0, 1)
    delivery.finish(3, -1)
    delivery.finish(error=InvalidRecordError("late"))
    assert make(delivery, 1)[0].result(0).offset == 3


def test_a_record_on_its_way_cannot_be_cancelled(make: MakeFutures) -> None:
    (future,) = make(BatchDelivery(T0, 1), 1)
    assert not future.cancel()
    assert not future.cancelled()


def test_asyncio_can_wait_for_it(make: MakeFutures) -> None:
    delivery = BatchDelivery(T0, 1)
    (future,) = make(delivery, 1)

    async def wait() -> RecordMetadata:
        asyncio.get_running_loop().call_soon(delivery.finish, 3, -1)
        return await asyncio.wrap_future(future)

    assert isinstance(future, concurrent.futures.Future)
    assert asyncio.run(wait()).offset == 3


def test_callbacks_run_when_done_and_at_once_afterwards(make: MakeFutures) -> None:
    delivery = BatchDelivery(T0, 1)
    (future,) = make(delivery, 1)
    called: list[str] = []
    future.add_done_callback(lambda _: called.append("before"))
    assert called == []
    delivery.finish(0, -1)
    future.add_done_callback(lambda _: called.append("after"))
    assert called == ["before", "after"]


def test_a_callback_that_raises_is_logged_and_stops_nobody(
    make: MakeFutures,
    caplog: pytest.LogCaptureFixture,
) -> None:
    delivery = BatchDelivery(T0, 1)
    (future,) = make(delivery, 1)
    called: list[str] = []

    def wrong(_: object) -> None:
        raise KeyError("mine")

    future.add_done_callback(wrong)
    future.add_done_callback(lambda _: called.append("second"))
    with caplog.at_level(logging.ERROR):
        delivery.finish(0, -1)
    assert called == ["second"]
    assert "callback" in caplog.text


@pytest.mark.parametrize("is_early", [True, False])
def test_wait_of_the_standard_library_sees_success_and_failure(
    make: MakeFutures, is_early: bool
) -> None:
    good, bad = BatchDelivery(T0, 1), BatchDelivery(T0, 1)
    futures = [*make(good, 1), *make(bad, 1)]
    if not is_early:
        assert not concurrent.futures.wait(futures, timeout=0).done
    good.finish(0, -1)
    bad.finish(error=InvalidRecordError("bad"))
    assert concurrent.futures.wait(futures, timeout=DEADLINE_S).done == set(futures)
    assert "finished" in repr(futures[0])


def test_a_split_batch_is_done_when_both_parts_are_and_keeps_the_order(make: MakeFutures) -> None:
    delivery = BatchDelivery(T0, 5)
    futures = make(delivery, 5)
    first, second = delivery.split((2, 3))
    second.finish(20, -1)
    assert not delivery.is_done
    first.finish(10, -1)
    assert [future.result(0).offset for future in futures] == [10, 11, 20, 21, 22]
    assert list(delivery.metadata()) == [
        BatchMetadata("t", 0, 10, 2),
        BatchMetadata("t", 0, 20, 3),
    ]


def test_a_split_batch_fails_with_its_parts_one_by_one(make: MakeFutures) -> None:
    delivery = BatchDelivery(T0, 2)
    futures = make(delivery, 2)
    first, second = delivery.split((1, 1))
    first.finish(10, -1)
    second.finish(error=InvalidRecordError("bad"))
    assert futures[0].exception(0) is None
    assert isinstance(futures[1].exception(0), InvalidRecordError)
    assert isinstance(delivery.error, InvalidRecordError)


def test_a_table_is_done_only_after_its_last_batch_was_added() -> None:
    table = TableDelivery()
    batches = [BatchDelivery(T0, 2), BatchDelivery(T0, 1)]
    table.add(batches[0])
    batches[0].finish(0, -1)
    assert not table.future.done()
    table.add(batches[1])
    table.seal()
    assert not table.future.done()
    batches[1].finish(2, -1)
    assert table.future.result(0) == (BatchMetadata("t", 0, 0, 2), BatchMetadata("t", 0, 2, 1))


def test_an_empty_table_is_done_at_once() -> None:
    table = TableDelivery()
    table.seal()
    assert table.future.result(0) == ()


def test_a_table_with_a_failed_batch_raises_its_error() -> None:
    table = TableDelivery()
    delivery = BatchDelivery(T0, 2)
    table.add(delivery)
    table.seal()
    delivery.finish(error=InvalidRecordError("bad"))
    assert isinstance(table.future.exception(0), InvalidRecordError)
