"""What the clients of one connection share."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from oncelog.actors.process.process_table import ProcessTable
from oncelog.api.session.event_loop import LoopThread
from oncelog.api.session.routing import Router


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientContext:
    """How a connection reaches its cluster, for bridges that build clients of their own.

    Stable inside this project, but not part of the public API: programs use ``Cluster``. It ends
    with ``Cluster.close``. ``router`` is for coroutines that run on ``loop_thread``.
    """

    router: Router
    loop_thread: LoopThread
    random: Random
    processes: ProcessTable
