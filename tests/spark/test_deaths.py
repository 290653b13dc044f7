"""A slice of the matrix of deaths with real kills, and its judge on handmade readings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deaths.cells import (
    DRIVER_JAVA,
    DRIVER_PYTHON,
    EXECUTOR,
    KINDS,
    MICRO_BATCH,
    PLANNER,
    RECORDED,
    ROWS,
    SAVE,
    SENT,
    STEPS,
    VERSION,
    VICTIMS,
    WORKER,
    Cell,
    cell_of,
    chosen,
    matrix,
)
from deaths.judging import ALL, EITHER, NONE, fate, must_return, wrong_rows
from deaths.rows import SOURCE_ROWS, WRITE_ROWS

HELPERS = Path(__file__).resolve().parent.parent / "helpers"
SLICE_TIMEOUT_S = 1_800
SLICE = (
    "save/worker/rows",
    "available-now/executor/written",
    "foreach-batch/planner/recorded",
    "micro-batch/driver-python/recorded",
)
FIRST_ROWS = [f"first-{number}" for number in range(WRITE_ROWS)]
SECOND_ROWS = [f"second-{number}" for number in range(WRITE_ROWS)]
STREAM_ROWS = [f"row-{number}" for number in range(SOURCE_ROWS)]


def test_the_matrix_has_each_victim_at_each_step_that_it_can_be_at():
    cells = matrix()
    assert len(cells) == len(set(cells)) == len(KINDS) * (4 * len(STEPS) + 5)
    for victim in VICTIMS:
        assert {cell.kind for cell in cells if cell.victim == victim} == set(KINDS)
    assert {cell.step for cell in cells if cell.victim == DRIVER_PYTHON} == set(STEPS)
    assert all(cell_of(cell.name) == cell for cell in cells)


def test_cells_are_chosen_by_patterns_and_what_matches_none_is_refused():
    assert [cell.name for cell in chosen(["save/worker/rows"])] == ["save/worker/rows"]
    assert {cell.victim for cell in chosen(["*/driver-java/*"])} == {DRIVER_JAVA}
    with pytest.raises(ValueError, match="no cell 'save/nobody/rows': names are"):
        chosen(["*/driver-java/*", "save/nobody/rows"])


@pytest.mark.parametrize(
    ("cell", "is_saved", "expected"),
    [
        (Cell(SAVE, WORKER, ROWS), True, ALL),
        (Cell(SAVE, PLANNER, RECORDED), False, ALL),
        (Cell(SAVE, PLANNER, SENT), False, EITHER),
        (Cell(SAVE, DRIVER_JAVA, ROWS), False, NONE),
        (Cell(SAVE, DRIVER_PYTHON, ROWS), False, EITHER),
        (Cell(VERSION, DRIVER_JAVA, ROWS), False, ALL),
    ],
)
def test_a_write_that_nobody_repeats_is_there_as_its_death_allows(cell, is_saved, expected):
    assert fate(cell, is_saved=is_saved) == expected


def test_only_a_death_that_spark_mends_lets_the_write_return():
    assert must_return(Cell(SAVE, EXECUTOR, ROWS))
    assert not must_return(Cell(SAVE, EXECUTOR, "abort"))
    assert not must_return(Cell(SAVE, DRIVER_JAVA, ROWS))


@pytest.mark.parametrize(
    ("cell", "values", "wrong"),
    [
        (Cell(VERSION, WORKER, ROWS), FIRST_ROWS + SECOND_ROWS, []),
        (Cell(VERSION, WORKER, ROWS), FIRST_ROWS[1:] + SECOND_ROWS, ["1 missing: first-0"]),
        (Cell(VERSION, WORKER, ROWS), SECOND_ROWS, ["40 missing: first-0, first-1, first-10"]),
        (Cell(MICRO_BATCH, WORKER, ROWS), STREAM_ROWS, []),
        (Cell(MICRO_BATCH, WORKER, ROWS), [*STREAM_ROWS, "row-7"], ["there twice: row-7"]),
        (Cell(MICRO_BATCH, WORKER, ROWS), [*STREAM_ROWS, "row-x"], ["1 too many: row-x"]),
        (Cell(SAVE, PLANNER, SENT), SECOND_ROWS, []),
        (Cell(SAVE, PLANNER, SENT), FIRST_ROWS + SECOND_ROWS, []),
        (Cell(SAVE, PLANNER, SENT), FIRST_ROWS[:39] + SECOND_ROWS, ["1 missing: first-39"]),
        (Cell(SAVE, DRIVER_JAVA, ROWS), SECOND_ROWS, []),
        (Cell(SAVE, DRIVER_JAVA, ROWS), [*SECOND_ROWS, "first-3"], ["1 too many: first-3"]),
    ],
)
def test_rows_that_are_missing_or_too_many_are_found(cell, values, wrong):
    found = wrong_rows(cell, values, is_saved=False)
    assert len(found) == len(wrong)
    assert all(line.startswith(start) for line, start in zip(found, wrong, strict=True))


@pytest.mark.ray
@pytest.mark.spark
@pytest.mark.slow
def test_each_row_is_there_once_whoever_of_spark_dies(tmp_path):
    """A cell for each victim but Java, which dies in ``test_dead_driver``; all of them by ``./run
    deaths``. A driver's death costs a second start of Spark.
    """
    only = [word for name in SLICE for word in ("--only", name)]
    done = subprocess.run(
        [sys.executable, "-m", "deaths", "--directory", str(tmp_path), *only],
        env={**os.environ, "PYTHONPATH": str(HELPERS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=SLICE_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    right = [line for line in done.stdout.splitlines() if line.endswith(": right")]
    assert sorted(right) == sorted(f"{name}: right" for name in SLICE)
