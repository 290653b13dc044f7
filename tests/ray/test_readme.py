"""What README, the quickstart and the page of commands show, run as it stands, and once more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from deadlines import DEADLINE_S

NOTEBOOK = """
import sys
cell, names = compile(sys.stdin.read(), "cell", "exec"), {"__name__": "__main__"}
for _ in range(2):
    exec(cell, names)
    print("the cell has run", flush=True)
"""
"""A cell that its user runs again, with what the first run has left."""

ROOT = Path(__file__).resolve().parents[2]
TIMES = 2

README, QUICKSTART, COMMANDS = "README.md", "docs/quickstart.md", "docs/commands.md"


def blocks(page: str, heading: str) -> list[str]:
    """The code blocks of a section of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^```[a-z]*\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found, f"no code in {page} under {heading!r}"
    return found


def run(*command: str, text: str, place: Path) -> str:
    """Run a command on ``text`` in an empty place, as a user of ``.venv`` would."""
    unset = {"RAY_ADDRESS", "ONCELOG_DEBUG"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        command,
        input=text,
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.ray
@pytest.mark.parametrize("page", [README, QUICKSTART])
def test_the_python_of_a_page_runs_and_its_second_run_goes_on_where_the_first_ended(
    page: str, tmp_path: Path
) -> None:
    (program,) = blocks(page, "From Python")
    outputs = [run(sys.executable, "-", text=program, place=tmp_path) for _ in range(TIMES)]
    lines = [[line for line in text.splitlines() if "flights" in line] for text in outputs]
    (first,), (second,) = lines
    assert first != second
    assert first.endswith("b'EWR IAH 517'")


@pytest.mark.ray
def test_the_commands_of_the_page_run_twice(tmp_path: Path) -> None:
    commands = blocks(COMMANDS, "From the shell")[0]
    try:
        for _ in range(TIMES):
            output = run("bash", "-euo", "pipefail", text=commands, place=tmp_path)
            assert output.splitlines().count("EWR IAH 517") == 1
    finally:
        run("bash", text="oncelog stop || true", place=tmp_path)


@pytest.mark.ray
def test_the_python_of_the_quickstart_is_a_cell_that_runs_twice(tmp_path: Path) -> None:
    """README's does less, and the same calls: it runs twice above, as a program."""
    (program,) = blocks(QUICKSTART, "From Python")
    output = run(sys.executable, "-c", NOTEBOOK, text=program, place=tmp_path)
    first, second, _ = output.split("the cell has run")
    assert first.count("EWR IAH 517") == second.count("EWR IAH 517") == 1


@pytest.mark.ray
@pytest.mark.spark
def test_the_spark_of_readme_is_a_cell_that_runs_twice(tmp_path: Path) -> None:
    (program,) = blocks(README, "From Spark")
    output = run(sys.executable, "-c", NOTEBOOK, text=program, place=tmp_path)
    first, second, _ = output.split("the cell has run")
    assert (first.count("flights"), second.count("flights")) == (1, 2)
