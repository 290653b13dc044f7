"""One connection to the cluster per Python process of Spark, made by the first hook that needs it.

Planner and executor workers are forked by a Spark daemon and reused, so most hooks find an existing
connection. It is never made in the daemon itself.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.process.ray_environment import prepare_to_join
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.api.distributing.engine_connection import EngineConnection, ProcessConnection
from oncelog.storage.exceptions import ConnectionFailedError

if TYPE_CHECKING:
    from oncelog.api.client import Cluster

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


def connect(address: str | None) -> EngineConnection:
    """This process's connection to the cluster at ``address``; the default one for ``None``.

    Of several addresses, separated by commas, it uses the first that replies. A process can be in
    only one Ray cluster at a time: another address replaces the last.
    Raises ``ConnectionFailedError`` if there is no cluster.
    """
    wanted = address or default_address()
    known = _process.find(wanted)
    if known is not None:
        _leave_out_of_garbage_collection()
        return known
    # Ray reads its authentication mode on import, and the client imports it below.
    prepare_to_join()
    if _process.close():
        import ray

        ray.shutdown()
    return _process.keep(wanted, _joined([address.strip() for address in wanted.split(",")]))


def _joined(addresses: Sequence[str]) -> Cluster:
    """The first cluster that replies; ``ConnectionFailedError`` says why none does."""
    from oncelog.api import client

    failures = []
    for address in addresses:
        try:
            return client.connect(address)
        except ConnectionFailedError as error:
            failures.append(str(error))
            import ray

            # A Ray cluster without a log may have been joined.
            ray.shutdown()
    raise ConnectionFailedError("; ".join(failures))


@functools.cache
def _leave_out_of_garbage_collection() -> None:
    """Exclude all objects that exist at the second hook from garbage collection.

    Spark's daemon collects after every task. That would walk through all that Ray and Arrow have
    loaded: 60 to 80 ms of CPU time per process of a micro-batch.
    """
    gc.freeze()
