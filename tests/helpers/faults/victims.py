"""Who holds which role just now: leaders move, and every process that dies has a successor."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import ray
from faults.client import GROUP, partition_of, repeat
from faults.fault_plan import (
    BROKER,
    CONTROLLER,
    EVERYTHING,
    FOLLOWER,
    GATEWAY,
    GROUPS,
    LEADER,
    NODE,
    TRANSACTIONS,
)

from oncelog.actors.interfaces import (
    CONTROLLER_ACTOR,
    NAMESPACE,
    broker_actor,
    gateway_actor,
    holder_of,
    placements_of,
)
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, shard_of

HEALTH_TIMEOUT_S: Final = 2.0
LOOK_EVERY_S: Final = 0.25
UNKNOWN_AFTER_S: Final = 3.0
"""What the controller said longer ago does not show that all is well."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that may be struck, and what a client needs it for.

    ``is_sole``: something that all clients need is nowhere else. ``broker_id`` of a client is 0.
    """

    name: str
    process_id: int
    serves: tuple[str, ...]
    broker_id: int = 0
    is_sole: bool = False


@dataclass(frozen=True, slots=True)
class _Replica:
    """One replica of a partition, by the actor that holds it."""

    topic: str
    partition: int
    actor: str
    broker_id: int
    leads: bool
    is_sole: bool


class Actors:
    """The actors of the log by role, and the processes that they are just now.

    ``keys`` and ``transactional_ids`` are those of the clients, ``of_gateways`` the names of those
    that are clients of Kafka, whom any gateway may serve. A thread asks the controller again
    and again, until ``close``: while it is paused or away, what it said last has to do.
    """

    def __init__(
        self,
        cluster: Any,
        keys: Collection[str],
        transactional_ids: Collection[str],
        of_gateways: Collection[str] = (),
    ) -> None:
        self._cluster = cluster
        self.keys = keys
        self._transactional_ids = transactional_ids
        self._of_gateways = of_gateways
        self._metadata = cluster.describe()
        self._known_at = time.monotonic()
        self._handles: dict[str, Any] = {}
        self._drained = 0
        """The broker that a move drains."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, name="metadata", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._is_over.set()
        self._thread.join()

    def _keep_looking(self) -> None:
        while not self._is_over.wait(LOOK_EVERY_S):
            with contextlib.suppress(OncelogError):
                self._metadata = self._cluster.describe()
                self._known_at = time.monotonic()

    def serving(self, role: str) -> list[Victim]:
        """The processes of a role, or of every one, that serve now."""
        live = {broker.broker_id for broker in self._metadata.brokers if broker.is_live}
        wanted = self._actors_of(role)
        sole = {replica.actor for replica in self._replicas() if replica.is_sole}
        has_one_voter = len(self._metadata.voters) == 1
        asked = {}
        for name, (broker_id, _) in wanted.items():
            handle = self._handle(name)
            # Of a node that is away there would be no answer.
            if handle is not None and broker_id in live:
                asked[name] = handle.health.remote()
        references = list(asked.values())
        done, _ = ray.wait(references, num_returns=len(references), timeout=HEALTH_TIMEOUT_S)
        found = []
        for name, reference in asked.items():
            if reference not in done:
                continue
            try:
                health = ray.get(reference)
            except ray.exceptions.RayError:
                # Not back from the last kill, or another actor has the name by now.
                self._handles.pop(name, None)
                continue
            if health.is_serving:
                broker_id, serves = wanted[name]
                is_sole = name in sole or (name == CONTROLLER_ACTOR and has_one_voter)
                found.append(
                    Victim(name, health.process_id, tuple(sorted(serves)), broker_id, is_sole)
                )
        return found

    def wait_until_serving(self, actor: str, former_process_id: int) -> bool:
        """Whether an actor serves, in another process, before ``close``; it is waited for."""
        while not self._is_over.wait(LOOK_EVERY_S):
            handle = self._handle(actor)
            if handle is None:
                continue
            try:
                health = ray.get(handle.health.remote(), timeout=HEALTH_TIMEOUT_S)
            except ray.exceptions.RayError:
                self._handles.pop(actor, None)
                continue
            if health.is_serving and health.process_id != former_process_id:
                return True
        return False

    def nodes(self) -> list[Victim]:
        """Every node that may be struck, and what is led there."""
        led: dict[int, set[str]] = defaultdict(set)
        sole: set[int] = set()
        for replica in self._replicas():
            if replica.leads:
                led[replica.broker_id].update(self._needed_for(replica)[1])
            if replica.is_sole:
                sole.add(replica.broker_id)
        if len(self._metadata.voters) == 1:
            sole.add(self._controllers_broker())
        return [
            Victim(f"{NODE} {n}", 0, tuple(sorted(led[n])), n, n in sole)
            for n in (broker.broker_id for broker in self._metadata.brokers if broker.is_live)
        ]

    def _controllers_broker(self) -> int:
        """The broker on whose node the controller is, as it said last."""
        return next(one.broker_id for one in self._metadata.voters if one.is_controller)

    def unwhole(self) -> str:
        """Names the partitions that lack a leader or a replica in sync, and dead brokers."""
        if time.monotonic() > self._known_at + UNKNOWN_AFTER_S:
            return "the controller does not answer"
        away = [str(broker.broker_id) for broker in self._metadata.brokers if not broker.is_live]
        found = [f"broker {n} is away" for n in away]
        for topic in self._metadata.topics:
            for one in topic.partitions:
                if one.leader < 0 or set(one.isr) != set(one.replicas):
                    state = f"leader {one.leader}, in sync {one.isr} of {one.replicas}"
                    found.append(f"{topic.name}-{one.partition}: {state}")
        return "; ".join(found)

    def problem_of(self, broker_id: int) -> str:
        """Why a broker takes no part, by what the controller said last; "" if it does."""
        brokers = self._metadata.brokers
        return next((one.problem for one in brokers if one.broker_id == broker_id), "")

    def leader_of(self, key: str) -> int:
        """The broker that leads what a key of the history names, -1 if none does."""
        wanted = partition_of(key)
        for topic in self._metadata.topics:
            for one in topic.partitions:
                if (topic.name, one.partition) == (wanted.topic, wanted.partition):
                    return one.leader
        return -1

    # --- moves --------------------------------------------------------------------------------

    def begin_move(self, chance: random.Random) -> str:
        """Drain a broker where others can hold all, or have each leader of the clients' topics move
        to the next of its replicas; what was begun, "" if nothing could be.
        """
        admin, metadata = self._cluster.admin(), self._metadata
        live = [broker.broker_id for broker in metadata.brokers if broker.is_live]
        widest = max(len(one.replicas) for topic in metadata.topics for one in topic.partitions)
        try:
            if len(live) > widest:
                self._drained = chance.choice(live)
                admin.drain_broker(self._drained)
                return f"drain {self._drained}"
            for key in self.keys:
                tp = partition_of(key)
                replicas = self._replicas_of(tp)
                if len(replicas) > 1:
                    admin.reassign_partition(tp.topic, tp.partition, [*replicas[1:], replicas[0]])
        except OncelogError:
            # Another fault is in the way, as of the controller; what was begun goes on.
            self._drained = 0
            return ""
        return "move preferred leaders"

    def _replicas_of(self, tp: Any) -> tuple[int, ...]:
        for topic in self._metadata.topics:
            for one in topic.partitions:
                if (topic.name, one.partition) == (tp.topic, tp.partition):
                    return tuple(one.replicas)
        return ()

    def end_move(self, until: float) -> None:
        """Use a drained broker again, from ``until`` on."""
        self._is_over.wait(max(0.0, until - time.monotonic()))
        drained, self._drained = self._drained, 0
        if drained:
            repeat(lambda: self._cluster.admin().resume_broker(drained))

    # --- roles --------------------------------------------------------------------------------

    def _replicas(self) -> Iterator[_Replica]:
        for topic in self._metadata.topics:
            for partition in topic.partitions:
                for placement in placements_of(topic, partition):
                    yield _Replica(
                        topic=topic.name,
                        partition=partition.partition,
                        actor=holder_of(placement),
                        broker_id=placement.broker_id,
                        leads=placement.broker_id == partition.leader,
                        is_sole=len(partition.replicas) == 1,
                    )

    def _actors_of(self, role: str) -> dict[str, tuple[int, set[str]]]:
        """The broker of each actor that has the role, and what it serves in it."""
        found: dict[str, tuple[int, set[str]]] = {}
        if role in (CONTROLLER, EVERYTHING):
            found[CONTROLLER_ACTOR] = (self._controllers_broker(), {CONTROLLER})
        if role in (BROKER, EVERYTHING):
            for broker in self._metadata.brokers:
                found[broker_actor(broker.broker_id)] = (broker.broker_id, {CONTROLLER})
        if self._of_gateways and role in (GATEWAY, EVERYTHING):
            for broker in self._metadata.brokers:
                name = gateway_actor(0, broker.broker_id)
                found[name] = (broker.broker_id, set(self._of_gateways))
        for replica in self._replicas():
            its_role, serves = self._needed_for(replica)
            if serves and role in (its_role, EVERYTHING):
                found.setdefault(replica.actor, (replica.broker_id, set()))[1].update(serves)
        return found

    def _needed_for(self, replica: _Replica) -> tuple[str, set[str]]:
        """The role of a replica, and which of the clients' keys, ids or groups are there."""
        if replica.topic == TRANSACTION_STATE_TOPIC:
            count = self._metadata.transaction_state_partitions
            ids = {n for n in self._transactional_ids if shard_of(n, count) == replica.partition}
            role, serves = TRANSACTIONS, ids
        elif replica.topic == CONSUMER_OFFSETS_TOPIC:
            shard = shard_of(GROUP, self._metadata.offsets_partitions)
            role, serves = GROUPS, {GROUP} if shard == replica.partition else set()
        else:
            role, serves = LEADER, {f"{replica.topic}-{replica.partition}"} & set(self.keys)
        return (role if replica.leads else FOLLOWER), serves

    def _handle(self, name: str) -> Any:
        """Ray's handle; ``None`` if there is no such actor, or not yet."""
        if name not in self._handles:
            with contextlib.suppress(ValueError):
                self._handles[name] = ray.get_actor(name, NAMESPACE)
        return self._handles.get(name)
