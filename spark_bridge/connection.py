"""One connection to the cluster per Python process of Spark, made by the first hook that needs it.

Planner and executor workers are forked by a Spark daemon and reused, so most hooks find an existing
connection. It is never made in the daemon itself.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.process.ray_environment import prepare_to_join
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.api.distributing.engine_connection import (
    Endpoint,
    EngineConnection,
    ProcessConnection,
)
from oncelog.storage.exceptions import ConnectionFailedError, OncelogError

if TYPE_CHECKING:
    from oncelog.api.client import Cluster
    from oncelog.api.session.login import Login

ADDRESS_VARIABLE: Final = "ONCELOG_ADDRESS"
"""The default of option ``address``; a session passes it to all its Python processes."""

DRIVER_COMMAND: Final = "java"
"""The main class of Spark's driver; its Python processes are its children."""


def driver_process(processes: ProcessTable) -> DriverProcess | None:
    """Spark's driver, the Java ancestor of this planner process."""
    return processes.ancestor(DRIVER_COMMAND)


def default_address() -> str:
    """Where to connect without option ``address``."""
    return os.environ.get(ADDRESS_VARIABLE) or os.environ.get("RAY_ADDRESS") or "auto"


_process: Final = ProcessConnection(driver_process)


def connect(endpoint: Endpoint) -> EngineConnection:
    """This process's connection to ``endpoint``; its address is the default one if ``None``.

    Of several addresses, separated by commas, it uses the first that replies. A process can be in
    only one Ray cluster at a time: another address replaces the last, and so does another login.
    Raises ``ConnectionFailedError`` if there is no cluster, and as ``oncelog.connect`` for a login.
    """
    wanted = dataclasses.replace(endpoint, address=endpoint.address or default_address())
    key = (wanted, wanted.login.version())
    known = _process.find(key)
    if known is not None:
        _leave_out_of_garbage_collection()
        return known
    # Ray reads its authentication mode on import, and the client imports it below.
    prepare_to_join()
    if _process.close():
        import ray

        ray.shutdown()
    addresses = [address.strip() for address in (wanted.address or "").split(",")]
    return _process.keep(key, _joined(addresses, wanted.login))


def _joined(addresses: Sequence[str], login: Login) -> Cluster:
    """The first cluster that replies; ``ConnectionFailedError`` says why none does."""
    from oncelog.api import client

    failures = []
    for address in addresses:
        try:
            return client.connect(address, **login.arguments())
        except OncelogError as error:
            import ray

            # A Ray cluster without a log may have been joined, or one that refuses the login.
            ray.shutdown()
            if not isinstance(error, ConnectionFailedError):
                raise
            failures.append(str(error))
    raise ConnectionFailedError("; ".join(failures))


@functools.cache
def _leave_out_of_garbage_collection() -> None:
    """Exclude all objects that exist at the second hook from garbage collection.

    Spark's daemon collects after every task. That would walk through all that Ray and Arrow have
    loaded: 60 to 80 ms of CPU time per process of a micro-batch.
    """
    gc.freeze()
