"""A value made of files, such as a certificate, and made again when they change.

So a file is renewed without a restart. One that cannot be used changes nothing: a half-written
certificate must not end what works.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from oncelog.actors.interfaces import Clock
from oncelog.storage.exceptions import InvalidSettingError

_logger = logging.getLogger(__name__)

LOOK_AGAIN_MS: Final = 1_000
"""How long the files are taken to be unchanged."""

WARN_AGAIN_MS: Final = 60_000
"""How long nothing is logged after a warning that the files cannot be used."""

Value = TypeVar("Value")


class ReloadedFiles(Generic[Value]):
    """What ``load`` makes of the files at ``paths``; for one thread.

    ``load`` raises ``InvalidSettingError`` or ``OSError`` if it cannot be made.
    """

    def __init__(
        self, paths: Sequence[Path], load: Callable[[], Value], clock: Clock, what: str
    ) -> None:
        self._paths = paths
        self._load = load
        self._clock = clock
        self._what = what
        # Before the load: if a file changes meanwhile, the next look sees that.
        self._stamps = self._look()
        self._value = load()
        self._looked_at_ms = clock.now_ms()
        self._warned_at_ms: int | None = None

    def value(self) -> Value:
        """The newest value that could be made."""
        now_ms = self._clock.now_ms()
        # The clock may step back.
        if 0 <= now_ms - self._looked_at_ms < LOOK_AGAIN_MS:
            return self._value
        self._looked_at_ms = now_ms
        stamps = self._look()
        if stamps != self._stamps:
            try:
                self._value = self._load()
            except (InvalidSettingError, OSError) as error:
                self._warn(error, now_ms)
            else:
                self._stamps = stamps
                self._warned_at_ms = None
                _logger.info("%s: the files have changed and are in use", self._what)
        return self._value

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._paths]

    def _warn(self, error: Exception, now_ms: int) -> None:
        warned_at_ms = self._warned_at_ms
        if warned_at_ms is None or not 0 <= now_ms - warned_at_ms < WARN_AGAIN_MS:
            self._warned_at_ms = now_ms
            _logger.warning(
                "%s: the new files cannot be used, the old stay: %s — put sound files there; they "
                "are read again once they change",
                *(self._what, error),
            )


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What differs between two contents of a file; ``None`` if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
