"""A log that should be there and is not: refused, told, never empty, and served once it is back."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from deadlines import to_its_end, until
from replicas import FLIGHTS, replica_of

from oncelog.actors.process.background import ThreadBackground
from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.replica import replica as replica_module
from oncelog.actors.replica.data_directory import (
    IDENTITY_FILE,
    DirectoryIdentity,
    prepare,
    write_identity,
)
from oncelog.actors.replica.events import ReplicaEvents
from oncelog.actors.replica.opening import ExpectedLog
from oncelog.actors.replica.replica import Replica
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.errors import ErrorCode
from oncelog.storage.log.side_files import TOPIC_ID_FILE, write_topic_id

DISK = RealFileSystem()
OURS = DirectoryIdentity(cluster_id="1" * 32, broker_id=1)


@pytest.fixture(autouse=True)
def _look_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "MISSING_LOG_RETRY_MS", 0)


async def led_once(harness: Any) -> Path:
    await harness.start()
    assert (await harness.produce(harness.batch(b"kept"))).error is ErrorCode.NONE
    await harness.replica.stop()
    return Path(harness.directory) / "flights-0"


@pytest.mark.parametrize(
    "loss", ["the directory", "what says the topic", "the files, and another topic has them"]
)
def test_a_log_that_was_led_and_is_missing_is_refused_until_it_is_back(
    harness: Any, tmp_path: Path, loss: str
) -> None:
    async def body() -> None:
        directory = await led_once(harness)
        kept = tmp_path / "kept"
        shutil.copytree(directory, kept)
        if loss == "the directory":
            shutil.rmtree(directory)
        else:
            (directory / "partition.metadata").unlink()
            (directory / TOPIC_ID_FILE).unlink()
        if loss == "the files, and another topic has them":
            write_topic_id(DISK, directory, "b" * 32)
        starting = asyncio.ensure_future(harness.start())
        await until(
            lambda: hasattr(harness, "leader") and harness.replica.failure is not None,
            "the log is missing",
        )
        assert "the log is missing" in harness.replica.failure
        assert str(directory) in harness.replica.failure
        reply = await harness.produce(harness.batch(b"lost"))
        assert reply.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert directory.exists() is (loss != "the directory")
        if directory.exists():
            assert (directory / f"{0:020d}.log").stat().st_size > 0
        shutil.copytree(kept, directory, dirs_exist_ok=True)
        await starting
        assert harness.replica.failure is None
        assert harness.replica.machine.log_end_offset == 1
        await harness.replica.stop()

    to_its_end(body())


def test_records_that_say_no_topic_are_not_thrown_away_for_a_new_one(harness: Any) -> None:
    async def body() -> None:
        directory = await led_once(harness)
        (directory / "partition.metadata").unlink()
        (directory / TOPIC_ID_FILE).unlink()
        harness.topic_id = "b" * 32
        starting = asyncio.ensure_future(harness.start())
        await until(lambda: harness.replica.failure is not None, "nothing says the topic")
        assert "has records" in harness.replica.failure
        await harness.replica.stop()
        await starting
        assert (directory / f"{0:020d}.log").stat().st_size > 0

    to_its_end(body())


def test_a_new_partition_bears_its_topic_before_it_asks_for_an_epoch(harness: Any) -> None:
    """1. A replica claims its directory. 2. It gets an epoch. 3. It dies before it leads. 4. The
    next start is told that the log was led, and finds it.
    """

    async def body() -> None:
        source = harness.epoch_source

        async def claimed(last_epoch: int) -> Any:
            assert "a" * 32 in (harness.directory / "flights-0" / "partition.metadata").read_text()
            return await source(last_epoch)

        harness.epoch_source = claimed
        await harness.start()
        assert harness.replica.failure is None
        await harness.replica.stop()

    to_its_end(body())


def test_a_replica_leads_only_in_the_directory_of_its_cluster(harness: Any, tmp_path: Path) -> None:
    async def body() -> None:
        data_dir = tmp_path / "data"
        replica = replica_of(
            FLIGHTS,
            data_dir,
            harness.epoch_source,
            environment={"log_source": harness.log_source},
            cluster_id=OURS.cluster_id,
        )
        starting = asyncio.ensure_future(replica.start())
        await until(lambda: IDENTITY_FILE in (replica.failure or ""), "the identity is missing")
        assert not data_dir.exists()
        data_dir.mkdir()
        write_identity(DISK, data_dir, dataclasses.replace(OURS, broker_id=2))
        await until(lambda: "broker 2, not of" in (replica.failure or ""), "it is another broker's")
        assert [path.name for path in data_dir.iterdir()] == [IDENTITY_FILE]
        write_identity(DISK, data_dir, OURS)
        await starting
        assert replica.failure is None
        assert replica.topic_partition == FLIGHTS
        await replica.stop()

    to_its_end(body())


def test_a_prepared_directory_is_founded_in_once(tmp_path: Path) -> None:
    first = prepare(DISK, tmp_path, broker_id=1, new_cluster_id="1" * 32)
    assert first.is_founding
    write_identity(DISK, tmp_path, dataclasses.replace(first, is_founding=False))
    assert not prepare(DISK, tmp_path, broker_id=1, new_cluster_id="2" * 32).is_founding


@pytest.mark.parametrize("answer", [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.KAFKA_STORAGE_ERROR])
def test_what_waited_while_its_topic_was_made_again_removes_nothing_of_the_new_one(
    harness: Any, answer: ErrorCode
) -> None:
    """The first answer is old by the time the directory is free: the topic has another id now, and
    its files are there. So it was for a replica in a host that missed the deletion.
    """

    async def body() -> None:
        directory = await led_once(harness)
        kept = {path.name: path.read_bytes() for path in directory.glob("*.log")}

        async def log_source() -> ExpectedLog | None:
            return ExpectedLog(topic_id="e" * 32, is_in_sync=False)

        async def beginning_source(topic_id: str) -> BecomeLeaderReply:
            assert topic_id == "e" * 32
            return BecomeLeaderReply(error=answer)

        replica = Replica(
            config=harness.replica.config,
            filesystem=DISK,
            clock=harness.clock,
            background=ThreadBackground(),
            events=ReplicaEvents(),
            epoch_source=harness.epoch_source,
            log_source=log_source,
            beginning_source=beginning_source,
        )
        starting = asyncio.ensure_future(replica.start())
        await until(lambda: replica.failure is not None)
        assert {path.name: path.read_bytes() for path in directory.glob("*.log")} == kept
        await replica.stop()
        await starting
        assert {path.name: path.read_bytes() for path in directory.glob("*.log")} == kept

    to_its_end(body())
