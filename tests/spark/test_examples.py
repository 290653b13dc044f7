"""The examples that use Spark, as they are shipped, twice: the second run repeats no write."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.spark]

TIMEOUT_S = 400
SQUARES = f"500 squares, their sum {sum(number**2 for number in range(0, 1_000, 2))}"


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        ("stream_join", ["900 journeys, 900 different ones"] * 2),
        ("foreach_batch", [f"page-0 {n}\npage-1 {n}\npage-2 {n}" for n in (30, 60)]),
        ("pipeline", [SQUARES] * 2),
    ],
)
def test_the_example_prints_what_it_says(name, outputs, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    for output in outputs:
        done = subprocess.run(
            [sys.executable, "-m", f"oncelog.examples.{name}"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.rstrip().endswith(output)
