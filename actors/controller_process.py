"""The controller's process: the actor that all others ask for their epoch."""

from __future__ import annotations

import os
import secrets

from oncelog.actors.config import ReplicaConfig
from oncelog.actors.controller import Controller
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.launch import RayLauncher, launch_actor
from oncelog.actors.processes import ReplicaProcess, actor_class
from oncelog.actors.protocol.cluster_messages import (
    BecomeLeaderReply,
    ShutdownReply,
    ShutdownRequest,
)


@actor_class
class ControllerProcess(Controller, ReplicaProcess):
    """The process of the controller: its own log, its own epochs."""

    def __init__(self, config: ReplicaConfig) -> None:
        ReplicaProcess.__init__(self, config)
        Controller.__init__(
            self,
            replica=self.replica,
            clock=self.clock,
            transport=self.transport,
            launcher=RayLauncher(data_dir=config.data_dir, config=config.cluster),
            config=config.cluster,
            process_id=os.getpid(),
            token_bytes=secrets.token_bytes,
        )
        self.begin()

    def __repr__(self) -> str:
        return "Controller"

    async def ask_for_epoch(self, last_epoch: int) -> BecomeLeaderReply:
        """The next epoch of the metadata log: its directory lock lets one process lead it."""
        return BecomeLeaderReply(leader_epoch=last_epoch + 1)

    async def refresh_settings(self) -> None:
        """Nothing to ask for: the metadata log has no settings."""

    async def start_serving(self) -> None:
        """Load the metadata log and start every replica."""
        await self.start()

    async def shutdown(self, request: ShutdownRequest) -> ShutdownReply:
        """Stop every replica of the cluster, then the metadata log."""
        await self.maintenance.stop()
        return await Controller.shutdown(self, request)


def launch_controller(config: ReplicaConfig) -> None:
    """Start the controller if it does not run yet; it starts everything else."""
    launch_actor(ControllerProcess, CONTROLLER_ACTOR, config)
