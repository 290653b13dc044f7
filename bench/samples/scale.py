"""A sample of ``bench/scale.py``: one case.

``samples/scale.py CASE SIZE DIRECTORY``; see ``measuring.findings``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path


def main() -> None:
    """Run one case; only those that need a cluster load Ray."""
    case, size, directory = sys.argv[1:]
    for module in ("cases.scale_local", "cases.scale_cluster"):
        run = getattr(import_module(module), f"run_{case}", None)
        if run is not None:
            run(int(size), Path(directory))
            return
    raise SystemExit(f"no case {case!r}")


if __name__ == "__main__":
    main()
