"""What goes wrong where nobody can catch it: in a finalizer, or in a coroutine nobody awaits.

Python prints it and goes on; here it is a bug found.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def no_noise(tell: Callable[[BaseException, str], None]) -> Iterator[None]:
    """``tell`` of what is raised where nobody can catch it, and of what is never awaited."""

    def told(unraisable: Any) -> None:
        error = unraisable.exc_value or unraisable.exc_type()
        # As text: what is being finalized must not live on.
        tell(error, f"{unraisable.err_msg or 'Exception ignored in'}: {unraisable.object!r}")

    hook, sys.unraisablehook = sys.unraisablehook, told
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "coroutine .* was never awaited", RuntimeWarning)
            yield
    finally:
        sys.unraisablehook = hook
