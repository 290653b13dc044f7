"""SIGINT and SIGTERM while a command works: it ends in order, and a second one ends it at once."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

STATUS_BASE: Final = 128
"""What shells add to the number of the signal that ended a program."""


class EndedBySignal(KeyboardInterrupt):
    """A signal asks the command to end. No ``Exception``, so that it is not taken for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status that shells expect."""
        return STATUS_BASE + self.number


class _OrderlyEnd:
    """Raises the first signal where the program is, unless that is held just then."""

    def __init__(self) -> None:
        self._is_ours = False
        self._holders = 0
        self._held: int | None = None

    def begin(self) -> None:
        """From now on the first signal raises ``EndedBySignal`` in the main thread."""
        self._is_ours = True
        self._held = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)

    def end(self) -> None:
        """From now on a signal ends the process at once and silently, if ``begin`` was called.

        For the work left at exit, which must not show a traceback either.
        """
        if self._is_ours:
            self._is_ours = False
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_DFL)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold a signal that arrives in the block until its end."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
        if self._held is not None and not self._holders:
            self._raise(self._held)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.end()
        if self._holders:
            self._held = number
        else:
            self._raise(number)

    def _raise(self, number: int) -> NoReturn:
        self._held = None
        raise EndedBySignal(number)


_orderly_end: Final = _OrderlyEnd()
end_in_order: Final = _orderly_end.begin
end_at_once: Final = _orderly_end.end
held: Final = _orderly_end.held


@contextlib.contextmanager
def blocked_termination() -> Iterator[None]:
    """Hold SIGTERM until the end of the block: Ray would print a stack trace while it joins."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
