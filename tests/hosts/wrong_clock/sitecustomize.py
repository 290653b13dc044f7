"""Python starts with this where it is on its path: the wall clock of its programs is wrong.

A library that shifts the system's own clock would do so for Ray as well, whose calls wait until
moments of that clock, and for ``time.sleep``, which then fails.
"""

import os
import time

_SHIFT_NS = int(os.environ.get("CLOCK_SHIFT_S", "0")) * 1_000_000_000
_right_ns = time.time_ns


def _wrong_ns() -> int:
    return _right_ns() + _SHIFT_NS


def _wrong_s() -> float:
    return _wrong_ns() / 1e9


time.time_ns = _wrong_ns
time.time = _wrong_s
