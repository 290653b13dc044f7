"""What a Spark user sees when something is wrong: one line that says what, and what to do.

Spark wraps an error of a data source in its own exceptions, with a Python traceback; the last line
is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from oncelog.storage.exceptions import OncelogError


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn an error of oncelog into a ``ValueError`` of one line, without its inner causes."""
    try:
        yield
    except OncelogError as error:
        text = " ".join(str(error).split())
        raise ValueError(f"oncelog: {text}") from None
