"""Batches, logs and a file system that fails on demand, for the tests of the disk half."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from oncelog.storage.disk.file_system import Buffer, FileHandle, RealFileSystem
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.records.batch import BatchHeader, parse_header, seal
from oncelog.storage.records.compression import Codec


class FailingHandle:
    """A file that asks its file system before every write and sync."""

    def __init__(self, inner: FileHandle, filesystem: FailingFileSystem, name: str) -> None:
        self._inner = inner
        self._filesystem = filesystem
        self._name = name
        self.read = inner.read
        self.identity = inner.identity
        self.close = inner.close

    @property
    def size(self) -> int:
        return self._inner.size

    def append(self, buffers: Sequence[Buffer]) -> int:
        failure = self._filesystem.failure_of("append", self._name)
        if failure is not None:
            # Half of the bytes reach the file before the disk refuses, as a short write does.
            half = b"".join(buffers)[: sum(map(len, buffers)) // 2]
            self._inner.append((half,))
            self._inner._size -= len(half)  # type: ignore[attr-defined]
            raise failure
        return self._inner.append(buffers)

    def write_at(self, position: int, data: Buffer) -> None:
        self._filesystem.check("write_at", self._name)
        self._inner.write_at(position, data)

    def truncate(self, size: int) -> None:
        self._filesystem.check("truncate", self._name)
        self._inner.truncate(size)

    def datasync(self) -> None:
        """Noted and not done: these tests are about order and errors, and disks are slow."""
        self._filesystem.check("datasync", self._name)
        self._filesystem.synced.append(self._name)

    def duplicate(self) -> FailingHandle:
        return self._filesystem.handle_of(self._inner.duplicate(), self._name)


class FailingFileSystem(RealFileSystem):
    """The real file system, but ``fail`` makes one kind of call on one kind of file fail.

    It owns the files that it opens: ``close`` closes those that a test leaves open.
    """

    def __init__(self) -> None:
        self._plan: dict[tuple[str, str], int] = {}
        self.synced: list[str] = []
        self._handles: list[FailingHandle] = []

    def close(self) -> None:
        for handle in self._handles:
            handle.close()

    def fail(self, call: str, suffix: str, number: int = errno.EIO) -> None:
        self._plan[call, suffix] = number

    def heal(self) -> None:
        self._plan.clear()

    def failure_of(self, call: str, name: str) -> OSError | None:
        for (planned, suffix), number in self._plan.items():
            if planned == call and name.endswith(suffix):
                return OSError(number, f"planned failure of {call} on {name}")
        return None

    def check(self, call: str, name: str) -> None:
        failure = self.failure_of(call, name)
        if failure is not None:
            raise failure

    def open(self, path: Path, *, create: bool) -> FailingHandle:  # type: ignore[override]
        return self.handle_of(super().open(path, create=create), path.name)

    def handle_of(self, inner: FileHandle, name: str) -> FailingHandle:
        self._handles.append(FailingHandle(inner, self, name))
        return self._handles[-1]

    def sync_directory(self, path: Path) -> None:
        self.check("sync_directory", path.name)


@pytest.fixture
def filesystem() -> Iterator[FailingFileSystem]:
    with contextlib.closing(FailingFileSystem()) as found:
        yield found


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., bytearray]:
    """``make_batch(base_offset, count=1, ...)``: a sealed batch with opaque record bytes."""

    def make(
        base_offset: int,
        count: int = 1,
        *,
        size_bytes: int = 100,
        timestamp_ms: int = 1_000,
        leader_epoch: int = 0,
    ) -> bytearray:
        return seal(
            bytes([base_offset % 251]) * (size_bytes - 61),
            codec=Codec.NONE,
            record_count=count,
            base_timestamp_ms=timestamp_ms,
            max_timestamp_ms=timestamp_ms,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            is_transactional=False,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
        )

    return make


@pytest.fixture
def open_log(tmp_path: Path, filesystem: FailingFileSystem) -> Callable[..., PartitionLog]:
    """``open_log(**settings)`` opens the log of the test's own directory."""

    def open_it(**settings: int) -> PartitionLog:
        return PartitionLog.open(
            filesystem=filesystem,
            directory=tmp_path / "flights-0",
            settings=LogSettings(**settings),
            now_ms=0,
        )

    return open_it


@pytest.fixture
def append(make_batch: Callable[..., bytearray]) -> Callable[..., BatchHeader]:
    """``append(log, count=1, ...)`` appends one batch at the log end, rolling when it must."""

    def append_one(log: PartitionLog, count: int = 1, **fields: int) -> BatchHeader:
        batch = make_batch(log.log_end_offset, count, **fields)
        header = parse_header(batch)
        if log.needs_roll(len(batch), header.max_timestamp_ms, 0):
            log.roll([])
        log.append(batch, header)
        return header

    return append_one


@pytest.fixture
def sync() -> Callable[[PartitionLog], None]:
    """``sync(log)``: one whole sync round."""

    def sync_it(log: PartitionLog) -> None:
        point = log.sync_point()
        point.run()
        log.mark_synced(point)

    return sync_it
