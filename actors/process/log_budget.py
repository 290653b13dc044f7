"""Log lines about what others do wrong: limited per minute, with a count of those left out."""

from __future__ import annotations

import logging
from typing import Final

from oncelog.actors.process.clock import loop_ms

LINES_PER_MINUTE_MAX: Final = 60
_MINUTE_MS: Final = 60_000


class LogBudget:
    """Warnings of one kind, which a misbehaving peer could repeat without end."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._minute_end_ms = 0.0
        self._line_count = 0

    def warn(self, line: str, *arguments: object) -> None:
        """Log a line, unless this minute had too many; the next one counts those dropped."""
        if loop_ms() >= self._minute_end_ms:
            if self._line_count > LINES_PER_MINUTE_MAX:
                left_out = self._line_count - LINES_PER_MINUTE_MAX
                self._logger.warning("%d more lines like these were left out", left_out)
            self._minute_end_ms = loop_ms() + _MINUTE_MS
            self._line_count = 0
        self._line_count += 1
        if self._line_count <= LINES_PER_MINUTE_MAX:
            self._logger.warning(line, *arguments)
