"""Every file of a partition in turn is refused by the disk, and then the disk is well again.

Meanwhile nothing wrong is acknowledged and reads go on; afterwards the partition serves by itself,
and reads as if nothing had been. What a process does that has to begin again is done here by
``Supervised``; nobody else restarts anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from pathlib import Path
from random import Random
from typing import Any

import pytest
from actor_environment import AtOnceBackground
from crash_disk import CrashDisk, DataLoss, NameLoss
from deadlines import until
from virtual_time import give_turns

from oncelog.actors.protocol.messages.partition import TxnMarker, WriteTxnMarkersRequest
from oncelog.actors.replica import group_sync as group_sync_module
from oncelog.actors.replica import replica as replica_module
from oncelog.actors.replica.maintenance import clean_if_dirty
from oncelog.storage.errors import ErrorCode
from oncelog.storage.records.batch import iterate_batches
from oncelog.storage.records.codec import decode_records, encode_records

TURNS_MAX = 20_000
"""Turns of the event loop in which what the disk allows again has to happen."""

NONE = ErrorCode.NONE

ERRORS = {
    "create": (errno.ENOSPC,),
    "append": (errno.ENOSPC, errno.EDQUOT),
    "write_at": (errno.ENOSPC,),
    "truncate": (errno.ENOSPC,),
    "datasync": (errno.ENOSPC, errno.ENOMEM),
    "open": (errno.EMFILE, errno.ENOMEM, errno.ENFILE),
    "rename": (errno.ENOSPC,),
    "remove": (errno.ENOMEM,),
    "sync_directory": (errno.ENOSPC, errno.EMFILE),
    "make_directory": (errno.ENOSPC,),
}
"""What each call is refused with."""

INDEXES = (".index", ".timeindex", ".txnindex")
CLEANED = tuple(f"{suffix}.cleaned" for suffix in (".log", *INDEXES, ".summary"))
REPLACED = ("cleaner-offset-checkpoint.tmp", "log-start-offset.tmp")
GROWING = (".log", *INDEXES, ".snapshot", ".summary", *CLEANED, *REPLACED)
SERVING = {
    "create": GROWING,
    "append": GROWING,
    "truncate": tuple(suffix for suffix in GROWING if suffix != ".txnindex"),
    "datasync": (*GROWING, "recovery-checkpoint"),
    "open": ("", *GROWING, "recovery-checkpoint"),
    "write_at": ("recovery-checkpoint",),
    "rename": (".swap", ".log", ".txnindex", "log-start-offset"),
    "remove": ("",),
    "sync_directory": ("",),
}
"""What a partition that serves does, and with which files."""

MADE_AT_START = (
    "leader-epoch-checkpoint.tmp",
    "recovery-checkpoint.tmp",
    "partition.metadata.tmp",
    ".topic_id.tmp",
)
STARTING = {
    "create": (*MADE_AT_START, ".log", ".lock"),
    "append": (*MADE_AT_START, ".txnindex"),
    "truncate": (*MADE_AT_START, ".log", ".txnindex", "recovery-checkpoint"),
    "datasync": (*MADE_AT_START, ".log", ".txnindex", ".snapshot"),
    "open": (
        *("", *MADE_AT_START, ".log", *INDEXES, ".snapshot", ".summary"),
        *("recovery-checkpoint", ".topic_id", ".lock"),
    ),
    "write_at": (".snapshot", "recovery-checkpoint"),
    "rename": ("leader-epoch-checkpoint", "recovery-checkpoint", "partition.metadata", ".topic_id"),
    "sync_directory": ("",),
    "make_directory": ("",),
}
"""What its first start, or one after its death, does."""

MADE_AT_STOP = (".clean_shutdown.tmp",)
STOPPING = dict.fromkeys(("create", "append", "truncate", "datasync", "open"), MADE_AT_STOP)
STOPPING |= {"rename": (".clean_shutdown",)}
"""What only a stop that is asked for does."""


def refusals(calls: dict[str, tuple[str, ...]]) -> list[tuple[str, str, int]]:
    return [
        (call, suffix, number)
        for call, suffixes in calls.items()
        for suffix in suffixes
        for number in ERRORS[call]
    ]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due in a second is due at once."""
    monkeypatch.setattr(group_sync_module, "DISK_RETRY_MS", 0)
    monkeypatch.setattr(replica_module, "DISK_RETRY_MS", 0)


class Supervised:
    """A partition on a ``CrashDisk`` whose process is started again when it asks for that."""

    def __init__(self, harness: Any) -> None:
        self.harness = harness
        harness.directory = Path("/data")
        harness.settings = {
            "segment_bytes": "4096",
            "index_interval_bytes": "0",
            "min_cleanable_dirty_ratio": "0.01",
        }
        harness.filesystem = self.disk = CrashDisk()
        harness.background = AtOnceBackground()
        self.acknowledged: dict[bytes, int] = {}
        """Their offsets."""
        self.deleted_end = 0
        """Exclusive; as it was answered."""
        self.aborted: set[int] = set()
        self._sent = 0
        self._pid = 100

    @property
    def replica(self) -> Any:
        return self.harness.replica

    async def start(self) -> None:
        """Begin a life, and wait for it unless the disk refuses to let it serve."""
        starting = asyncio.ensure_future(self.harness.start())
        while not starting.done():
            await asyncio.sleep(0)
            found = getattr(self.harness, "leader", None)
            if found is not None and found.replica.waits_for:
                break
        self._starting = starting

    async def restart(self) -> None:
        self.disk.kill()
        self._follow(self.disk.after_kill())
        await self.start()

    def _follow(self, disk: CrashDisk) -> None:
        disk.faults = self.disk.faults
        disk.capacity_bytes = self.disk.capacity_bytes
        self.harness.filesystem = self.disk = disk
        del self.harness.leader

    async def serve(self) -> None:
        """Let happen what happens by itself, until the partition serves."""

        def is_serving() -> bool:
            return self.replica.availability() is NONE

        for _ in range(TURNS_MAX):
            if is_serving() and self._starting.done():
                return
            if self.replica.restarts_itself:
                await self.restart()
            assert self.replica.failure is None or self.replica.restarts_itself, (
                self.replica.failure
            )
            await asyncio.sleep(0)
        raise AssertionError(f"it does not serve again: {self.replica.describe(1).detail}")

    async def answer(self, call: Any) -> Any:
        """The reply, or ``None`` while it has to wait for the disk."""
        task = asyncio.ensure_future(call)
        for _ in range(50):
            if task.done():
                return task.result()
            await asyncio.sleep(0)
        return None

    async def produce(self, size_bytes: int = 200) -> ErrorCode | None:
        self._sent += 1
        value = b"%04d" % self._sent + bytes(size_bytes)
        batch = encode_records(
            [(value[:4], value, 0, ())],
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            is_transactional=False,
        )
        reply = await self.answer(self.harness.produce(bytes(batch)))
        if reply is not None and reply.error is NONE:
            self.acknowledged[value[:4]] = reply.base_offset
        return None if reply is None else reply.error

    async def delete_one(self) -> None:
        """The first offset: its segment stays."""
        offset = self.replica.machine.log_start_offset + 1
        if await self.answer(self.replica.raise_log_start(offset)) is NONE:
            self.deleted_end = offset

    async def abort_one(self) -> ErrorCode | None:
        """A transaction with one record, and its ABORT marker, which is sent until it is there."""
        self._pid += 1
        pid, harness = self._pid, self.harness
        batch = harness.txn_batch(b"aborted", pid=pid, epoch=0, seq=0)
        ticket = harness.ticket(pid=pid, epoch=0)
        produced = harness.produce(batch, transactional_id="t", ticket=ticket)
        self.aborted.add(pid)
        reply = await self.answer(produced)
        if reply is None or reply.error is not NONE:
            return None if reply is None else reply.error
        return await self.mark(pid)

    async def mark(self, pid: int) -> ErrorCode | None:
        tp = self.harness.tp
        marker = TxnMarker(producer_id=pid, producer_epoch=1, committed=False, partitions=(tp,))
        request = WriteTxnMarkersRequest(coordinator_epoch=1, markers=(marker,))
        reply = await self.answer(self.harness.leader.write_txn_markers(request))
        return None if reply is None else reply.results[0].error

    async def read(self, *, is_committed: bool = True) -> list[bytes]:
        """What a reader is shown, as a client filters it."""
        found: list[bytes] = []
        offset = self.replica.machine.log_start_offset
        while True:
            request = self.harness.fetch_request(offset, is_committed=is_committed)
            reply = await self.harness.leader.fetch(request)
            assert reply.error is NONE, reply
            if not reply.records:
                return found
            aborted = {item.producer_id for item in reply.aborted_transactions or ()}
            for position, header in iterate_batches(reply.records):
                offset = header.next_offset
                if not header.is_control and header.producer_id not in aborted:
                    found += [
                        record.value[:4]
                        for record in decode_records(reply.records, header, position)
                    ]

    async def check(self) -> None:
        """All that was acknowledged is read once, nothing aborted is, and it survives."""
        for _ in range(2):
            found = await self.read()
            assert len(set(found)) == len(found)
            machine = self.replica.machine
            assert machine.log_start_offset >= self.deleted_end
            kept = [
                value
                for value, offset in self.acknowledged.items()
                if offset >= machine.log_start_offset
            ]
            # Batches that nobody was answered for may be there as well.
            assert [value for value in found if value in self.acknowledged] == kept
            assert b"abor" not in found
            assert machine.last_stable_offset == machine.log_end_offset
            lost = self.disk.after_power_loss(DataLoss.ALL, NameLoss.ALL, Random(0))
            self.disk.kill()
            self._follow(lost)
            await self.start()
            await self.serve()


def play(harness: Any, scenario: Any) -> None:
    async def body() -> None:
        partition = Supervised(harness)
        await scenario(partition)
        await partition.replica.stop()

    asyncio.run(body())


async def everything(partition: Supervised) -> None:
    """Rolls, aborts, deletions, compaction: each may be refused."""
    for _ in range(4):
        await partition.produce()
        await partition.produce(1_500)
        await partition.abort_one()
    replica = partition.replica
    if replica.availability() is NONE:
        await partition.answer(replica.sync_all())
    if replica.availability() is NONE:
        await partition.delete_one()
    if replica.availability() is NONE:
        try:
            await partition.answer(clean_if_dirty(replica, now_ms=0))
        except OSError:
            replica.check_log()


@pytest.mark.parametrize(("call", "suffix", "number"), refusals(SERVING))
def test_file_that_is_refused_while_the_partition_serves(harness, call, suffix, number):
    async def scenario(partition: Supervised) -> None:
        await partition.start()
        await everything(partition)
        fault = partition.disk.fail(call, suffix, number, written=0.5)
        await everything(partition)
        assert fault.met
        if partition.replica.failure is None and call != "open":
            assert b"abor" not in await partition.read()
        partition.disk.heal()
        await partition.serve()
        for pid in sorted(partition.aborted):
            await partition.mark(pid)
        await until(lambda: partition.replica.machine.high_watermark == end_of(partition))
        assert await partition.produce() is NONE
        await everything(partition)
        await partition.check()

    play(harness, scenario)


def end_of(partition: Supervised) -> int:
    return partition.replica.machine.log_end_offset


@pytest.mark.parametrize(("call", "suffix", "number"), refusals(STARTING))
def test_file_that_is_refused_while_the_partition_starts(harness, call, suffix, number):
    async def scenario(partition: Supervised) -> None:
        first = partition.disk.fail(call, suffix, number, written=0.5)
        await partition.start()
        partition.disk.heal()
        await partition.serve()
        await everything(partition)
        second = partition.disk.fail(call, suffix, number, written=0.5)
        await partition.restart()
        await give_turns(20)
        assert first.met or second.met
        partition.disk.heal()
        await partition.serve()
        assert await partition.produce() is NONE
        await partition.check()

    play(harness, scenario)


@pytest.mark.parametrize(("call", "suffix", "number"), refusals(STOPPING))
def test_file_that_is_refused_while_the_partition_stops(harness, call, suffix, number):
    async def scenario(partition: Supervised) -> None:
        await partition.start()
        await everything(partition)
        fault = partition.disk.fail(call, suffix, number, written=0.5)
        with contextlib.suppress(OSError):
            await partition.replica.stop()
        assert fault.met
        partition.disk.heal()
        await partition.restart()
        await partition.serve()
        assert await partition.produce() is NONE
        await partition.check()

    play(harness, scenario)


def test_every_file_that_a_partition_makes_is_refused_above(harness):
    made: set[str] = set()

    def look(disk: CrashDisk) -> None:
        made.update(
            operation.path.name.lstrip("0123456789")
            for operation in disk.history
            if operation.call == "create"
        )

    async def scenario(partition: Supervised) -> None:
        await partition.start()
        await everything(partition)
        look(partition.disk)
        await partition.restart()
        await partition.serve()
        look(partition.disk)
        await partition.replica.stop()
        look(partition.disk)
        refused = {suffix for calls in (SERVING, STARTING, STOPPING) for suffix in calls["create"]}
        assert made == refused

    play(harness, scenario)
