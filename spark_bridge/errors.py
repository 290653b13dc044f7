"""Errors as Spark users see them: one line that says what is wrong, and what to do.

Spark wraps a data source's error in its own exceptions, with a Python traceback; the last line is
ours.
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
"""How many logged lines a Spark process remembers, so as not to repeat them."""

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
_FILE: Final = re.compile(r"\b(password|token)(?:_file)?(?==['\"])")
"""The argument with the path of a file, in an error of a login."""

_logger = logging.getLogger(__name__)


@functools.lru_cache(maxsize=WARNED_MAX)
def warn_once(line: str) -> None:
    """Log a warning that every micro-batch would repeat, once per process."""
    _logger.warning("%s — leave them out, or do nothing", line)


def option_of(setting: str) -> str:
    """The write option for a producer setting."""
    return f"kafka.{setting.replace('_', '.')}"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn an error of oncelog into a ``ValueError`` with one line, without its inner causes.

    A setting that it names is replaced by the option's name.
    """
    try:
        yield
    except OncelogError as error:
        text = " ".join(str(error).split())
        text = _SETTING.sub(lambda found: option_of(found.group()), text)
        text = _FILE.sub(r"\1.file", text)
        raise ValueError(f"oncelog: {text}") from None
