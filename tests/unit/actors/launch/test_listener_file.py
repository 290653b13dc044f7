"""When a process names its listener in the data directory, and when it leaves another's name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayError
from virtual_time import give_turns

from oncelog.actors.launch import listener_file
from oncelog.actors.launch.listener_file import ListenerFile
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.actors.replica.data_directory import DirectoryIdentity, write_identity
from oncelog.actors.rpc.listener import ListenerAddress
from oncelog.actors.rpc.listener_directory import LISTENER_FILE, NamedListener, read_named
from oncelog.storage.disk.file_system import RealFileHandle, RealFileSystem


class Processes:
    """Sees the processes whose ids are in ``living``; ``None`` for what it cannot see."""

    def __init__(self) -> None:
        self.living: dict[int, bool | None] = {}

    def lives(self, process: DriverProcess) -> bool | None:
        return self.living.get(process.process_id, False)


class Here:
    """Runs work at once, as a background of one's own does."""

    async def run(self, work: Any, *, is_small: bool = False) -> Any:
        del is_small
        return work()


def named(process_id: int, **changed: Any) -> NamedListener:
    fields: dict[str, Any] = {
        "cluster_id": "c1",
        "broker_id": 1,
        "actor": "controller",
        "address": ListenerAddress(host="h", port=process_id, token=b"t"),
        "ray_address": "a",
        "process": DriverProcess(machine="m", process_id=process_id, start_ticks=1),
    }
    return NamedListener(**{**fields, **changed})


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def file(tmp_path: Path, processes: Processes) -> ListenerFile:
    write_identity(RealFileSystem(), tmp_path, DirectoryIdentity(cluster_id="c1", broker_id=1))

    async def describe() -> NamedListener:
        return named(1)

    return ListenerFile(
        tmp_path,
        describe,
        filesystem=RealFileSystem(),
        background=Here(),
        processes=processes,
    )


def test_only_its_user_may_read_the_file(tmp_path: Path, file: ListenerFile) -> None:
    file.write(named(1))
    assert read_named(tmp_path) == named(1)
    assert (tmp_path / LISTENER_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("lives", "expected"), [(True, 2), (False, 1), (None, 1)])
def test_who_lives_stays_named_and_who_does_not_is_replaced(
    tmp_path: Path, file: ListenerFile, processes: Processes, lives: bool | None, expected: int
) -> None:
    """One that cannot be seen from here is of another machine, which had the disk before."""
    processes.living[2] = lives
    file.write(named(2))
    file.write(named(1))
    assert read_named(tmp_path) == named(expected)


def test_the_next_life_at_another_port_is_named_at_once(
    tmp_path: Path, file: ListenerFile, processes: Processes
) -> None:
    processes.living[1] = True
    file.write(named(1))
    moved = named(1, address=ListenerAddress(host="h", port=9, token=b"new"))
    file.write(moved)
    assert read_named(tmp_path) == moved


@pytest.mark.parametrize("changed", [{"cluster_id": "c2"}, {"broker_id": 2}, {"process": None}])
def test_who_is_of_another_cluster_or_unknown_is_replaced_even_if_it_lives(
    tmp_path: Path, file: ListenerFile, processes: Processes, changed: dict[str, Any]
) -> None:
    processes.living[2] = True
    (tmp_path / LISTENER_FILE).touch(0o600)
    (tmp_path / LISTENER_FILE).write_bytes(named(2, **changed).to_bytes())
    file.write(named(1))
    assert read_named(tmp_path) == named(1)


@pytest.mark.parametrize("changed", [{"cluster_id": "c2"}, {"broker_id": 2}])
def test_nothing_is_left_in_the_directory_of_another(
    tmp_path: Path, file: ListenerFile, changed: dict[str, Any]
) -> None:
    file.write(named(1, **changed))
    assert not (tmp_path / LISTENER_FILE).exists()


def test_nothing_is_left_in_a_directory_that_nobody_has_claimed(
    tmp_path: Path, file: ListenerFile
) -> None:
    (tmp_path / "meta.properties").unlink()
    file.write(named(1))
    assert list(tmp_path.iterdir()) == []


class Overtaken(RealFileSystem):
    """Runs ``other`` while the first file is being written."""

    def __init__(self) -> None:
        self.other: Callable[[], None] | None = None

    def open(self, path: Path, *, create: bool) -> RealFileHandle:
        handle = super().open(path, create=create)
        other, self.other = self.other, None
        if create and other is not None:
            other()
        return handle


def test_the_controller_and_the_broker_may_write_at_the_same_time(
    tmp_path: Path, file: ListenerFile, processes: Processes
) -> None:
    disk = Overtaken()
    slow = ListenerFile(
        tmp_path, file._describe, filesystem=disk, background=Here(), processes=processes
    )
    broker = named(2, actor="broker:1")
    disk.other = lambda: file.write(broker)
    slow.write(named(1))
    assert disk.other is None
    assert read_named(tmp_path) == named(1)
    assert {path.name for path in tmp_path.iterdir()} == {LISTENER_FILE, "meta.properties"}


@pytest.mark.parametrize(
    "error",
    [RuntimeError("Ray is gone"), AttributeError("gcs_address"), RayError("Ray hangs")],
    ids=lambda error: type(error).__name__,
)
def test_whatever_hinders_the_file_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Any
) -> None:
    monkeypatch.setattr(listener_file, "CHECK_S", 0.0)
    write_identity(RealFileSystem(), tmp_path, DirectoryIdentity(cluster_id="c1", broker_id=1))
    failures = [error, error]

    async def describe() -> NamedListener:
        if failures:
            raise failures.pop()
        return named(1)

    async def body() -> None:
        file = ListenerFile(
            tmp_path,
            describe,
            filesystem=RealFileSystem(),
            background=Here(),
            processes=Processes(),
        )
        keeping = asyncio.ensure_future(file.keep())
        await give_turns()
        keeping.cancel()

    asyncio.run(body())
    assert read_named(tmp_path) == named(1)
    (told,) = caplog.records  # Once.
    assert str(error) in told.getMessage()


def test_a_file_that_is_lost_or_cannot_be_written_is_written_later(
    tmp_path: Path,
    file: ListenerFile,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(listener_file, "CHECK_S", 0.0)
    path = tmp_path / LISTENER_FILE
    identity = (tmp_path / "meta.properties").read_bytes()

    async def body() -> None:
        keeping = asyncio.ensure_future(file.keep())
        await give_turns()
        assert read_named(tmp_path) == named(1)
        path.unlink()
        (tmp_path / "meta.properties").write_bytes(b"broken")
        await give_turns()
        assert not path.exists()
        (tmp_path / "meta.properties").write_bytes(identity)
        await give_turns()
        assert read_named(tmp_path) == named(1)
        keeping.cancel()

    asyncio.run(body())
    (told,) = caplog.records  # Once.
    assert told.getMessage().startswith(
        "listener.json cannot be written: meta.properties is unreadable: "
    )
