"""What holds for every test: no real cluster, no sleep, and a seed that is printed and repeats.

A test that needs Ray or Spark says so with its mark. All others are refused the ways to start one,
and ``time.sleep`` when our own code calls it: waiting is for virtual time or a polled deadline.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from crash_disk import Crash

ROOT = Path(__file__).resolve().parent.parent
REAL_MARKS = ("ray", "spark")
STARTERS = frozenset({"raylet", "gcs_server", "java", "spark-submit", "spark-class"})
"""Programs that a Ray cluster or a Spark session begins with."""

hypothesis.settings.register_profile("fast", max_examples=25, deadline=None)
hypothesis.settings.register_profile("ci", max_examples=200, deadline=None, print_blob=True)
hypothesis.settings.load_profile("fast")


HANG_LIMIT_S = 300
HANG_LIMIT_SLOW_S = 1_500
"""How long a test may run before it counts as one that never ends: ten times what the slowest takes
beside other work. It judges no speed; it turns an endless loop into a failure with a traceback."""


class RefusedError(AssertionError):
    """A test without the mark ``ray`` or ``spark`` reached for the real world."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """End a test that never ends, unless it names a limit of its own."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            is_slow = any(item.get_closest_marker(mark) for mark in (*REAL_MARKS, "slow"))
            item.add_marker(pytest.mark.timeout(HANG_LIMIT_SLOW_S if is_slow else HANG_LIMIT_S))


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over what lives until the end: thousands of tests."""
    gc.collect()
    gc.freeze()


# --- seeds ------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed of all random tests, unless ``--hypothesis-seed`` has.

    The collector comes seldom: what a test leaves is mostly freed without it.
    """
    gc.set_threshold(100_000, 50, 100)
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


def _seed_line(config: pytest.Config) -> str:
    with contextlib.suppress(OSError):
        shown = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        commit = shown.stdout.strip() or "unknown"
        return (
            f"hypothesis: commit {commit}; "
            f"to repeat: --hypothesis-seed={config.getoption('--hypothesis-seed')}"
        )
    return f"hypothesis: to repeat: --hypothesis-seed={config.getoption('--hypothesis-seed')}"


def pytest_report_header(config: pytest.Config) -> str:
    """Print the seed and the commit before the first test."""
    return _seed_line(config)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the seed again, right under the failures."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(_seed_line(config))


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run, for tests that draw their own random numbers."""
    return int(pytestconfig.getoption("--hypothesis-seed"))


# --- noise ------------------------------------------------------------------------------------


class _AsyncioErrors(logging.Handler):
    """What asyncio can only log, for nobody waits: lost tasks, errors that nobody looks at."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        kind = record.exc_info[0] if record.exc_info else None
        # A process whose disk is gone is dead, and what it does then reaches nobody.
        if kind is not Crash:
            self.told.append(f"{record.getMessage()} {kind or ''}")


@pytest.fixture(autouse=True)
def _no_asyncio_noise() -> Iterator[None]:
    """Fail the test in which asyncio logs an error: "Task was destroyed", "never retrieved".

    A coroutine that is never awaited, and whatever else is raised where nobody can catch it, is a
    failure by ``filterwarnings``.
    """
    logger, errors = logging.getLogger("asyncio"), _AsyncioErrors()
    logger.addHandler(errors)
    yield
    logger.removeHandler(errors)
    if errors.told:
        pytest.fail("asyncio tells: " + "; ".join(errors.told), pytrace=False)


# --- live states ------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _differences() -> Iterator[list[str]]:
    from live_states import compared

    found: list[str] = []
    with compared(found.append):
        yield found


@pytest.fixture(autouse=True)
def _states_equal_their_log(_differences: list[str]) -> Iterator[None]:
    """Fail the test in which a machine logs what is read back as something else."""
    yield
    if _differences:
        difference = _differences[0]
        _differences.clear()
        pytest.fail(difference, pytrace=False)


# --- the real world, refused ------------------------------------------------------------------


def _is_ours(file_name: str) -> bool:
    path = Path(file_name)
    return path.is_relative_to(ROOT) and ".venv" not in path.relative_to(ROOT).parts


def _guarded_sleep(real: Callable[[float], None]) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        caller = sys._getframe(1).f_code.co_filename
        if _is_ours(caller):
            raise RefusedError(f"time.sleep({seconds}) called by {caller}")
        real(seconds)

    return sleep


def _guarded_popen(real: Callable[..., None]) -> Callable[..., None]:
    def start(self: Any, args: Any, *rest: Any, **keywords: Any) -> None:
        words = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
        names = {Path(os.fsdecode(word)).name for word in words[:1]}
        if names & STARTERS:
            raise RefusedError(f"the test starts {names & STARTERS}; mark it ray or spark")
        real(self, args, *rest, **keywords)

    return start


def _refused_init(*_: Any, **__: Any) -> None:
    raise RefusedError("ray.init called; mark the test ray or spark")


@pytest.fixture(autouse=True)
def _no_real_world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse Ray, Spark and sleep to every test that is not marked ``ray`` or ``spark``."""
    if not any(request.node.get_closest_marker(mark) for mark in REAL_MARKS):
        monkeypatch.setattr(time, "sleep", _guarded_sleep(time.sleep))
        monkeypatch.setattr(subprocess.Popen, "__init__", _guarded_popen(subprocess.Popen.__init__))
        if "ray" in sys.modules:
            monkeypatch.setattr(sys.modules["ray"], "init", _refused_init)


@pytest.fixture
def cached_reads(tmp_path: Path) -> None:
    """Skip the test where a file system cannot tell what of a file is in memory."""
    from oncelog.storage.disk.file_system import RealFileSystem, read_cached

    handle = RealFileSystem().open(tmp_path / "probe", create=True)
    handle.append((b"x",))
    try:
        read_cached(str(tmp_path / "probe"), handle.identity(), 0, 1)
    except (OSError, AttributeError):
        pytest.skip("this file system cannot tell what of a file is in memory")
    finally:
        handle.close()
        (tmp_path / "probe").unlink()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One real cluster for all tests that are marked ray; topics are made per test."""
    import oncelog

    data_dir = tmp_path_factory.mktemp("cluster")
    connection = oncelog.init(data_dir, num_cpus=2)
    yield connection
    import ray

    connection.shutdown()
    ray.shutdown()
