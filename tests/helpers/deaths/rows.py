"""What every cell reads and writes, and the files by which its processes and its judge agree."""

from __future__ import annotations

from typing import Final

SOURCE_TOPIC: Final = "source"
SOURCE_ROWS: Final = 60
BATCH_OFFSETS: Final = 20
"""Of a micro-batch: three of them read all."""
STRUCK_BATCH: Final = 1
"""The micro-batch of a stream in which a process dies."""
WRITE_ROWS: Final = 40
PARTITIONS: Final = 2

FIRST: Final = "first"
SECOND: Final = "second"
"""What the values of a batch write, and of the one after it, begin with."""

# --- files of a cell's directory ------------------------------------------------------------------

STRUCK: Final = "struck"
"""When the victim was killed, and its process id."""
TASK: Final = "task.json"
"""The processes of the first task."""
SAVED: Final = "saved"
"""The first write of a batch has returned."""
AGAIN: Final = "again"
"""The program was started again after its driver's death."""
DONE: Final = "done"
"""There is nothing more to do."""
