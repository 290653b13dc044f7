"""What a Spark user sees when something is wrong: one line that says what, and what to do.

Spark wraps an error of a data source in its own exceptions, with a Python traceback; the last line
is ours.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from oncelog.storage.exceptions import OncelogError

WARNED_MAX: Final = 1_000
"""How many lines a process of Spark's remembers to have told."""

PRODUCER_SETTINGS: Final = (
    "linger_ms",
    "batch_size",
    "buffer_memory",
    "max_request_size",
    "max_block_ms",
    "request_timeout_ms",
    "delivery_timeout_ms",
)
"""Settings of each task's producer that are options of a write."""

_SETTING: Final = re.compile(rf"\b(?:{'|'.join(PRODUCER_SETTINGS)})\b")

_logger = logging.getLogger(__name__)


@functools.lru_cache(maxsize=WARNED_MAX)
def warn_once(line: str) -> None:
    """Warn of something that every micro-batch comes upon, once in this process."""
    _logger.warning("%s", line)


def option_of(setting: str) -> str:
    """The option of a write that a producer's setting is."""
    return f"kafka.{setting.replace('_', '.')}"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn an error of oncelog into a ``ValueError`` of one line, without its inner causes.

    A setting that it names is named as the option that it is here.
    """
    try:
        yield
    except OncelogError as error:
        text = " ".join(str(error).split())
        text = _SETTING.sub(lambda found: option_of(found.group()), text)
        raise ValueError(f"oncelog: {text}") from None
