"""The stream's driver in a process that is killed and restarted on the same checkpoint."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Final

from oncelog.storage.exceptions import ConnectionFailedError

PROGRAM: Final = "oncelog.examples.flights.stream_query"
READ_BYTES: Final = 65_536
FAILURES_MAX: Final = 3
"""How often the driver may end by itself: Spark's query fails if one of its Python processes does
not start within ten seconds, as on a busy machine."""

ANSWER_TIMEOUT_S: Final = 240.0
END_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The stream's progress. It survives the driver: what was read stays read."""

    batch: int = -1
    """The last completed batch; -1 before the first."""
    read: int = 0
    """Offsets read, summed over all partitions."""
    reached_ms: int = 0
    """The latest scheduled departure read."""
    watermark_ms: int = 0
    """Windows that ended before this are complete."""


class StreamDriver:
    """Runs ``stream_query`` in a process of its own until the block ends; for one thread."""

    def __init__(self, *arguments: str) -> None:
        self.progress = Progress()
        self.is_working = False
        """Whether it has reported a batch since it was started or lost its executor."""
        self._command = [sys.executable, "-m", PROGRAM, *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._java: int | None = None
        self._executor: int | None = None
        self._unread = b""
        self._failures = 0

    def __enter__(self) -> StreamDriver:
        """Start the driver."""
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop it: cleanly if nothing went wrong, else at once."""
        process = self._running()
        if error is None:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=END_TIMEOUT_S)
        self._kill()

    def watch(self, seconds: float) -> None:
        """Wait up to ``seconds`` for messages, and process them.

        A driver that has ended by itself is restarted, like one that was killed;
        ``ConnectionFailedError`` if that happens too often.
        """
        output = self._running().stdout
        assert output is not None
        ready = select.poll()
        ready.register(output, select.POLLIN)
        if not ready.poll(1_000 * seconds):
            return
        news = os.read(output.fileno(), READ_BYTES)
        if not news:
            self._start_after_failure()
            return
        *lines, self._unread = (self._unread + news).split(b"\n")
        for line in lines:
            # Libraries may print too.
            if line.startswith(b"{"):
                self._take(json.loads(line))

    def kill_and_restart(self) -> int:
        """``kill -9`` the driver's Java process and its Python; return the id of the former."""
        java = self._java
        if java is None:
            raise ConnectionFailedError("the driver of the stream is still starting")
        self._kill()
        self._start()
        return java

    def kill_executor(self) -> int:
        """``kill -9`` the executor's Java process, which Spark replaces; return its id."""
        self._executor, asked = None, None
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while self._executor is None:
            if time.monotonic() > deadline:
                raise ConnectionFailedError(
                    f"the driver of the stream named no executor for {ANSWER_TIMEOUT_S:.0f} s"
                )
            if asked is not self._process:
                asked = self._running()
                self._ask(asked)
            self.watch(1.0)
        os.kill(self._executor, signal.SIGKILL)
        self.is_working = False
        return self._executor

    def _ask(self, process: subprocess.Popen[bytes]) -> None:
        """Ask a driver for its executor; one that has just ended does not reply."""
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"executor\n")
            process.stdin.flush()

    def _start_after_failure(self) -> None:
        status = self._running().wait()
        if self._failures == FAILURES_MAX:
            raise ConnectionFailedError(
                f"the driver of the stream ended by itself, with exit status {status} (see above)"
            )
        self._failures += 1
        self._kill()
        self._start()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ConnectionFailedError("the driver of the stream is not started")
        return self._process

    def _start(self) -> None:
        self._java, self._unread, self.is_working = None, b"", False
        self._process = subprocess.Popen(  # noqa: S603
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            start_new_session=True,
        )

    def _kill(self) -> None:
        process = self._running()
        # Python first, so that it does not report the death of the other.
        process.kill()
        if self._java is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._java, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]

    def _take(self, message: dict[str, Any]) -> None:
        if "java" in message:
            self._java = message["java"]
        elif "executor" in message:
            self._executor = message["executor"]
        else:
            self.is_working = True
            # Progress never goes back: a trigger without new data may report nothing.
            self.progress = Progress(
                **{
                    one.name: max(getattr(self.progress, one.name), message[one.name])
                    for one in fields(Progress)
                }
            )
