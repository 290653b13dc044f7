"""Protections of hosts, which hold several replicas, removed. See ``sim_saboteurs``."""

from __future__ import annotations

from typing import Any
from unittest import mock

from regressions import REMADE
from sim_saboteurs import Saboteur

from oncelog.actors.launch.assembly import ReplicaServer
from oncelog.actors.launch.host import Host
from oncelog.actors.protocol.messages.cluster import HoldReplicasReply, HoldReplicasRequest


def _any_key() -> Any:
    """A call finds some replica of its partition's number, whatever topic it is of."""

    def find(self: Host, key: str) -> ReplicaServer | None:
        number = key.rpartition("-")[2]
        found = [one for name, one in self._servers.items() if name.rpartition("-")[2] == number]
        return found[0] if found else None

    return mock.patch.object(Host, "find", find)


def _no_end() -> Any:
    """A replica that begins again does so beside its old self, which keeps the directory."""

    async def begin_again(self: Host, server: ReplicaServer) -> None:
        assert server is not None
        await self._hold_listed()

    return mock.patch.object(Host, "_restart_server", begin_again)


def _no_look() -> Any:
    """A host that is told of a new topic does nothing until it starts again."""

    async def hold_replicas(self: Host, request: HoldReplicasRequest) -> HoldReplicasReply:
        assert (self, request) is not None
        return HoldReplicasReply()

    return mock.patch.object(Host, "hold_replicas", hold_replicas)


SHARED = {"replicas_per_actor": "auto", "disk_error": 0.0, "file_damage": 0.0}

HOST_MUTANTS = (
    Saboteur(name="keys of replicas in a host", sabotage=_any_key, changes=SHARED),
    Saboteur(
        name="end of a replica that begins again",
        sabotage=_no_end,
        changes=SHARED | {"disk_refusal": 2.0, "kill": 0.0, "peace": 0.0},
    ),
    Saboteur(
        name="looks of a host that is told to",
        sabotage=_no_look,
        changes=REMADE | SHARED | {"kill": 0.0},
    ),
)
