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
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            status = cli.main(json.loads(line))
        print(json.dumps([status, output.getvalue(), errors.getvalue()]), file=answers)


if __name__ == "__main__":
    main()
