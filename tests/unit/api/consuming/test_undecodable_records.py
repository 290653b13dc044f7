"""A batch that no reader can decode, which under compression a leader cannot know."""

from __future__ import annotations

import pickle

import pytest

from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.storage.exceptions import CorruptRecordError
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import seal
from oncelog.storage.records.compression import Codec, compress

TP = TopicPartition("t", 0)


def poison(log) -> None:
    """Two offsets with a valid checksum over what are no records."""
    log.add(
        seal(
            compress(Codec.GZIP, b"no records at all"),
            codec=Codec.GZIP,
            record_count=2,
            base_timestamp_ms=0,
            max_timestamp_ms=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            is_transactional=False,
        )
    )


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("as_columns", [False, True])
def test_reader_gets_what_stands_before_then_an_error_and_may_seek_past_it(
    fake_cluster, run, as_columns, isolation_level
):
    (log,) = fake_cluster.create("t")
    log.append(b"0")
    log.append(b"1")
    poison(log)
    log.append(b"4")

    async def poll(consumer):
        if as_columns:
            table = await consumer.poll_arrow(1_000)
            return table.column("value").to_pylist()
        return [record.value for record in await consumer.poll(1_000)]

    async def scenario():
        settings = ConsumerSettings(auto_offset_reset="earliest", isolation_level=isolation_level)
        consumer = AsyncConsumer(fake_cluster.router(), settings, fake_cluster.random)
        await consumer.assign(TP)
        before = await poll(consumer)
        while len(before) < 2:
            before += await poll(consumer)
        for _ in range(2):
            with pytest.raises(CorruptRecordError, match="t-0 at offset 2") as caught:
                await poll(consumer)
        assert await consumer.position(TP) == 2
        error = pickle.loads(pickle.dumps(caught.value))
        assert (error.topic_partition, error.offset, error.next_offset) == (TP, 2, 4)
        await consumer.seek(TP, error.next_offset)
        return before, await poll(consumer)

    assert run(scenario()) == ([b"0", b"1"], [b"4"])


def test_records_below_the_position_are_not_named_again(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    poison(log)

    async def scenario():
        settings = ConsumerSettings(auto_offset_reset="earliest")
        consumer = AsyncConsumer(fake_cluster.router(), settings, fake_cluster.random)
        await consumer.assign(TP)
        await consumer.seek(TP, 1)
        with pytest.raises(CorruptRecordError) as caught:
            await consumer.poll(1_000)
        return caught.value.offset, caught.value.next_offset

    assert run(scenario()) == (1, 2)
