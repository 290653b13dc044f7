"""Kills and pauses processes of a campaign, most of them in the middle of a commit.

One seed decides what happens; the clients decide when: each announces by datagram that its commit
request is about to leave, and the nemesis strikes a process involved in that commit a few
milliseconds later. A paused process resumes after 1 to 10 s; several faults may overlap.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import queue
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from faults.fault_plan import (
    CLIENT,
    CONTROLLER,
    CUT_ROLES,
    DOUBLE_FAILOVER,
    EVERYTHING,
    FOLLOWER,
    FULL_DISK,
    LEADER,
    LINK,
    MOVE,
    NODE_ROLES,
    STALLED_FOLLOWER,
    Fault,
)
from faults.history import NEMESIS, HistoryWriter
from faults.struck_nodes import StruckNodes
from faults.victims import Actors, Victim
from ray_nodes import Nodes

NOTICE_WAIT_S: Final = 4.0
SUCCESSOR_WAIT_S: Final = 8.0
"""How soon after a node its successor is struck: ``replica_lag_time_max_ms`` of the cluster."""

FOLLOWS: Final = 1_000_000
"""The number of a fault that follows another is its number plus this."""

PAUSED_MAX: Final = 2
NOTICE_BYTES_MAX: Final = 65_536


class Nemesis:
    """Carries out planned faults. ``clients`` tells the process of each client of this moment.

    ``nodes`` are those of the brokers ``struck_brokers``; only faults of nodes need them.
    """

    def __init__(
        self,
        directory: Path,
        actors: Actors,
        clients: Callable[[], dict[str, int]],
        *,
        faults: list[Fault],
        seed: int,
        nodes: Nodes | None = None,
        struck_brokers: Collection[int] = (),
    ) -> None:
        self.done = 0
        self.aimed = 0
        self._faults = faults
        self._actors = actors
        self._clients = clients
        self._chance = random.Random(seed + 1)
        self._writer = HistoryWriter(directory, NEMESIS)
        self._paused: list[tuple[float, int, int, str]] = []
        self._deferred: list[tuple[int, Fault]] = []
        """Faults of nodes whose time had come while another node was away."""
        self._points: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
        """What other threads saw: function, fault and time of lines to write."""
        self._notices = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._notices.bind(("127.0.0.1", 0))
        self._nodes: StruckNodes | None = None
        if nodes is not None:
            self._nodes = StruckNodes(
                nodes, struck_brokers, actors.unwhole, self._note_later, actors.problem_of
            )

    @property
    def port(self) -> int:
        """Where clients send their notices."""
        return int(self._notices.getsockname()[1])

    def run(self, until: Callable[[], bool], span_s: float) -> None:
        """Carry the faults out, spread over ``span_s`` seconds; in the end all processes run."""
        begin = time.monotonic()
        try:
            for number, fault in enumerate(self._faults):
                due = begin + span_s * number / len(self._faults)
                while not until() and self._must_wait(fault, due):
                    self._rest(0.1)
                self._carry_out_deferred()
                if fault.role in NODE_ROLES and not self._may_strike_nodes():
                    self._deferred.append((number, fault))
                    continue
                while not until() and not self._carry_out(number, fault):
                    self._rest(0.5)
                if until():
                    break
            while (self._paused or self._deferred) and not until():
                self._rest(0.1)
                self._carry_out_deferred()
        finally:
            self.heal()

    def _may_strike_nodes(self) -> bool:
        return self._nodes is not None and self._nodes.may_strike

    def _carry_out_deferred(self) -> None:
        if self._deferred and self._may_strike_nodes() and self._carry_out(*self._deferred[0]):
            self._deferred.pop(0)

    def _must_wait(self, fault: Fault, due: float) -> bool:
        if fault.pause_s and len(self._paused) >= PAUSED_MAX:
            return True
        return not fault.at_once and time.monotonic() < due

    def heal(self) -> None:
        """Let every paused process go on, and have every node up."""
        for _, number, process_id, name in self._paused:
            self._resume(number, process_id, name)
        self._paused = []
        if self._nodes is not None:
            self._nodes.heal()
        self._rest(0.0)

    def close(self) -> None:
        """Look after no node any longer."""
        if self._nodes is not None:
            self._nodes.stop()
        self._rest(0.0)

    def _rest(self, seconds: float) -> None:
        time.sleep(seconds)
        while self._paused and self._paused[0][0] <= time.monotonic():
            _, number, process_id, name = heapq.heappop(self._paused)
            self._resume(number, process_id, name)
        while not self._points.empty():
            function, number, time_ns = self._points.get()
            self._writer.note(function, fault=number, time=time_ns)
        if self._nodes is not None and self._nodes.errors:
            raise self._nodes.errors[0]

    def _note_later(self, function: str, number: int) -> None:
        self._points.put((function, number, time.monotonic_ns()))

    def _resume(self, number: int, process_id: int, name: str) -> None:
        # A process that was killed while it was paused has nothing left to go on with.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGCONT)
        self._writer.note("resume", fault=number, target=name)

    def _probe(self, number: int, actor: str, former_process_id: int) -> None:
        """Find out in the background when an actor serves again."""

        def ask() -> None:
            if self._actors.wait_until_serving(actor, former_process_id):
                self._note_later("answered", number)

        threading.Thread(target=ask, daemon=True).start()

    # --- striking -----------------------------------------------------------------------------

    def _carry_out(self, number: int, fault: Fault) -> bool:
        """Strike once; ``False`` if nobody of the role serves now."""
        victims = self._victims(fault.role)
        self._rest(0.0)
        if not victims:
            return False
        victim = self._aim(victims) if fault.is_aimed else None
        is_aimed = victim is not None
        if is_aimed:
            time.sleep(fault.delay_s)
        struck = victims if fault.role == EVERYTHING else [victim or self._chance.choice(victims)]
        process_ids = [one.process_id for one in struck if _is_ours(one.process_id)]
        is_of_nodes = fault.role in NODE_ROLES
        brokers = {one.broker_id for one in struck if one.broker_id}
        if is_of_nodes and self._nodes is not None:
            process_ids = self._strike_node(self._nodes, number, fault, struck[0].broker_id)
            if fault.role == LINK and not fault.is_whole:
                # Where both live, either may lead what it cannot replicate to the other.
                brokers |= set(process_ids)
        if fault.role == MOVE:
            return self._move(number, fault)
        struck = [one for one in struck if one.process_id in process_ids or is_of_nodes]
        if not process_ids:
            return False
        self._writer.note(
            "pause" if fault.pause_s else "kill",
            fault=number,
            role=fault.role,
            target=", ".join(one.name for one in struck),
            serves=sorted({name for one in struck for name in one.serves}),
            process_ids=process_ids,
            brokers=sorted(brokers),
            is_sole=any(one.is_sole for one in struck),
            is_whole=fault.is_whole,
            pause_ms=round(fault.pause_s * 1_000),
            aimed=is_aimed,
            wall_ms=time.time_ns() // 1_000_000,
        )
        if not is_of_nodes:
            for one in struck:
                self._strike(number, fault, one)
        self.done += 1
        self.aimed += is_aimed
        if fault.role == STALLED_FOLLOWER:
            self._kill_leader_of(number, set(struck[0].serves))
        if fault.role == DOUBLE_FAILOVER:
            self._kill_successor(number, struck[0])
        return True

    @staticmethod
    def _strike_node(nodes: StruckNodes, number: int, fault: Fault, broker_id: int) -> list[int]:
        if fault.role in CUT_ROLES:
            return nodes.cut(number, fault, broker_id)
        if fault.role == FULL_DISK:
            return nodes.fill(number, fault, broker_id)
        return nodes.strike(number, fault, broker_id)

    def _kill_leader_of(self, number: int, keys: set[str]) -> bool:
        """Kill whoever leads some of these, as a fault of its own."""
        leaders = [one for one in self._victims(LEADER) if keys & set(one.serves)]
        if not leaders:
            return False
        victim = self._chance.choice(leaders)
        number += FOLLOWS
        self._writer.note(
            "kill",
            fault=number,
            role=LEADER,
            target=victim.name,
            serves=list(victim.serves),
            process_ids=[victim.process_id],
            brokers=[victim.broker_id],
            is_sole=victim.is_sole,
            is_whole=False,
            pause_ms=0,
            aimed=True,
            wall_ms=time.time_ns() // 1_000_000,
        )
        fault = Fault(LEADER, 0.0, 0.0, is_aimed=True, at_once=True)
        self._strike(number, fault, victim)
        return True

    def _kill_successor(self, number: int, node: Victim) -> None:
        """Kill who leads what the node led, while the node still counts as in sync, or just not."""
        keys = {key for key in node.serves if key in self._actors.keys}
        deadline = time.monotonic() + SUCCESSOR_WAIT_S
        while keys and time.monotonic() < deadline:
            others = {
                key for key in keys if self._actors.leader_of(key) not in (node.broker_id, -1)
            }
            if others and self._kill_leader_of(number, others):
                return
            self._rest(0.1)

    def _move(self, number: int, fault: Fault) -> bool:
        """Have leaders and replicas move while other faults go on, for as long as it lasts."""
        told = self._actors.begin_move(self._chance)
        if not told:
            return False
        self._writer.note(
            "pause",
            fault=number,
            role=MOVE,
            target=told,
            serves=[],
            process_ids=[],
            brokers=[],
            is_sole=False,
            is_whole=False,
            pause_ms=round(fault.pause_s * 1_000),
            aimed=False,
            wall_ms=time.time_ns() // 1_000_000,
        )
        self.done += 1
        until = time.monotonic() + fault.pause_s

        def end() -> None:
            self._actors.end_move(until)
            self._note_later("resume", number)

        threading.Thread(target=end, daemon=True).start()
        return True

    def _strike(self, number: int, fault: Fault, victim: Victim) -> None:
        try:
            os.kill(victim.process_id, signal.SIGSTOP if fault.pause_s else signal.SIGKILL)
        except ProcessLookupError:
            self._writer.note("missed", fault=number)
            return
        if fault.role == CONTROLLER or (fault.role != CLIENT and not fault.pause_s):
            self._probe(number, victim.name, 0 if fault.pause_s else victim.process_id)
        if fault.pause_s:
            until = time.monotonic() + fault.pause_s
            heapq.heappush(self._paused, (until, number, victim.process_id, victim.name))

    def _victims(self, role: str) -> list[Victim]:
        paused = {process_id for _, _, process_id, _ in self._paused}
        if role == CLIENT:
            found = [Victim(name, pid, (name,)) for name, pid in self._clients().items()]
        elif role in NODE_ROLES:
            nodes = self._actors.nodes()
            if role == FULL_DISK and self._nodes is not None:
                nodes = [node for node in nodes if self._nodes.can_fill(node.broker_id)]
            return nodes
        elif role == MOVE:
            return self._actors.nodes()
        else:
            found = self._actors.serving(FOLLOWER if role == STALLED_FOLLOWER else role)
        return [victim for victim in found if victim.process_id not in paused]

    def _aim(self, victims: list[Victim]) -> Victim | None:
        """Wait for a commit that one of the victims is part of; ``None`` if there is none."""
        self._drop_notices()
        deadline = time.monotonic() + NOTICE_WAIT_S
        while time.monotonic() < deadline:
            self._rest(0.0)
            self._notices.settimeout(0.2)
            try:
                notice = json.loads(self._notices.recv(NOTICE_BYTES_MAX))
            except TimeoutError:
                continue
            concerned = {notice["name"], notice["txn_id"], notice["group"], *notice["keys"]}
            concerned.add(CONTROLLER)
            chosen = [victim for victim in victims if concerned & set(victim.serves)]
            if chosen:
                return self._chance.choice(chosen)
        return None

    def _drop_notices(self) -> None:
        """Forget the notices of commits that are over."""
        self._notices.settimeout(0.0)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._notices.recv(NOTICE_BYTES_MAX)


def _is_ours(process_id: int) -> bool:
    """Whether the process still is an actor or a client, and not another of the same number."""
    try:
        command = Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return False
    return command.startswith(b"ray::") or b"faults.clients" in command
