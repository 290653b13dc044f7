"""One connection to the log per Ray process: the driver, and each worker for all its tasks."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.api.distributing.engine_connection import EngineConnection

if TYPE_CHECKING:
    from oncelog.api.client import Cluster

_lock: Final = threading.Lock()


class _JobCache:
    """This process's connection, if it has one, and the Ray job that it belongs to."""

    job: tuple[bytes, str] | None = None
    cluster: Cluster | None = None
    connection: EngineConnection | None = None


def this_process(processes: ProcessTable) -> DriverProcess | None:
    """The driver of a write: the process that calls it, where Ray Data's executor runs."""
    return processes.process(os.getpid())


def connect(address: str | None = None) -> EngineConnection:
    """This process's connection to the log at ``address``; its own Ray cluster's for ``None``.

    A worker always has a Ray cluster, and its authentication. Raises ``ConnectionFailedError`` as
    ``oncelog.connect`` does.
    """
    from oncelog.api import client
    from oncelog.api.session.cluster_connection import join_ray, ray_cluster_id

    with _lock:
        join_ray(address or "auto")
        import ray

        job = (ray_cluster_id(), ray.get_runtime_context().get_job_id())
        if _JobCache.connection is None or _JobCache.job != job:
            if _JobCache.cluster is not None:
                _JobCache.cluster.close()
                _JobCache.cluster = _JobCache.connection = None
            _JobCache.cluster = client.connect()
            _JobCache.connection = EngineConnection(_JobCache.cluster.context, this_process)
            _JobCache.job = job
        return _JobCache.connection
