"""Run `oncelog` commands, one after another, in one process: to connect anew takes each seconds.

    python commands.py

A line of input is a JSON list, the arguments of a command. It is answered by a line, a JSON list:
exit status, output, errors.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys

from oncelog.api.cli import main as cli


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # What Ray prints is no answer.
    for line in sys.stdin:
        output, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            status = cli.main(json.loads(line))
        print(json.dumps([status, text_of(output), text_of(errors)]), file=answers)


def text_of(stream: io.TextIOWrapper) -> str:
    """What was written to a stream, or to the bytes below it, as records are."""
    stream.flush()
    stream.seek(0)
    return stream.read()


if __name__ == "__main__":
    main()
