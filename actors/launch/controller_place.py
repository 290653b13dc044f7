"""``ControllerPlace`` on Ray: finds, starts and kills the controller's actor."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray._private.state import state as ray_state
from ray.core.generated import gcs_pb2
from ray.exceptions import RayError

from oncelog.actors.config import BrokerConfig, ReplicaConfig
from oncelog.actors.interfaces import CONTROLLER_ACTOR, NAMESPACE
from oncelog.actors.launch.cluster_location import (
    ClusterLocation,
    is_away,
    read_location,
    write_location,
)
from oncelog.actors.pin import BROKER_LABEL, BY_LABEL, Pin, broker_of
from oncelog.storage.model import CLUSTER_METADATA_TOPIC

HEAD: Final = "node:__internal_head__"
"""The resource that marks the node of Ray's head."""

_logger = logging.getLogger(__name__)

_RAY_IS_SILENT: Final = (
    "Ray does not say where the controller is: %s — see that Ray's head is up; it is asked again"
)


@dataclass(frozen=True, slots=True)
class _Found:
    """The controller's actor; ``broker_label`` is where it may run, "" if not by a label."""

    handle: Any
    is_alive: bool
    broker_label: str
    process_id: int


class RayControllerPlace:
    """For a broker whose node has a label with its number; ``launch`` starts the actor."""

    def __init__(self, config: BrokerConfig, launch: Callable[[ReplicaConfig], None]) -> None:
        self._config = config
        self._launch = launch

    async def is_gone(self) -> bool:
        """See ``ControllerPlace``: there is no such actor, or it waits for a node that is gone.

        An actor that Ray considers alive is left alone. So is one whose node is up: Ray restarts
        it.
        """
        try:
            return await asyncio.to_thread(self._is_gone)
        except (RayError, OSError, RuntimeError) as error:
            _logger.warning(_RAY_IS_SILENT, error)
            return False

    async def is_on_head(self) -> bool:
        """See ``ControllerPlace``."""
        return await asyncio.to_thread(is_on_head)

    async def is_here(self) -> bool | None:
        """See ``ControllerPlace``."""
        try:
            found = await asyncio.to_thread(_find)
        except (RayError, OSError, RuntimeError) as error:
            _logger.warning(_RAY_IS_SILENT, error)
            return None
        return found is not None and found.broker_label == str(self._config.broker_id)

    async def start(self) -> None:
        """See ``ControllerPlace``. An actor that waits for a node that is gone is killed first."""
        try:
            await asyncio.to_thread(self._start)
        except (RayError, OSError, RuntimeError) as error:
            _logger.error(
                "the controller cannot be started here: %s — see that Ray's head is up; it is "
                "tried again",
                error,
            )

    async def kill_process(self) -> None:
        """See ``ControllerPlace``."""
        try:
            found = await asyncio.to_thread(_find)
        except (RayError, OSError, RuntimeError) as error:
            _logger.warning(_RAY_IS_SILENT, error)
            return
        if found is not None and found.broker_label == str(self._config.broker_id):
            _kill(found.process_id)

    def _is_gone(self) -> bool:
        found = _find()
        return found is None or _can_never_start(found)

    def _start(self) -> None:
        config = self._config
        found = _find()
        if found is not None:
            if not _can_never_start(found):
                return
            # By handle: a new actor may have the name by now.
            ray.kill(found.handle)
        pin = Pin(BY_LABEL, str(config.broker_id))
        location = ClusterLocation(
            cluster_id=config.cluster_id,
            broker_id=config.broker_id,
            data_dir=config.data_dir,
            pin=pin,
        )
        write_location(location)
        self._launch(
            ReplicaConfig(
                topic=CLUSTER_METADATA_TOPIC,
                partition=0,
                broker_id=config.broker_id,
                data_dir=config.data_dir,
                cluster=config.cluster,
                cluster_id=config.cluster_id,
                pin=pin,
                server_secret=config.server_secret,
            )
        )


def is_on_head() -> bool:
    """Whether this process is on the node of Ray's head; false if Ray does not say."""
    try:
        own = ray.get_runtime_context().get_node_id()
        return any(node["NodeID"] == own and HEAD in node["Resources"] for node in ray.nodes())
    except (RayError, OSError, RuntimeError) as error:
        _logger.warning(
            "Ray does not say whether this is its head: %s — see that Ray's head is up; it counts "
            "as another node until the next start",
            error,
        )
        return False


def _can_never_start(found: _Found) -> bool:
    if found.is_alive:
        return False
    if not found.broker_label:
        location = read_location()
        return location is not None and is_away(location)
    living = {str(broker_of(node)) for node in ray.nodes() if node["Alive"]}
    return found.broker_label not in living


def _find() -> _Found | None:
    """The actor with the controller's name, and where it may run."""
    try:
        handle = ray.get_actor(CONTROLLER_ACTOR, NAMESPACE)
    except ValueError:
        return None
    accessor = ray_state._connect_and_get_accessor()
    data = accessor.get_actor_info(handle._actor_id)
    if data is None:
        return None
    table: Any = gcs_pb2
    actor = table.ActorTableData.FromString(data)
    return _Found(
        handle=handle,
        is_alive=actor.state == table.ActorTableData.ALIVE,
        broker_label=actor.label_selector.get(BROKER_LABEL, ""),
        process_id=actor.pid,
    )


def _kill(process_id: int) -> None:
    """Kill -9 a process of this host, if it still is the controller's."""
    try:
        command = Path(f"/proc/{process_id}/cmdline").read_bytes()
        if b"Controller" in command:
            os.kill(process_id, signal.SIGKILL)
    except OSError as error:
        _logger.error(
            "the controller's process %d cannot be killed: %s — kill it as the user that runs Ray",
            *(process_id, error),
        )
