"""Turns classes into named, detached, self-restarting Ray actors.

The classes are not decorated, so a restarted actor runs the code that is installed then.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import ray

from oncelog.actors.config import ClusterConfig, ReplicaConfig
from oncelog.actors.interfaces import NAMESPACE, actor_of
from oncelog.actors.processes import (
    GroupCoordinatorProcess,
    PartitionProcess,
    ReplicaProcess,
    TransactionCoordinatorProcess,
)
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)

MAX_CONCURRENCY: Final = 100_000
"""Calls one actor may hold at once; long polls are many and cost nothing until they are."""

BROKER_LABEL: Final = "broker"
"""The node label that pins a replica to the node that has its directory."""


def launch_actor(kind: type[ReplicaProcess], name: str, config: ReplicaConfig) -> Any:
    """Start the actor ``name`` if it does not run yet, pinned to its broker's node.

    It survives its creator, restarts by itself and never repeats a call by itself.
    """
    options: dict[str, Any] = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
    }
    if any(BROKER_LABEL in node["Labels"] for node in ray.nodes() if node["Alive"]):
        options["label_selector"] = {BROKER_LABEL: str(config.broker_id)}
    make_remote: Any = ray.remote
    remote_class = make_remote(
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=MAX_CONCURRENCY,
        concurrency_groups={"health": 10},
    )(kind)
    return remote_class.options(**options).remote(config)


class RayLauncher:
    """``Launcher`` on Ray."""

    def __init__(self, *, data_dir: str, config: ClusterConfig) -> None:
        self._data_dir = data_dir
        self._config = config

    async def start(self, replicas: list[tuple[TopicPartition, int]]) -> None:
        """Make sure that an actor runs for each (partition, broker id)."""
        await asyncio.to_thread(self._start, replicas)

    def _start(self, replicas: list[tuple[TopicPartition, int]]) -> None:
        for tp, broker_id in replicas:
            config = ReplicaConfig(
                topic=tp.topic,
                partition=tp.partition,
                broker_id=broker_id,
                data_dir=self._data_dir,
                cluster=self._config,
            )
            launch_actor(_class_of(tp.topic), actor_of(tp, broker_id), config)

    async def end(self, actors: list[str]) -> None:
        """Kill actors for good, by name."""
        await asyncio.to_thread(end_actors, actors)

    async def running(self) -> list[str]:
        """Names of all actors in our namespace."""
        return await asyncio.to_thread(_running_actors)


def _running_actors() -> list[str]:
    actors: list[dict[str, str]] = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in actors if actor["namespace"] == NAMESPACE]


def end_actors(actors: list[str]) -> None:
    """Kill actors for good, by name; a name nobody has is fine."""
    for name in actors:
        try:
            handle = ray.get_actor(name, NAMESPACE)
        except ValueError:
            continue
        ray.kill(handle)


def _class_of(topic: str) -> type[ReplicaProcess]:
    if topic == TRANSACTION_STATE_TOPIC:
        return TransactionCoordinatorProcess
    if topic == CONSUMER_OFFSETS_TOPIC:
        return GroupCoordinatorProcess
    return PartitionProcess
