"""The audit log: what a line says, and what happens when there are too many or the disk fails."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import pytest
from actor_environment import HeldBackground, InlineBackground
from crash_disk import CrashDisk
from deadlines import until

from oncelog.actors.interfaces import Background
from oncelog.actors.process import audit
from oncelog.actors.process.audit import (
    AUDIT_FILE_MAX_BYTES,
    AUDIT_FILES_KEPT,
    AUDIT_LINES_PER_SECOND_MAX,
    AUDIT_NAMES_MAX,
    AUDIT_QUEUE_MAX_BYTES,
    FLUSH_TIMEOUT_S,
    NAME_MAX,
    AuditFiles,
    AuditLog,
    file_name,
)
from oncelog.actors.process.metrics import AUDIT_LINES_LEFT_OUT, REFUSED_CALLS, Metric
from oncelog.actors.protocol.access import SOME_NAME, Principal, Verdict
from oncelog.actors.protocol.messages.access import Operation, Resource
from oncelog.storage.disk.file_system import FileSystem, RealFileSystem

DATA = Path("/data")
ACTOR = "partition:flights-0@1"
ALICE, BOB = Principal("User:alice"), Principal("User:bob")
HERE = "10.0.0.1"
FILE = DATA / "audit" / "partition_flights-0_1.log"


def verdict(
    name: str = "flights",
    operation: Operation = Operation.READ,
    resource: Resource = Resource.TOPIC,
    *,
    is_allowed: bool = False,
) -> Verdict:
    return Verdict(operation, resource, name, is_allowed)


class Clock:
    def now_ms(self) -> int:
        return 1_795_876_263_007


class Sink:
    """What was counted, by name of the metric and tags."""

    def __init__(self) -> None:
        self.counted: dict[tuple[str, ...], float] = {}

    def set(self, metric: Metric, value: float, tags: Any) -> None:
        raise AssertionError(f"{metric.name} is no gauge of the audit log: {value}, {tags}")

    def add(self, metric: Metric, amount: float, tags: Any) -> None:
        assert set(tags) == set(metric.tags)
        key = (metric.name, *(tags[name] for name in metric.tags))
        self.counted[key] = self.counted.get(key, 0) + amount


class AuditWorld:
    """An audit log on a disk in memory."""

    def __init__(self, background: Background | None = None, **options: Any) -> None:
        self.disk = CrashDisk()
        self.disk.make_directory(DATA)
        self.sink = Sink()
        self.log = AuditLog(
            **{
                "actor": ACTOR,
                "data_dir": DATA,
                "filesystem": self.disk,
                "background": background or InlineBackground(),
                "clock": Clock(),
                "on_bug": fail,
                "metrics": self.sink,
                "metrics_interval_ms": 3_600_000,
            }
            | options
        )

    def deny(self, *names: str, who: Principal = ALICE, method: str = "fetch") -> None:
        self.log.judged(who, HERE, method, [verdict(name) for name in names or ("flights",)])

    def allow(self, name: str = "flights") -> None:
        self.log.judged(ALICE, HERE, "fetch", [verdict(name, is_allowed=True)])

    def raw(self, path: Path = FILE) -> bytes:
        return self.disk.files().get(path, b"")

    def lines(self, path: Path = FILE) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.raw(path).splitlines()]

    async def written(self) -> list[dict[str, Any]]:
        await self.log.flush()
        return self.lines()


def fail(error: BaseException) -> NoReturn:
    raise AssertionError("no bug is expected") from error


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The monotonic time, which stands still unless a test changes it."""
    now_s = [100]
    monkeypatch.setattr(audit, "loop_ms", lambda: 1_000 * now_s[0])
    return now_s


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


# --- what a line says -------------------------------------------------------------------------


def test_a_refused_call_is_a_line() -> None:
    async def body() -> None:
        world = AuditWorld()
        world.deny("flights")
        assert await world.written() == [
            {
                "time": "2026-11-28T14:31:03.007Z",
                "principal": "User:alice",
                "address": "10.0.0.1",
                "request": "fetch",
                "resource": "Topic",
                "names": ["flights"],
                "operation": "Read",
                "verdict": "denied",
                "error": "TOPIC_AUTHORIZATION_FAILED",
            }
        ]

    run(body)


def test_a_refused_login_is_a_line_with_no_more_of_the_name_than_fits() -> None:
    async def body() -> None:
        world = AuditWorld()
        world.log.login_refused("mallory", HERE)
        world.log.login_refused("m" * 10_000, HERE)
        first, second = await world.written()
        del first["time"]
        assert first == {
            "principal": "User:mallory",
            "address": HERE,
            "request": "login",
            "verdict": "denied",
            "error": "SASL_AUTHENTICATION_FAILED",
        }
        assert second["principal"] == "User:" + "m" * 249
        counted = (REFUSED_CALLS.name, ACTOR, "login", "SASL_AUTHENTICATION_FAILED")
        assert world.sink.counted[counted] == 2

    run(body)


def test_what_was_allowed_is_a_line_only_if_wanted() -> None:
    async def body() -> None:
        for has_allowed in (False, True):
            world = AuditWorld(has_allowed=has_allowed)
            world.allow()
            world.log.judged(ALICE, HERE, "metadata", [])
            lines = await world.written()
            assert [line["verdict"] for line in lines] == ["allowed"] * has_allowed
            assert all("error" not in line for line in lines)
            assert world.sink.counted == {("audit_lines_left_out", ACTOR): 0}

    run(body)


def test_a_call_has_a_line_for_each_operation_and_kind_with_each_name_once() -> None:
    verdicts = [
        verdict("loader", Operation.WRITE, Resource.TRANSACTIONAL_ID, is_allowed=True),
        verdict("a", Operation.WRITE),
        verdict("b", Operation.WRITE, is_allowed=True),
        verdict("c", Operation.WRITE),
        verdict("a", Operation.WRITE),
        verdict(SOME_NAME),
    ]

    async def body(*, has_allowed: bool) -> list[tuple[str, str, list[str]]]:
        world = AuditWorld(has_allowed=has_allowed)
        world.log.judged(ALICE, HERE, "add_partitions_to_txn", verdicts)
        lines = await world.written()
        return [(line["verdict"], line["operation"], line["names"]) for line in lines]

    denied = [("denied", "Write", ["a", "c"]), ("denied", "Read", ["*"])]
    assert asyncio.run(body(has_allowed=False)) == denied
    assert asyncio.run(body(has_allowed=True)) == [
        ("allowed", "Write", ["loader"]),
        denied[0],
        ("allowed", "Write", ["b"]),
        denied[1],
    ]


def test_names_beyond_the_bound_are_counted() -> None:
    async def body() -> None:
        world = AuditWorld()
        world.deny(*(f"t{number}" for number in range(AUDIT_NAMES_MAX)))
        world.deny(*(f"t{number}" for number in range(AUDIT_NAMES_MAX + 3)))
        first, second = await world.written()
        assert "names_left_out" not in first
        assert first["names"] == second["names"]
        assert len(first["names"]) == AUDIT_NAMES_MAX
        assert second["names_left_out"] == 3

    run(body)


@pytest.mark.parametrize(
    "name", ['a"},\n{"principal":"User:bob', "a\r\x00\x1b[2J", "\u2028\u0085", "\ud800", "é" * 249]
)
def test_whatever_a_name_has_it_stays_within_its_line(name: str) -> None:
    async def body() -> None:
        world = AuditWorld()
        world.log.judged(Principal(name), name, "fetch", [verdict(name)])
        (line,) = await world.written()
        assert (line["names"], line["principal"], line["address"]) == ([name], name, name)
        assert re.fullmatch(rb"[ -~]+\n", world.raw())

    run(body)


def test_long_names_are_cut() -> None:
    async def body() -> None:
        world = AuditWorld()
        long = "n" * 5_000
        world.log.judged(Principal(long), long, "fetch", [verdict(long)])
        (line,) = await world.written()
        cut = "n" * NAME_MAX
        assert (line["names"], line["principal"], line["address"]) == ([cut], cut, cut)

    run(body)


# --- too many ---------------------------------------------------------------------------------


def test_a_denial_that_is_repeated_is_a_line_each_up_to_so_many_a_second(
    seconds: list[int],
) -> None:
    async def body() -> None:
        world = AuditWorld(has_allowed=True)
        for _ in range(AUDIT_LINES_PER_SECOND_MAX + 5):
            world.deny()
        await until_idle(world)
        assert len(world.lines()) == AUDIT_LINES_PER_SECOND_MAX
        # Another principal has lines of its own, and so has what is allowed.
        world.deny(who=BOB)
        world.allow()
        seconds[0] += 1
        world.deny()
        lines = await world.written()
        told = [line.get("lines_left_out") for line in lines[AUDIT_LINES_PER_SECOND_MAX:]]
        assert told == [5, None, None]
        assert world.log.lines_left_out == 5

    run(body)


def test_who_claims_to_be_others_takes_none_of_their_lines_and_has_no_more_for_many_names(
    seconds: list[int],
) -> None:
    """Else a stranger could hide what a user is refused, or fill the files with made-up names."""

    async def body() -> None:
        world = AuditWorld()
        for number in range(AUDIT_LINES_PER_SECOND_MAX):
            world.log.login_refused("alice", HERE)
            world.log.login_refused(f"nobody-{number}", HERE)
        world.log.login_refused("alice", "10.0.0.2")
        world.deny()
        await until_idle(world)
        *logins, elsewhere, call = world.lines()
        assert len(logins) == AUDIT_LINES_PER_SECOND_MAX
        assert {line["address"] for line in logins} == {HERE}
        assert elsewhere["address"] == "10.0.0.2"
        assert (call["principal"], call["request"]) == (ALICE.name, "fetch")

    run(body)


async def until_idle(world: AuditWorld) -> None:
    """Until all is written; a flush would also write how many were left out."""
    await until(lambda: world.log._writing is None or world.log._writing.done())


def test_a_full_queue_leaves_lines_out_and_the_next_line_says_how_many(seconds: list[int]) -> None:
    async def body() -> None:
        held = HeldBackground()
        world = AuditWorld(held, has_allowed=True)
        held.gate.clear()
        world.deny("first")
        await asyncio.sleep(0)
        # The thread has the first line and hangs.
        long = "n" * NAME_MAX
        count = 0
        while world.log.lines_left_out == 0:
            world.allow(long)
            count += 1
            seconds[0] += 1
        allowed = count - 1
        while world.log.lines_left_out == 1:
            world.deny(long)
            count += 1
            seconds[0] += 1
        size = len(json.dumps(world.log._queue[0].data.decode()))
        assert allowed * size == pytest.approx(AUDIT_QUEUE_MAX_BYTES / 2, rel=0.1)
        assert count * size == pytest.approx(AUDIT_QUEUE_MAX_BYTES, rel=0.1)
        world.deny(long)
        held.gate.set()
        await until_idle(world)
        assert len(world.lines()) == 1 + count - 2
        world.deny("last")
        assert (await world.written())[-1]["lines_left_out"] == 2
        assert world.log.lines_left_out == 3

    run(body)


def test_a_call_does_not_wait_for_the_file() -> None:
    async def body() -> None:
        held = HeldBackground()
        world = AuditWorld(held)
        held.gate.clear()
        for _ in range(3):
            world.deny()
        await asyncio.sleep(0)
        assert world.raw() == b""
        held.gate.set()
        assert len(await world.written()) == 3
        # One write for what was queued together.
        assert held.begun == 1

    run(body)


def test_a_shutdown_writes_what_is_queued_and_what_was_left_out(seconds: list[int]) -> None:
    async def body() -> None:
        world = AuditWorld()
        assert seconds
        for _ in range(AUDIT_LINES_PER_SECOND_MAX + 2):
            world.deny()
        lines = await world.written()
        assert lines[-1] == {"time": "2026-11-28T14:31:03.007Z", "lines_left_out": 2}
        assert len(lines) == AUDIT_LINES_PER_SECOND_MAX + 1
        assert await world.written() == lines

    run(body)


def test_a_shutdown_does_not_wait_for_a_disk_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FLUSH_TIMEOUT_S == 5
    monkeypatch.setattr(audit, "FLUSH_TIMEOUT_S", 0.01)

    async def body() -> None:
        held = HeldBackground()
        world = AuditWorld(held)
        held.gate.clear()
        world.deny()
        assert await world.written() == []
        held.gate.set()
        await until_idle(world)
        assert len(world.lines()) == 1

    run(body)


# --- files ------------------------------------------------------------------------------------


def test_a_file_that_is_full_is_kept_beside_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert AUDIT_FILE_MAX_BYTES == 16 * 1_048_576
    monkeypatch.setattr(audit, "AUDIT_FILE_MAX_BYTES", 100)
    disk = CrashDisk()
    disk.make_directory(DATA)
    files = AuditFiles(disk, DATA, ACTOR)
    lines = [b"%039d\n" % number for number in range(14)]
    assert files.write(lines[:5]) == (5, None)
    assert files.write(lines[5:]) == (9, None)
    found = disk.files()
    names = [FILE, *(FILE.with_name(f"{FILE.name}.{n}") for n in range(1, AUDIT_FILES_KEPT))]
    assert sorted(found) == sorted(names)
    # Two lines fit; the first six are gone.
    assert [found[name] for name in names] == [
        b"".join(lines[at : at + 2]) for at in (12, 10, 8, 6)
    ]
    assert disk.open_handles == 0


def test_a_line_that_no_file_has_room_for_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "AUDIT_FILE_MAX_BYTES", 10)
    disk = CrashDisk()
    disk.make_directory(DATA)
    files = AuditFiles(disk, DATA, ACTOR)
    assert files.write([b"x" * 20 + b"\n", b"y\n"]) == (2, None)
    assert disk.files()[FILE] == b"y\n"


def test_the_next_process_goes_on_in_the_same_file() -> None:
    async def body() -> None:
        world = AuditWorld()
        world.deny("one")
        await world.written()
        again = AuditWorld(filesystem=world.disk)
        again.deny("two")
        await again.log.flush()
        assert [line["names"] for line in world.lines()] == [["one"], ["two"]]

    run(body)


def test_other_users_cannot_read_it(tmp_path: Path) -> None:
    async def body() -> None:
        world = AuditWorld(filesystem=RealFileSystem(), data_dir=tmp_path)
        world.deny()
        await world.log.flush()

    run(body)
    path = tmp_path / "audit" / FILE.name
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(path.read_bytes().splitlines()) == 1


def test_names_of_files_are_safe_and_differ() -> None:
    assert file_name("controller") == "controller"
    assert file_name("a/../b\n@1") == "a_.._b__1"
    long = [f"partition:{'t' * 249}-{number}@1" for number in range(3)]
    names = {file_name(actor) for actor in long}
    assert len(names) == len(long)
    assert all(len(f"{name}.log.{AUDIT_FILES_KEPT}") <= 255 for name in names)


# --- a disk that fails ------------------------------------------------------------------------


def test_lines_that_a_failing_disk_loses_are_counted_and_nothing_else_happens(
    seconds: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        world = AuditWorld()
        world.deny("before")
        await until_idle(world)
        world.disk.fail("append")
        for _ in range(3):
            world.deny("lost")
            await until_idle(world)
        assert len(caplog.messages) == 1
        assert str(FILE) in caplog.messages[0]
        seconds[0] += 60
        world.deny("lost")
        await until_idle(world)
        assert len(caplog.messages) == 2
        assert "4 lines" in caplog.messages[1]
        world.disk.heal()
        world.deny("after")
        before, after = await world.written()
        assert "lines_left_out" not in before
        assert (after["names"], after["lines_left_out"]) == (["after"], 4)
        assert world.log.lines_left_out == 4
        assert world.sink.counted["audit_lines_left_out", ACTOR] == 4

    run(body)


def test_a_line_cut_short_spoils_no_other() -> None:
    async def body() -> None:
        world = AuditWorld()
        world.disk.fail("append", times=1, written=0.5)
        world.deny("lost")
        await until_idle(world)
        assert not world.raw().endswith(b"\n")
        world.deny("after")
        await world.log.flush()
        torn, after = world.raw().splitlines()
        assert torn.startswith(b'{"time"')
        assert json.loads(after)["lines_left_out"] == 1

    run(body)


@pytest.mark.parametrize("call", ["open", "make_directory", "rename"])
def test_whatever_call_of_the_disk_fails_is_no_bug(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        world = AuditWorld()
        world.disk.fail(call)
        monkeypatch.setattr(audit, "AUDIT_FILE_MAX_BYTES", 1)
        world.deny()
        world.deny()
        await until_idle(world)
        assert world.log.lines_left_out >= 1
        assert world.disk.open_handles == 0

    run(body)


def test_a_data_directory_that_is_missing_is_not_made(tmp_path: Path) -> None:
    """Its disk may not be mounted: what would be made there could hide that its logs are gone."""

    async def body(filesystem: FileSystem) -> None:
        world = AuditWorld(filesystem=filesystem, data_dir=tmp_path / "away")
        world.deny()
        await world.log.flush()
        assert world.log.lines_left_out >= 1

    asyncio.run(body(RealFileSystem()))
    assert list(tmp_path.iterdir()) == []


# --- metrics ----------------------------------------------------------------------------------


def test_refused_calls_are_counted_by_method_and_error() -> None:
    async def body() -> None:
        world = AuditWorld()
        world.deny("a", "b")
        world.deny()
        world.deny(method="produce")
        world.log.judged(ALICE, HERE, "join_group", [verdict("g", resource=Resource.GROUP)])
        world.allow()
        world.log.report()
        name = REFUSED_CALLS.name
        assert world.sink.counted == {
            (name, ACTOR, "fetch", "TOPIC_AUTHORIZATION_FAILED"): 2,
            (name, ACTOR, "produce", "TOPIC_AUTHORIZATION_FAILED"): 1,
            (name, ACTOR, "join_group", "GROUP_AUTHORIZATION_FAILED"): 1,
            (AUDIT_LINES_LEFT_OUT.name, ACTOR): 0,
        }
        world.sink.counted.clear()
        world.log.report()
        assert world.sink.counted == {(AUDIT_LINES_LEFT_OUT.name, ACTOR): 0}

    run(body)


def test_what_was_counted_is_reported_by_a_timer() -> None:
    async def body() -> None:
        world = AuditWorld(metrics_interval_ms=1)
        world.deny()
        await until(lambda: bool(world.sink.counted))
        assert world.log._timer is None

    run(body)
