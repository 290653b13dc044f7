"""The matrix: which process of Spark dies, at which step of which kind of write."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# --- kinds of write -------------------------------------------------------------------------------

SAVE: Final = "save"
"""One batch write without an identity: whether to repeat it is the user's decision."""
VERSION: Final = "version"
"""A batch write with ``txnAppId`` and ``txnVersion``, repeated until it succeeds."""
MICRO_BATCH: Final = "micro-batch"
AVAILABLE_NOW: Final = "available-now"
FOREACH_BATCH: Final = "foreach-batch"
"""A batch write with ``txnAppId`` and the batch's number in each micro-batch."""

STREAMS: Final = (MICRO_BATCH, AVAILABLE_NOW, FOREACH_BATCH)
KINDS: Final = (SAVE, VERSION, *STREAMS)

# --- victims --------------------------------------------------------------------------------------

WORKER: Final = "worker"
"""The Python process of the first task."""
EXECUTOR: Final = "executor"
"""The Java process above it."""
PLANNER: Final = "planner"
"""The Python process that commits and aborts, a child of the driver."""
DRIVER_JAVA: Final = "driver-java"
DRIVER_PYTHON: Final = "driver-python"

DRIVERS: Final = (DRIVER_JAVA, DRIVER_PYTHON)
VICTIMS: Final = (WORKER, EXECUTOR, PLANNER, *DRIVERS)

# --- steps ----------------------------------------------------------------------------------------

BEGIN: Final = "begin"
"""The first task has not yet enlisted, and of a micro-batch not begun its run."""
ROWS: Final = "rows"
"""Some of its rows are in the log."""
WRITTEN: Final = "written"
"""All of them are acknowledged; its report has not reached the driver."""
COMMIT: Final = "commit"
"""The commit is about to be sent."""
SENT: Final = "sent"
"""It is under way: nobody knows whether it is recorded."""
RECORDED: Final = "recorded"
"""It is recorded; Spark has not been told."""
RETURNED: Final = "returned"
"""Spark has been told: ``save`` has returned, or the checkpoint has it."""
ABORT: Final = "abort"
"""The first task has failed for good, and the abort is about to be sent."""
ABORTED: Final = "aborted"
"""The abort is recorded; Spark has not been told."""

TASK_STEPS: Final = (BEGIN, ROWS, WRITTEN)
COMMIT_STEPS: Final = (COMMIT, SENT, RECORDED, RETURNED)
ABORT_STEPS: Final = (ABORT, ABORTED)
STEPS: Final = (*TASK_STEPS, *COMMIT_STEPS, *ABORT_STEPS)

PLANNER_STEPS: Final = (COMMIT, SENT, RECORDED, *ABORT_STEPS)
"""The steps that its process does."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One death: ``victim`` is killed once, when the first task or the planner is at ``step``."""

    kind: str
    victim: str
    step: str

    @property
    def name(self) -> str:
        """As ``--only`` takes it."""
        return f"{self.kind}/{self.victim}/{self.step}"

    @property
    def topic(self) -> str:
        """The topic that it writes to; also the name of its directory."""
        return self.name.replace("/", ".")

    @property
    def kills_driver(self) -> bool:
        """Whether the program has to be started again."""
        return self.victim in DRIVERS


def cell_of(name: str) -> Cell:
    """The cell of that name."""
    return Cell(*name.split("/"))


def matrix() -> list[Cell]:
    """Every cell that there is."""
    return [
        Cell(kind, victim, step)
        for kind, victim, step in itertools.product(KINDS, VICTIMS, STEPS)
        if victim != PLANNER or step in PLANNER_STEPS
    ]


def chosen(patterns: Sequence[str]) -> list[Cell]:
    """The cells whose names match a shell pattern; ``ValueError`` for one that matches none."""
    cells = matrix()
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(cell.name, pattern) for cell in cells):
            raise ValueError(
                f"no cell {pattern!r}: names are KIND/VICTIM/STEP of {', '.join(KINDS)} / "
                f"{', '.join(VICTIMS)} / {', '.join(STEPS)}, and patterns of them"
            )
    return [
        cell
        for cell in cells
        if any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in patterns)
    ]
