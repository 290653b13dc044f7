"""How a program is linked to a cluster: as a part of its Ray cluster, or by connections alone.

A ``RayLink`` needs a second to join Ray, and can do all that a program may. A ``DirectLink`` needs
a listener that the data directory names, and no Ray; it joins Ray once something needs that
(``docs/adr/0031``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from oncelog.actors.config import ClusterConfig
from oncelog.actors.interfaces import CONTROLLER_ACTOR, Transport
from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.protocol.messages.cluster import MetadataReply, MetadataRequest
from oncelog.actors.rpc.call_meter import NO_REPORTS, CallReports
from oncelog.actors.rpc.handshake import Identity
from oncelog.actors.rpc.listener_directory import (
    DirectTransport,
    NamedListener,
    ray_token_here,
    read_named,
)
from oncelog.api.session import cluster_connection
from oncelog.api.session.login import Login
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import exception_for
from oncelog.storage.model import INTERNAL_TOPICS

_logger = logging.getLogger(__name__)

PROBE_TIMEOUT_MS: Final = 2_000
"""How long the controller may take to answer a direct question, before Ray is joined instead."""


class Connections(Transport, Protocol):
    """A transport over connections that can be closed."""

    def close(self) -> None:
        """Close every connection."""
        ...


class Link(Protocol):
    """What a program's connection to a cluster rests on."""

    @property
    def connections(self) -> Connections:
        """Connections by who has made the link."""
        ...

    reports: CallReports
    address: str
    """The Ray address of the cluster."""

    @property
    def processes(self) -> ProcessTable:
        """The processes of this machine, under the name by which the cluster knows it."""
        ...

    @property
    def dashboard_url(self) -> str:
        """The address of the Ray dashboard, "" if there is none."""
        ...

    def connections_as(self, identity: Identity) -> Connections:
        """Connections of their own, to the same cluster, by ``identity``."""
        ...

    async def ready(self, transport: Transport) -> MetadataReply:
        """Wait until the cluster serves; see ``cluster_connection.wait_until_ready``."""
        ...

    def join_ray(self) -> None:
        """Be in the Ray cluster when this returns. ``ConnectionFailedError`` if there is none."""
        ...


class RayLink:
    """``Link`` of a program that has joined Ray, which finds the actors."""

    def __init__(self, identity: Identity) -> None:
        import ray

        from oncelog.actors.process.ray_metrics import RayMetrics

        self.reports = CallReports(RayMetrics(), ClusterConfig().metrics_interval_ms)
        self.connections = self.connections_as(identity)
        self.processes = ProcessTable(ray.util.get_node_ip_address())
        self.address = cluster_connection.ray_address()

    @property
    def dashboard_url(self) -> str:
        """See ``Link``."""
        return cluster_connection.dashboard_url()

    def connections_as(self, identity: Identity) -> Connections:
        """See ``Link``."""
        from oncelog.actors.rpc.actor_transport import ActorTransport
        from oncelog.actors.rpc.ray_transport import RayTransport

        return ActorTransport(RayTransport(), self.reports, identity)

    async def ready(self, transport: Transport) -> MetadataReply:
        """See ``Link``."""
        return await cluster_connection.wait_until_ready(transport, cluster_connection.away_log)

    def join_ray(self) -> None:
        """It has."""


class NotReachedError(Exception):
    """The cluster cannot be asked directly; Ray may know more."""


class DirectLink:
    """``Link`` by connections alone, to the cluster whose listener a data directory names.

    ``join`` connects this process to the Ray cluster at an address.
    """

    def __init__(
        self,
        data_dir: Path,
        named: NamedListener,
        identity: Identity,
        join: Callable[[str], None] = cluster_connection.join_ray,
    ) -> None:
        self._data_dir = data_dir
        self._named = named
        self._join = join
        self._has_joined = False
        # Its calls are counted where they arrive: without Ray nobody collects its own counters.
        self.reports = NO_REPORTS
        self.connections = self.connections_as(identity)
        self.address = named.ray_address
        self.processes = named.processes

    @property
    def dashboard_url(self) -> str:
        """See ``Link``; as the starter of the cluster left it, until Ray is joined."""
        if self._has_joined:
            return cluster_connection.dashboard_url()
        discovery = cluster_connection.read_discovery(self._data_dir)
        return "" if discovery is None else discovery.dashboard_url

    def connections_as(self, identity: Identity) -> DirectTransport:
        """See ``Link``; Ray finds the actors for them if it is joined by then."""
        direct = DirectTransport(self._data_dir, self._named, identity)
        if self._has_joined:
            self._use_ray(direct)
        return direct

    async def ready(self, transport: Transport) -> MetadataReply:
        """See ``Link``; ``NotReachedError`` if the controller cannot be asked directly.

        Also if another cluster answers. A refusal is final if the process that the file names is
        alive: then it is the one that has answered.
        """
        await self.probe(transport)
        return await cluster_connection.wait_until_ready(transport)

    async def probe(self, transport: Transport) -> None:
        """Raise as ``ready`` does, without waiting until all is led."""
        request = MetadataRequest(topics=tuple(sorted(INTERNAL_TOPICS)))
        reply = await transport.call(CONTROLLER_ACTOR, request, timeout_ms=PROBE_TIMEOUT_MS)
        self.check(reply)

    def check(self, reply: MetadataReply) -> None:
        """Raise as ``ready`` does for this reply of the controller."""
        is_refused = reply.error is ErrorCode.SASL_AUTHENTICATION_FAILED
        if is_refused and self._named.lives() is True:
            raise exception_for(reply.error, reply.detail)
        if reply.error is not ErrorCode.NONE:
            raise NotReachedError(reply.detail or reply.error.name)
        if reply.cluster_id != self._named.cluster_id:
            raise NotReachedError(f"cluster {reply.cluster_id} answers")

    def join_ray(self) -> None:
        """See ``Link``; from then on Ray finds the actors."""
        if self._has_joined:
            return
        self._join(self.address)
        self._has_joined = True
        self._use_ray(self.connections)

    @staticmethod
    def _use_ray(direct: DirectTransport) -> None:
        from oncelog.actors.rpc.ray_transport import RayTransport

        direct.use_ray(RayTransport())


def direct_link(
    data_dir: Path,
    login: Login,
    *,
    ray_address: str | None = None,
    join: Callable[[str], None] = cluster_connection.join_ray,
) -> DirectLink | None:
    """A link to the cluster that runs on ``data_dir``; ``None`` if no listener is named there.

    With ``ray_address`` only if it is of that Ray cluster. ``None`` also if the process that is
    named may have ended (``NamedListener.may_be_called_by``), and without Ray's token where the
    cluster has one: whoever cannot join Ray is told so there. ``InvalidSettingError`` if ``login``
    cannot be proved.
    """
    named = read_named(data_dir)
    if named is None or (ray_address is not None and ray_address != named.ray_address):
        return None
    if named.address.is_keyed and not ray_token_here():
        return None
    identity = login.identity()
    if not named.may_be_called_by(identity):
        _logger.info("%s: the process of the listener there is not seen to live", data_dir)
        return None
    return DirectLink(data_dir, named, identity, join)
