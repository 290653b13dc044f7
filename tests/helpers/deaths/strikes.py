"""kill -9 once per cell, whichever process comes to the step first."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from deaths.cells import (
    ABORT,
    ABORT_STEPS,
    ABORTED,
    COMMIT,
    DRIVER_JAVA,
    DRIVERS,
    EXECUTOR,
    PLANNER,
    RECORDED,
    RETURNED,
    ROWS,
    SENT,
    TASK_STEPS,
    WORKER,
)
from deaths.rows import STRUCK, TASK

from oncelog.actors.process.process_table import ProcessTable

UNDER_WAY_MAX_S: Final = 0.02
"""How long a commit is under way, at most, when a process is killed beside it."""
GROWTH_TIMEOUT_S: Final = 60.0

_processes: Final = ProcessTable("")


def identity(process_id: int) -> tuple[int, int]:
    """The process, as no later one of the same id is called; (0, 0) if it is gone."""
    found = _processes.process(process_id)
    return (0, 0) if found is None else (found.process_id, found.start_ticks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Who is to die where; goes to all processes of a write as an option, in JSON."""

    directory: str
    victim: str
    step: str
    log: str
    """The file that the first task's rows go to."""
    driver_java: int
    driver_python: int

    def to_json(self) -> str:
        """See ``from_json``."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Death:
        """The death that ``to_json`` gave."""
        return cls(**json.loads(text))

    @property
    def has_struck(self) -> bool:
        """Whether the victim of this cell has been killed."""
        return (Path(self.directory) / STRUCK).exists()

    def at(self, step: str) -> None:
        """Kill the victim if this is the step, the first time. The caller goes on if it can.

        Beside a commit or abort whose driver dies it waits for its own end: what Spark does then
        must not depend on who is faster.
        """
        if step != self.step or not self._claim():
            return
        process_id = self._victim()
        if process_id:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        if self.victim in DRIVERS and step not in (*TASK_STEPS, SENT, RETURNED):
            threading.Event().wait()

    def _claim(self) -> bool:
        path = Path(self.directory) / STRUCK
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        os.write(descriptor, f"{time.time()} {self._victim()}\n".encode())
        os.close(descriptor)
        return True

    def _victim(self) -> int:
        """The victim's process id; 0 if it has ended already."""
        if self.victim == PLANNER:
            return os.getpid()
        if self.victim in DRIVERS:
            return self.driver_java if self.victim == DRIVER_JAVA else self.driver_python
        task = json.loads((Path(self.directory) / TASK).read_text())
        process_id, start_ticks = task[self.victim]
        return process_id if identity(process_id) == (process_id, start_ticks) else 0

    # --- in the first task ------------------------------------------------------------------------

    def note_task(self) -> None:
        """Write down who runs the first task: this process."""
        executor = _processes.ancestor("java")
        assert executor is not None
        found = {
            WORKER: identity(os.getpid()),
            EXECUTOR: (executor.process_id, executor.start_ticks),
        }
        (Path(self.directory) / TASK).write_text(json.dumps(found))

    def fail_if_asked(self) -> None:
        """Fail each attempt at the first task, so that Spark aborts."""
        if self.step in ABORT_STEPS and not self.has_struck:
            raise RuntimeError("this task fails so that its write is aborted")

    def log_size(self) -> int:
        """Bytes of the log that the first task writes to."""
        path = Path(self.log)
        return path.stat().st_size if path.exists() else 0

    def at_rows(self, size_before: int) -> None:
        """Strike once rows are in the log."""
        if self.step != ROWS or self.has_struck:
            return
        deadline = time.monotonic() + GROWTH_TIMEOUT_S
        while self.log_size() <= size_before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no row came to {self.log} in {GROWTH_TIMEOUT_S} s")
            threading.Event().wait(0.01)
        self.at(ROWS)

    # --- in the planner ---------------------------------------------------------------------------

    def around_commit(self, commit: Callable[[], Any]) -> None:
        """Commit, and strike where asked."""
        self.at(COMMIT)
        if self.step == SENT and not self.has_struck:
            with ThreadPoolExecutor(1) as pool:
                committed = pool.submit(commit)
                threading.Event().wait(random.uniform(0, UNDER_WAY_MAX_S))
                self.at(SENT)
                committed.result()
            return
        commit()
        self.at(RECORDED)

    def around_abort(self, abort: Callable[[], Any]) -> None:
        """Abort, and strike where asked."""
        self.at(ABORT)
        abort()
        self.at(ABORTED)
