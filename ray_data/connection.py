"""One connection to the log per Ray process: the driver, and each worker for all its tasks."""

from __future__ import annotations

import os
import threading
from typing import Final

from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.api.distributing.engine_connection import (
    Endpoint,
    EngineConnection,
    ProcessConnection,
)


def this_process(processes: ProcessTable) -> DriverProcess | None:
    """The driver of a write: the process that calls it, where Ray Data's executor runs."""
    return processes.process(os.getpid())


_process: Final = ProcessConnection(this_process)
_lock: Final = threading.Lock()


def connect(endpoint: Endpoint) -> EngineConnection:
    """This process's connection to ``endpoint``; without an address, to its own Ray cluster's log.

    A worker always has a Ray cluster, and its authentication. Another login replaces the last.
    Raises as ``oncelog.connect`` does.
    """
    from oncelog.api import client
    from oncelog.api.session.cluster_connection import join_ray, ray_cluster_id

    login = endpoint.login
    with _lock:
        join_ray(endpoint.address or "auto")
        import ray

        job = (ray_cluster_id(), ray.get_runtime_context().get_job_id())
        key = (*job, login, login.version())
        known = _process.find(key)
        if known is None:
            _process.close()
            cluster = client.connect(**login.arguments())
            known = _process.keep(key, cluster)
        return known
