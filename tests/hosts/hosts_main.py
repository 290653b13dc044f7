"""``./run hosts``: `ray up` with the project's ``cluster.yaml``, on hosts that this machine plays.

    ./run hosts [--keep DIR]

Each host is a set of namespaces with an address, an sshd and a disk of its own. Programs write
transactions over the partitions of all hosts, by `oncelog.connect()` and by `ray job submit`, while
a cable is pulled, hosts are killed and come back, one joins, and the cluster goes down and up.
After each step everything committed is read and compared with what the programs know.

Exit status 0 if all held, 1 if not, 77 if this machine lacks something: a line says what.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hosts_cluster import HostsCluster, ledger
from network_hosts import Host, Network, missing, wait_for

STATUS_SKIPPED: Final = 77
TOPIC: Final = "numbers"
PARTITIONS: Final = 6
DOWN_S: Final = 120.0
"""Workers end a minute after they have lost the head."""


class Trial:
    """One cluster, and the steps it goes through, in order."""

    def __init__(self, network: Network) -> None:
        self.cluster = HostsCluster(network, workers=2)
        self.head = self.cluster.head
        self.steps: list[Callable[[], str]] = [
            self.comes_up,
            self.programs_write,
            self.job_writes,
            self.cable_is_pulled,
            self.worker_is_killed,
            self.host_joins,
            self.head_is_killed,
            self.goes_down_and_up,
        ]

    def comes_up(self) -> str:
        cluster = self.cluster
        cluster.up()
        cluster.oncelog("topics", "list")  # It serves when `ray up` returns.
        cluster.wait_until_all_serve()
        cluster.oncelog("topics", "create", TOPIC, "--partitions", str(PARTITIONS))
        places = {host.name: cluster.partitions_on(host, TOPIC) for host in cluster.hosts()}
        assert sorted(itertools.chain(*places.values())) == list(range(PARTITIONS)), places
        assert all(places.values()), places
        return f"brokers {[cluster.number_of(host) for host in cluster.hosts()]}"

    def programs_write(self) -> str:
        for host in self.cluster.hosts():
            self._write(host, f"on-{host.name}", 20)
        return self._checked()

    def job_writes(self) -> str:
        writer = self.cluster.writer(self.head, "job", TOPIC, range(PARTITIONS), 20)
        submit = ("ray", "job", "submit", "--address=http://127.0.0.1:8265", "--", *writer)
        assert "succeeded" in self.head.run(*submit)
        return self._checked()

    def cable_is_pulled(self) -> str:
        cluster, away = self.cluster, self.cluster.workers[0]
        through = self._begin_writing("through-cable")
        away.pull_cable()
        cluster.wait_until_gone(away)
        self._write_beside(away, "beside-cable")
        away.plug_cable()
        return self._back(through)

    def worker_is_killed(self) -> str:
        cluster, away = self.cluster, self.cluster.workers[1]
        through = self._begin_writing("through-kill")
        away.kill()
        cluster.wait_until_gone(away)
        self._write_beside(away, "beside-kill")
        away.start()
        return self._back(through)

    def host_joins(self) -> str:
        cluster = self.cluster
        before = self._processes_of_log()
        new = cluster.add_worker()
        cluster.up()
        cluster.wait_until_all_serve()
        assert before <= self._processes_of_log(), "a process of the log was started anew"
        cluster.oncelog("topics", "create", "more", "--partitions", "8")
        assert cluster.partitions_on(new, "more")
        new.run(*cluster.writer(new, "newcomer", "more", range(8), 10))
        cluster.check(self.head, "more")
        return self._checked()

    def head_is_killed(self) -> str:
        self.head.kill()
        self.head.start()
        self.cluster.up()
        return self._back(self._begin_writing("after-head"))

    def goes_down_and_up(self) -> str:
        cluster = self.cluster
        cluster.down()
        left = [host for host in cluster.hosts() if host is not self.head]
        assert not ray_processes(self.head), ray_processes(self.head)
        for host in left:
            wait_for(lambda host=host: not ray_processes(host), f"the end of {host.name}", DOWN_S)
        cluster.up()
        said = self._back(self._begin_writing("after-down"))
        cluster.check(self.head, "more")
        return said

    # --- parts of steps -----------------------------------------------------------------------

    def _write(self, host: Host, name: str, count: int) -> None:
        host.run(*self.cluster.writer(host, name, TOPIC, range(PARTITIONS), count))

    def _begin_writing(self, name: str) -> subprocess.Popen[bytes]:
        """A program that writes to all partitions, once it has committed something."""
        begun = self.head.begin(
            *self.cluster.writer(self.head, name, TOPIC, range(PARTITIONS), 200)
        )
        path = ledger(self.head, TOPIC, name)
        wait_for(lambda: path.exists() and "committed" in path.read_text(), f"{name} to commit")
        return begun

    def _write_beside(self, away: Host, name: str) -> None:
        """What lies on other hosts than ``away`` is written to from one of them."""
        cluster = self.cluster
        (other,) = (host for host in cluster.workers[:2] if host is not away)
        here = set(range(PARTITIONS)) - set(cluster.partitions_on(away, TOPIC))
        other.run(*cluster.writer(other, name, TOPIC, here, 10))
        text = ledger(other, TOPIC, name).read_text()
        assert text.count(" committed\n") == 8, text

    def _back(self, through: subprocess.Popen[bytes]) -> str:
        """All serves again, and the program that wrote meanwhile has come to its end."""
        since = time.monotonic()
        self.cluster.wait_until_all_serve()
        served_s = time.monotonic() - since
        assert through.wait(timeout=240) == 0, "the program that wrote meanwhile failed"
        return f"all serve {served_s:.0f} s later, {self._checked()}"

    def _checked(self) -> str:
        counts = {self.cluster.check(host, TOPIC) for host in self.cluster.hosts()[:2]}
        assert len(counts) == 1, counts
        return f"{counts.pop()} records, none lost or doubled"

    def _processes_of_log(self) -> set[tuple[str, int]]:
        actors = self.cluster.status()["actors"]
        return {(actor["name"], actor["process_id"]) for actor in actors}


def ray_processes(host: Host) -> list[str]:
    """What runs of Ray and the log on a host, but for agents that still look for a lost head."""
    marks = ("raylet_socket_name", "gcs_server", "log_monitor.py", "Process")
    return [line for line in host.processes() if any(mark in line for mark in marks)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run hosts", allow_abbrev=False)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the hosts' files there")
    args = parser.parse_args()
    reason = missing()
    if reason:
        print(f"skipped: {reason}")
        return STATUS_SKIPPED
    if args.keep is not None:
        if args.keep.exists():
            parser.error(f"--keep {args.keep}: there is something already")
        args.keep.mkdir(parents=True)
    root = args.keep.absolute() if args.keep else Path(tempfile.mkdtemp(prefix="oncelog-hosts-"))
    began = time.monotonic()
    try:
        with Network(root) as network:
            for step in Trial(network).steps:
                since = time.monotonic()
                said = step()
                name = step.__name__.replace("_", " ")
                print(f"{time.monotonic() - since:5.0f} s  {name}: {said}", flush=True)
    except Exception:
        traceback.print_exc()
        print(f"FAILED after {time.monotonic() - began:.0f} s; the hosts' files are in {root}")
        return 1
    if args.keep is None:
        shutil.rmtree(root)
    print(f"HOSTS: all held, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
