"""The examples that use Spark, as they are shipped, twice: the second run repeats no write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deadlines import DEADLINE_S

pytestmark = [pytest.mark.ray, pytest.mark.spark]

SQUARES = f"500 squares, their sum {sum(number**2 for number in range(0, 1_000, 2))}"
OUTPUTS = {
    "stream_join": ["900 journeys, 900 different ones"] * 2,
    "foreach_batch": [f"page-0 {n}\npage-1 {n}\npage-2 {n}" for n in (30, 60)],
    "pipeline": [SQUARES] * 2,
}
PROGRAM = """
import runpy, sys

for name in sys.argv[1:] * 2:
    print("begins", name, flush=True)
    runpy.run_module(f"oncelog.examples.{name}", run_name="__main__")
"""
"""One process for all of them: to start Ray and Java six times is what takes long."""


def test_the_examples_print_what_they_say(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *OUTPUTS],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    told = [text.partition("\n") for text in done.stdout.split("begins ")[1:]]
    found = [(name, output.rstrip()) for name, _, output in told]
    wanted = [(name, outputs[run]) for run in (0, 1) for name, outputs in OUTPUTS.items()]
    assert [name for name, _ in found] == [name for name, _ in wanted]
    for (_, output), (_, end) in zip(found, wanted, strict=True):
        assert output.endswith(end)
