"""A program that writes while something happens to hosts, and how long it had to wait."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from deadlines import DEADLINE_S, wait_for
from hosts_cluster import HostsCluster, ledger
from network_hosts import Host

COMMITS_BEFORE: Final = 20
"""So many show that it writes."""


NOBODY: Final[Mapping[str, str]] = {}
"""The environment of a program that runs as no user of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a program did: transactions, those that failed, and its longest wait for a commit."""

    name: str
    committed: int
    failed: int
    pause_s: float

    def demand(self, *, pause_s: float) -> str:
        """In words; AssertionError if a transaction failed or a pause was longer than this."""
        assert not self.failed, f"{self.name}: {self.failed} transactions failed"
        assert self.pause_s <= pause_s, f"{self.name}: {self.pause_s:.1f} s between two commits"
        return str(self)

    def __str__(self) -> str:
        return f"{self.name} {self.committed} commits, longest pause {self.pause_s:.1f} s"


class SteadyWriter:
    """Writes transactions over some partitions of a topic, from a host, until it is stopped."""

    def __init__(
        self,
        cluster: HostsCluster,
        at: Host,
        name: str,
        topic: str,
        partitions: Collection[int],
        variables: Mapping[str, str] = NOBODY,
    ) -> None:
        self._name = name
        self._ledger = ledger(at, topic, name)
        self._stop = self._ledger.with_name(f"stop-{self._ledger.name}")
        settings = [f"{key}={text}" for key, text in variables.items()]
        command = cluster.writer(at, name, topic, partitions, 0)
        self._program = at.begin("env", *settings, *command)
        self.wait_for_more(COMMITS_BEFORE)

    def commits(self) -> list[float]:
        """When each transaction was committed, in seconds."""
        return self._times(" committed ")

    def wait_for_more(self, count: int = COMMITS_BEFORE) -> None:
        """Until it has committed so many more than now."""
        wanted = len(self.commits()) + count
        wait_for(lambda: len(self.commits()) >= wanted, f"{self._name} to commit")

    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._program.poll() is None

    def ended(self) -> None:
        """Wait until it has ended without being told to."""
        self._program.wait(timeout=DEADLINE_S)

    def stop(self) -> Written:
        """End it, once it has committed some more."""
        self.wait_for_more()
        self._stop.touch()
        assert self._program.wait(timeout=DEADLINE_S) == 0, f"{self._name} failed"
        commits = self.commits()
        return Written(
            name=self._name,
            committed=len(commits),
            failed=len(self._times(" unknown ")),
            pause_s=max(after - before for before, after in itertools.pairwise(commits)),
        )

    def _times(self, mark: str) -> list[float]:
        if not self._ledger.exists():
            return []
        # The last line may not be whole yet.
        lines = self._ledger.read_text().rpartition("\n")[0].splitlines()
        return [float(line.rpartition(" ")[2]) for line in lines if mark in line]
