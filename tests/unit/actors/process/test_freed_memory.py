"""Freed memory is filled again without asking the system for every page, or goes back to it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from oncelog.actors.process import freed_memory

SCRIPT = """
import resource, runpy, sys
keep = runpy.run_path(sys.argv[1])["keep_freed_memory"]
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        # As many as are on their way at once.
        batches = [b"x" * 300_000 for _ in range(10)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
# Each of the two settles first what the library learns by itself.
faults()
without = faults()
keep()
faults()
print(without, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries are left alone")
def test_batches_that_come_and_go_cause_few_page_faults() -> None:
    command = [sys.executable, "-c", SCRIPT, freed_memory.__file__]
    printed = subprocess.run(command, capture_output=True, check=True, text=True, env={}).stdout
    without, kept = map(int, printed.split())
    assert without > 10_000
    assert kept < without / 10


RETURNING = """
import runpy, sys
give_back = runpy.run_path(sys.argv[1])["return_freed_memory"]
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4_096
blocks = [bytes(50_000) for _ in range(2_000)]
# What stays keeps the rest from being returned by itself.
blocks = blocks[::10]
before = resident()
give_back()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries are left alone")
def test_memory_between_blocks_in_use_is_returned() -> None:
    command = [sys.executable, "-c", RETURNING, freed_memory.__file__]
    printed = subprocess.run(command, capture_output=True, check=True, text=True, env={}).stdout
    assert int(printed) > 50_000_000
