"""A worker of a queue that dies with its records, or waits for another's.

    python queue_worker.py GROUP TOPIC COUNT DIRECTORY

It takes records until it has COUNT of them and then makes the file "held". When there is a file
"die" it makes the file "dead" and kills itself. It makes the file "waits" whenever it gets nothing.
Files are in DIRECTORY, and have the time in seconds, which is the same on all hosts of a machine.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import oncelog


def main(group: str, topic: str, count: str, directory: str) -> None:
    place, held = Path(directory), 0
    with oncelog.connect() as cluster, cluster.queue(topic, group_id=group) as queue:
        while held < int(count):
            taken = len(queue.take(timeout_ms=500))
            held += taken
            if not taken:
                note(place / "waits")
        note(place / "held")
        while not (place / "die").exists():
            time.sleep(0.05)
        note(place / "dead")
        os.kill(os.getpid(), signal.SIGKILL)


def note(file: Path) -> None:
    made = file.with_suffix(".new")
    made.write_text(f"{time.monotonic():.3f}")
    made.rename(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
