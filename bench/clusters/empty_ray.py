"""A Ray cluster started as oncelog starts its own, with nothing in it, until SIGTERM."""

from __future__ import annotations

import sys
from pathlib import Path

from oncelog.api.cli import head
from oncelog.api.session import cluster_connection


def main() -> None:
    """Start Ray, leave a file that says so, wait, stop Ray."""
    mark, cpus = Path(sys.argv[1]), int(sys.argv[2])
    rest = cluster_connection.start_ray(num_cpus=cpus, dashboard_port=None)
    rest.begin(then=lambda: None)
    rest.wait()
    import ray

    signals = head.catch_signals()
    mark.touch()
    head.wait_for_signal(signals)
    ray.shutdown()


if __name__ == "__main__":
    main()
