"""The controller's process: the actor that all others ask for their epoch."""

from __future__ import annotations

import secrets

from oncelog.actors.config import ReplicaConfig
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.launch.assembly import ControllerServer
from oncelog.actors.launch.launch import RayLauncher, launch_actor
from oncelog.actors.launch.processes import (
    ReplicaProcess,
    actor_class,
    call_reports,
    make_listener,
    production,
)


@actor_class
class ControllerProcess(ControllerServer, ReplicaProcess):
    """The process of the controller."""

    def __init__(self, config: ReplicaConfig) -> None:
        super().__init__(
            config,
            production(config),
            launcher=RayLauncher(config),
            token_bytes=secrets.token_bytes,
        )
        self.listener = make_listener(super(), call_reports(config))


def launch_controller(config: ReplicaConfig) -> None:
    """Start the controller if it does not run yet; it starts everything else."""
    launch_actor(ControllerProcess, CONTROLLER_ACTOR, config)
