"""The controller's process: the actor that all others ask for their epoch."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection

import ray
from ray.exceptions import RayError

from oncelog.actors.config import ReplicaConfig
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.launch.controller_place import is_on_head
from oncelog.actors.launch.controller_server import ControllerServer
from oncelog.actors.launch.home import Home, write_home
from oncelog.actors.launch.launch import RayLauncher, launch_actor
from oncelog.actors.launch.process_limits import machine_size
from oncelog.actors.launch.processes import ReplicaProcess, die_of_bug, production

_logger = logging.getLogger(__name__)


class ControllerProcess(ReplicaProcess):
    """The process of the controller."""

    server_class = ControllerServer

    def make_server(self, config: ReplicaConfig) -> ControllerServer:
        """The controller, which also starts the actors of replicas."""
        remember_home(config)
        return ControllerServer(
            config,
            production(config),
            launcher=RayLauncher(config),
            token_bytes=secrets.token_bytes,
            machine_size=machine_size(),
            resign=resign,
            is_on_head=is_on_head(),
        )


def remember_home(config: ReplicaConfig) -> None:
    """Where the log is now: of several brokers that would start it at once, only one has."""
    if config.pin is None:
        return
    home = Home(
        cluster_id=config.cluster_id,
        broker_id=config.broker_id,
        data_dir=config.data_dir,
        pin=config.pin,
    )
    try:
        write_home(home)
    except (RayError, RuntimeError, OSError) as error:
        # Not worth a constructor's failure, which would end the actor for good.
        _logger.warning("Ray does not remember that this is %s: %s", home, error)


def resign() -> None:
    """End this actor for good, so that its name is free for the controller of another broker.

    If Ray is not reached it takes the node for dead soon, and its name is free by that.
    """
    try:
        ray.kill(ray.get_runtime_context().current_actor)
    except (RayError, RuntimeError) as error:
        die_of_bug(error)


def launch_controller(config: ReplicaConfig, voters: Collection[int] = ()) -> None:
    """Start the controller if it does not run yet; it starts everything else.

    But for the ``voters`` whom it asks for its epoch, which are started first.
    """
    RayLauncher(config).start_voters([one for one in voters if one != config.broker_id])
    launch_actor(ControllerProcess, CONTROLLER_ACTOR, config)
