"""What a Spark user sees when something is wrong: one line that says what, and what to do.

Spark wraps an error of a data source in its own exceptions, with a Python traceback; the last line
is ours.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from oncelog.storage.exceptions import OncelogError

TOLD_MAX: Final = 1_000
"""How many lines a process of Spark's remembers to have told."""

_logger = logging.getLogger(__name__)


@functools.lru_cache(maxsize=TOLD_MAX)
def tell_once(line: str) -> None:
    """Warn of something that every micro-batch comes upon, once in this process."""
    _logger.warning("%s", line)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn an error of oncelog into a ``ValueError`` of one line, without its inner causes."""
    try:
        yield
    except OncelogError as error:
        text = " ".join(str(error).split())
        raise ValueError(f"oncelog: {text}") from None
