"""A sample of ``bench/start.py``: ``samples/start.py SIDE DIRECTORY``, one start step by step.

What happens in this process is timed by wrapping the functions that ``oncelog.init`` is made of.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from measuring.findings import tell
from measuring.processes import family, start_s

BEGUN_S: Final = time.clock_gettime(time.CLOCK_BOOTTIME)
CPUS: Final = 2
TIMEOUT_S: Final = 60.0


class Clockwork:
    """How long functions took, by the name of their step, and when calls were answered."""

    def __init__(self) -> None:
        self.taken_s: defaultdict[str, float] = defaultdict(float)
        self.answered_s: dict[str, float] = {}
        """When the first good reply to each method came, on the clock of ``perf_counter``."""

    def time(self, owner: Any, name: str, step: str) -> None:
        """Replace a function by one that also adds its time to a step."""
        work = getattr(owner, name)
        if asyncio.iscoroutinefunction(work):
            setattr(owner, name, self._timed_coroutine(work, step))
        else:
            setattr(owner, name, self._timed(work, step))

    def _timed(self, work: Callable[..., Any], step: str) -> Callable[..., Any]:
        @functools.wraps(work)
        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return work(*arguments, **options)
            finally:
                self.taken_s[step] += time.perf_counter() - started

        return timed

    def _timed_coroutine(
        self, work: Callable[..., Awaitable[Any]], step: str
    ) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(work)
        async def timed(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return await work(*arguments, **options)
            finally:
                self.taken_s[step] += time.perf_counter() - started

        return timed

    def watch(self, transport: Any) -> None:
        """Note the first good reply to each method of any actor."""
        call = transport.call

        @functools.wraps(call)
        async def watched(this: Any, actor: str, request: Any, *, timeout_ms: int) -> Any:
            reply = await call(this, actor, request, timeout_ms=timeout_ms)
            if not reply.error.value:
                self.answered_s.setdefault(request.method, time.perf_counter())
            return reply

        transport.call = watched

    def tell(self, step: str) -> None:
        """Tell how long a step took."""
        tell(step, self.taken_s[step])


def import_s(name: str) -> float:
    """Seconds to import a module."""
    started = time.perf_counter()
    importlib.import_module(name)
    return time.perf_counter() - started


def tell_python() -> None:
    """What comes before any start: the interpreter and the imports."""
    (own, *_) = family(os.getpid())
    tell("python", BEGUN_S - start_s(own))
    tell("import ray", import_s("ray"))


def run_empty() -> None:
    """Only what oncelog starts of Ray."""
    tell_python()
    import ray

    from oncelog.api.session import cluster_connection

    started = time.perf_counter()
    cluster_connection.start_ray(num_cpus=CPUS, dashboard_port=None)
    tell("ray", time.perf_counter() - started)
    tell("total", time.perf_counter() - started)
    ray.shutdown()


def run_oncelog(directory: Path) -> None:
    """``init``, a topic of one partition, the first record, another one."""
    tell_python()
    tell("import oncelog", import_s("oncelog.api.client"))
    import ray

    import oncelog
    from oncelog.actors.launch import cluster_location, processes
    from oncelog.actors.rpc import actor_transport
    from oncelog.api.session import cluster_connection

    clockwork = Clockwork()
    for owner, name, step in (
        (cluster_connection, "start_ray", "ray"),
        (cluster_connection, "is_log_started", "looked"),
        (cluster_location, "find_location", "directory"),
        (processes, "launch_controller", "controller launched"),
        (cluster_connection, "wait_until_ready", "ready"),
        (actor_transport._LoopConnections, "_make", "connections"),
    ):
        clockwork.time(owner, name, step)
    clockwork.watch(actor_transport.ActorTransport)
    started = time.perf_counter()
    cluster = oncelog.init(directory, num_cpus=CPUS)
    initialized = time.perf_counter()
    try:
        _tell_init(clockwork, initialized - started, initialized)
        cluster.admin().create_topic("first")
        made = clockwork.answered_s["create_topic"]
        created = time.perf_counter()
        tell("topic", made - initialized)
        tell("leader", created - made)
        producer = cluster.producer(linger_ms=0)
        tell("producer", time.perf_counter() - created)
        for step in ("first record", "second record"):
            sent = time.perf_counter()
            producer.send("first", b"record").result(TIMEOUT_S)
            tell(step, time.perf_counter() - sent)
            if step == "first record":
                tell("total", time.perf_counter() - started)
        clockwork.tell("connections")
        producer.close()
    finally:
        cluster.shutdown()
        ray.shutdown()


def _tell_init(clockwork: Clockwork, init_s: float, initialized: float) -> None:
    for step in ("ray", "looked", "directory", "controller launched"):
        clockwork.tell(step)
    answered = clockwork.answered_s["metadata"]
    ready_s = clockwork.taken_s["ready"]
    # The rest of ``init`` after it was ready takes no call.
    tell("controller", ready_s - (initialized - answered))
    tell("coordinators", initialized - answered)
    known = ("ray", "looked", "directory", "controller launched", "ready")
    tell("rest", init_s - sum(clockwork.taken_s[step] for step in known))
    tell("init", init_s)


def main() -> None:
    """One start."""
    side, directory = sys.argv[1], Path(sys.argv[2])
    if side == "oncelog":
        run_oncelog(directory)
    else:
        run_empty()


if __name__ == "__main__":
    main()
