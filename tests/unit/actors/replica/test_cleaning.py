"""Compaction beside a serving replica, on an event loop whose time jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from actor_environment import InlineBackground
from replicas import FLIGHTS, leading, replica_of
from virtual_time import START_MS, run_virtually

from oncelog.actors.config import ClusterConfig, internal_topic_config
from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.replica.maintenance import clean_if_dirty, compaction_settings
from oncelog.actors.replica.replica import Replica
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from oncelog.storage.records.batch import parse_header
from oncelog.storage.records.codec import encode_records


def play(directory: Path, scenario: Callable[[Replica], Any], **settings: str) -> Any:
    settings = {"segment_bytes": "65536", "cleanup_policy": "compact"} | settings

    async def run() -> Any:
        replica: Replica = replica_of(
            FLIGHTS,
            directory,
            leading(settings=tuple(settings.items())),
            environment={"background": InlineBackground()},
        )
        await replica.start()
        assert replica.failure is None
        try:
            return await scenario(replica)
        finally:
            await replica.stop()

    return run_virtually(run())


async def write(replica: Replica, count: int = 400, value_bytes: int = 1_000) -> None:
    records = [
        LogRecord(b"%d" % (number % 5), b"%d" % number + b"v" * value_bytes)
        for number in range(count)
    ]
    for first in range(0, count, 5):
        outcome = replica.append(records[first : first + 5], now_ms=START_MS)
    assert await replica.committed(outcome.next_offset) is ErrorCode.NONE


def newest(replica: Replica) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for batch in replica.replay() for record in batch.records}


def test_dirty_log_becomes_small_and_keeps_the_newest_values(tmp_path):
    async def scenario(replica):
        await write(replica)
        before = newest(replica)
        result = await clean_if_dirty(replica, now_ms=START_MS)
        assert result.bytes_after < result.bytes_before / 10
        assert newest(replica) == before
        assert await clean_if_dirty(replica, now_ms=START_MS) is None
        await write(replica, 1)

    play(tmp_path, scenario)


def test_log_that_is_not_dirty_enough_is_left_alone(tmp_path):
    async def scenario(replica):
        await write(replica, 10)
        assert await clean_if_dirty(replica, now_ms=START_MS) is None

    play(tmp_path, scenario)


def test_values_that_an_open_transaction_may_replace_are_kept(tmp_path):
    """1. Much is written. 2. As much again, in a transaction that is open. 3. Compaction keeps
    the newest values before it, as it may abort.
    """

    def settled(replica):
        stable = replica.machine.last_stable_offset
        batches = [batch for batch in replica.replay() if batch.header.base_offset < stable]
        return {record.key: record.value for batch in batches for record in batch.records}

    async def scenario(replica):
        await write(replica)
        before, end = settled(replica), replica.machine.log_end_offset
        for number in range(40):
            batch = encode_records(
                [(b"%d" % key, b"replaced" * 1_000, START_MS, ()) for key in range(5)],
                producer_id=7,
                producer_epoch=0,
                base_sequence=5 * number,
                is_transactional=True,
            )
            outcome = replica.write(batch, parse_header(batch), None, now_ms=START_MS)
        assert await replica.committed(outcome.next_offset) is ErrorCode.NONE
        assert replica.machine.last_stable_offset == end < replica.machine.high_watermark
        result = await clean_if_dirty(replica, now_ms=START_MS)
        assert 0 < result.first_dirty_offset <= end
        assert settled(replica) == before

    play(tmp_path, scenario)


def test_compaction_keeps_to_its_rate(tmp_path):
    """Compaction reads what it compacts twice: once for keys, once for records."""

    async def scenario(replica):
        await write(replica, 2_000)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        result = await clean_if_dirty(replica, now_ms=START_MS, bytes_per_second=1_000_000)
        assert result.bytes_read > 3_000_000
        assert loop.time() - begun_s == pytest.approx(result.bytes_read / 1_000_000, rel=0.15)

    play(tmp_path, scenario)


def test_appends_and_reads_go_on_between_the_pieces(tmp_path):
    async def scenario(replica):
        await write(replica, 2_000)
        cleaning = asyncio.create_task(clean_if_dirty(replica, now_ms=START_MS))
        rounds = 0
        while not cleaning.done():
            await write(replica, 1)
            assert len(newest(replica)) == 5
            await asyncio.sleep(0.01)
            rounds += 1
        assert rounds > 5
        assert (await cleaning).is_complete
        assert replica.failure is None

    play(tmp_path, scenario)


def test_compaction_that_is_not_wanted_any_more_is_given_up_and_leaves_nothing(tmp_path):
    async def scenario(replica):
        await write(replica, 2_000)
        before = newest(replica)
        answers = iter([True, True])
        result = await clean_if_dirty(
            replica, now_ms=START_MS, is_wanted=lambda: next(answers, False)
        )
        assert result is None
        assert newest(replica) == before
        assert not list((tmp_path / "flights-0").glob("*.cleaned"))

    play(tmp_path, scenario)


def test_replica_that_goes_offline_ends_the_compaction(tmp_path):
    async def scenario(replica):
        await write(replica, 2_000)
        cleaning = asyncio.create_task(clean_if_dirty(replica, now_ms=START_MS))
        await asyncio.sleep(0.05)
        await replica.stop()
        assert await cleaning is None

    play(tmp_path, scenario)


@pytest.mark.parametrize("topic", [TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC])
def test_internal_logs_are_compacted(topic):
    assert internal_topic_config(topic, ClusterConfig()).is_compacted
    settings = compaction_settings(internal_topic_config(topic, ClusterConfig()))
    assert (settings.min_dirty_ratio, settings.delete_retention_ms) == (0.5, 86_400_000)
