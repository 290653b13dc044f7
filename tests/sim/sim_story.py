"""What happened in a simulated world, as lines for people; made only when needed."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec
from msgspec import structs

from oncelog.storage.model import TopicPartition

EVENTS_KEPT = 20_000
BYTES_SHOWN_MAX = 16
LINE_LENGTH_MAX = 240


class Story:
    """The last events: virtual time, process, what, and with which message."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, str, str, Any]] = deque(maxlen=EVENTS_KEPT)

    def add(self, time_s: float, process: str, what: str, about: Any = None) -> None:
        """Note one event; ``about`` is a message, or anything with a ``repr``."""
        self._events.append((time_s, process, what, about))

    def lines(self, *, last: int = 100, about: tuple[str, ...] = ()) -> list[str]:
        """The last lines; with ``about`` those that name one of it (an id, a partition, a process).

        Crashes, restarts and notes are always among them.
        """
        chosen: deque[str] = deque(maxlen=last)
        for time_s, process, what, subject in self._events:
            line = f"{time_s:11.6f} {process:<28} {what}"
            if subject is not None:
                line += f" {_shown(subject)}"
            if not about or what.startswith("*") or any(word in line for word in about):
                is_short = len(line) <= LINE_LENGTH_MAX
                chosen.append(line if is_short else line[:LINE_LENGTH_MAX] + "…")
        return list(chosen)

    def text(self, *, last: int = 100, about: tuple[str, ...] = ()) -> str:
        """``lines`` as one text."""
        return "\n".join(self.lines(last=last, about=about))


def _shown(value: Any) -> str:
    """A message with those fields that are not as they are by default."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, TopicPartition):
        return str(value)
    if isinstance(value, msgspec.Struct):
        parts = [
            f"{field.name}={_shown(found)}"
            for field in structs.fields(type(value))
            if (found := getattr(value, field.name)) != field.default
        ]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, (bytes, bytearray)) and len(value) > BYTES_SHOWN_MAX:
        return f"<{len(value)} bytes>"
    if type(value) is tuple:
        return f"({', '.join(_shown(item) for item in value)})"
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return str(value)
    return repr(value)


class StoryHandler(logging.Handler):
    """Tells what the program logs as part of the story, instead of printing it."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._tell = tell
        self._logger = logging.getLogger("oncelog")
        self._before = (self._logger.level, self._logger.propagate)

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(f"log: {record.getMessage()}")

    def install(self) -> None:
        self._before = (self._logger.level, self._logger.propagate)
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False

    def remove(self) -> None:
        self._logger.removeHandler(self)
        level, self._logger.propagate = self._before
        self._logger.setLevel(level)
