"""Nodes that are killed, paused, and come back on their disks: one at a time.

A node counts as struck until it is up again and every replica in sync: so a majority always lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from faults.fault_plan import Fault
from links import OWN
from ray_nodes import Nodes, children_of, descendants_of, is_raylet

LOOK_EVERY_S: Final = 0.3
UP_DEADLINE_S: Final = 60.0


def start_node(nodes: Nodes, broker_id: int) -> None:
    """Start the node of a broker, at first or again."""
    name, labels = name_of(broker_id), f"broker={broker_id}"
    if nodes.links is not None:
        nodes.start_linked_node(name, broker_id, labels=labels)
    else:
        nodes.start_node(name, f"127.0.0.{1 + broker_id}", labels=labels)


def name_of(broker_id: int) -> str:
    """The name of a broker's node, and of what it has below the nodes' root."""
    return f"node-{broker_id}"


@dataclass(slots=True)
class _Strike:
    """What befell the one node that is struck.

    ``stopped`` are processes that are to go on, ``cut`` the nodes that it does not reach.
    """

    number: int
    broker_id: int
    until: float
    stopped: list[int]
    cut: list[int]


class StruckNodes:
    """Strikes nodes, and keeps every other one running, in a thread until ``stop``.

    ``unwhole`` tells what is not in sync yet. ``note`` writes down, from that thread, that a
    fault has come to a point: ``resume``, ``back`` when the node is up, ``whole`` when all is in
    sync; and ``node_ended`` where a node was found dead, which one that was paused may be too.
    """

    def __init__(
        self,
        nodes: Nodes,
        broker_ids: Collection[int],
        unwhole: Callable[[], str],
        note: Callable[[str, int], None],
    ) -> None:
        self.errors: list[BaseException] = []
        self._nodes = nodes
        self._broker_ids = broker_ids
        self._unwhole = unwhole
        self._note = note
        self._strike: _Strike | None = None
        self._is_over = threading.Event()
        self._has_looked = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="nodes", daemon=True)
        self._thread.start()

    @property
    def may_strike(self) -> bool:
        """Whether no node is away, and nothing lags from the last time."""
        return self._strike is None and not self._down() and not self._unwhole()

    def strike(self, number: int, fault: Fault, broker_id: int) -> list[int]:
        """Kill or pause the node; which processes were."""
        started = self._process(broker_id).pid
        raylet = next((pid for pid in children_of(started) if is_raylet(pid)), None)
        if raylet is None:
            return []
        below = descendants_of(raylet)
        stopped: list[int] = []
        if fault.pause_s:
            struck = stopped = descendants_of(started) if fault.is_whole else below
        else:
            struck = [raylet, *below] if fault.is_whole else [raylet]
        until = time.monotonic() + (fault.pause_s or fault.away_s)
        self._strike = _Strike(number, broker_id, until, stopped, [])
        _send(struck, signal.SIGSTOP if fault.pause_s else signal.SIGKILL)
        return struck

    def cut(self, number: int, fault: Fault, broker_id: int) -> list[int]:
        """Cut the node off from all others, or from one that is not the head; from which."""
        links = self._nodes.links
        if links is None:
            return []
        others = [n for n in (OWN, *self._broker_ids) if n != broker_id]
        cut = others if fault.is_whole else others[-1:]
        until = time.monotonic() + fault.pause_s
        self._strike = _Strike(number, broker_id, until, [], cut)
        for other in cut:
            links.cut(broker_id, other)
        return cut

    def heal(self) -> None:
        """Have every node up, as soon as that is possible."""
        if self._strike is not None:
            self._strike.until = 0.0
        deadline = time.monotonic() + UP_DEADLINE_S
        while not self._are_up() and not self.errors and time.monotonic() < deadline:
            self._has_looked.clear()
            self._has_looked.wait(UP_DEADLINE_S)

    def stop(self) -> None:
        """Keep no node up any longer."""
        self._is_over.set()
        self._thread.join()

    def _are_up(self) -> bool:
        strike = self._strike
        is_held = strike is not None and (strike.stopped or strike.cut)
        return not is_held and not self._down()

    def _keep(self) -> None:
        try:
            while not self._is_over.wait(LOOK_EVERY_S):
                self._look()
                self._has_looked.set()
        except BaseException as error:
            self.errors.append(error)
            raise

    def _look(self) -> None:
        strike = self._strike
        away = None
        if strike is not None and strike.until > time.monotonic():
            away = strike.broker_id
        elif strike is not None and (strike.stopped or strike.cut):
            self._release(strike)
        for broker_id in self._down():
            number = strike.number if strike is not None and strike.broker_id == broker_id else -1
            if broker_id == away:
                continue
            self._note("node_ended", number)
            start_node(self._nodes, broker_id)
            self._note("back", number)
        if strike is not None and away is None and not self._down() and not self._unwhole():
            self._note("whole", strike.number)
            self._strike = None

    def _release(self, strike: _Strike) -> None:
        _send(strike.stopped, signal.SIGCONT)
        links, cut = self._nodes.links, strike.cut
        strike.stopped, strike.cut = [], []
        for other in cut:
            assert links is not None
            links.join(strike.broker_id, other)
        self._note("resume", strike.number)

    def _down(self) -> list[int]:
        return [n for n in self._broker_ids if self._process(n).poll() is not None]

    def _process(self, broker_id: int) -> subprocess.Popen[bytes]:
        return self._nodes.processes[name_of(broker_id)]


def _send(process_ids: list[int], number: int) -> None:
    for process_id in process_ids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, number)
