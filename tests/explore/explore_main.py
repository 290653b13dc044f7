"""``./run explore [MODEL]``: every state of small worlds, and the way to one that is wrong."""

from __future__ import annotations

import argparse
import sys

import coordinator_model
import partition_model
import quorum_model
import version_1_model
from explorer import explore

MODELS = {
    model.name: model
    for model in (
        *partition_model.MODELS,
        *quorum_model.MODELS,
        *coordinator_model.MODELS,
        *version_1_model.MODELS,
    )
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run explore", description=__doc__)
    parser.add_argument("model", nargs="?", choices=MODELS, help="one of them; all, if left out")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each model (60)")
    given = parser.parse_args()
    broken = False
    for name in [given.model] if given.model else MODELS:
        report = explore(MODELS[name], seconds=given.seconds)
        sys.stdout.write(f"{report}\n")
        sys.stdout.flush()
        broken |= bool(report.broken)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
