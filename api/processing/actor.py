"""Runs the workers of ``cluster.process`` in named, detached Ray actors that restart."""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

import ray
from ray._private.state import state as ray_state
from ray.core.generated import gcs_pb2

from oncelog.actors.config import ClusterConfig
from oncelog.actors.interfaces import NAMESPACE, Transport
from oncelog.actors.launch.processes import end_actors, running_actors
from oncelog.actors.process.clock import SystemClock
from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.process.ray_metrics import RayMetrics
from oncelog.actors.rpc.actor_transport import ActorTransport
from oncelog.actors.rpc.call_meter import CallReports
from oncelog.actors.rpc.ray_transport import RayTransport, find_actor
from oncelog.api.config import ConsumerSettings, ProducerSettings, QueueSettings
from oncelog.api.consuming.consumer import Consumer
from oncelog.api.processing.job import ProcessJob, ProcessWorker, jobs_of, worker_actor
from oncelog.api.processing.loop import Clients
from oncelog.api.processing.messages import ProcessConfig
from oncelog.api.processing.queue_loop import QueueClients
from oncelog.api.producing.producer import Producer
from oncelog.api.queueing.queue import Queue
from oncelog.api.session.event_loop import LoopThread
from oncelog.api.session.login import Login
from oncelog.api.session.routing import Router
from oncelog.api.session.throttling import PoliteTransport
from oncelog.storage.exceptions import IllegalStateError, InvalidSettingError

WORKER_THREADS: Final = 4
"""How many calls a worker answers concurrently; its loop has its own thread."""

CONFIG_TIMEOUT_S: Final = 5.0
"""How long a worker may take to tell its settings before another one is asked."""


class ProcessWorkerProcess(ProcessWorker):
    """The actor of one worker. If fenced it ends its process; Ray decides which one lives."""

    def __init__(self, config: ProcessConfig) -> None:
        config = config.completed()
        super().__init__(
            config,
            functools.partial(_connect, config.login),
            connect_queue=functools.partial(_connect_queue, config.login),
            clock=SystemClock(),
            process_id=os.getpid(),
            on_fenced=functools.partial(os._exit, 1),
        )
        self._name = worker_actor(config.group_id, config.worker_index)

    def __repr__(self) -> str:
        return self._name


def _connect(login: Login, producer: ProducerSettings, consumer: ConsumerSettings) -> Clients:
    """Make a worker's clients inside its actor, on their own event loop."""
    chance = random.Random(secrets.randbits(64))
    loop_thread = LoopThread()
    reports = CallReports(RayMetrics(), ClusterConfig().metrics_interval_ms)
    transport = PoliteTransport(ActorTransport(RayTransport(), reports, login.identity()))
    router = Router(transport, SystemClock(), reports.metrics)
    return Clients(
        producer=Producer(router, loop_thread, producer, random=chance),
        consumer=Consumer(router, loop_thread, consumer, chance, reports),
        close=loop_thread.close,
    )


def _connect_queue(
    login: Login, topics: Sequence[str], producer: ProducerSettings, queue: QueueSettings
) -> QueueClients:
    """As ``_connect``, for a job with ``mode="queue"``."""
    chance = random.Random(secrets.randbits(64))
    loop_thread = LoopThread()
    reports = CallReports(RayMetrics(), ClusterConfig().metrics_interval_ms)
    transport = PoliteTransport(ActorTransport(RayTransport(), reports, login.identity()))
    process = ProcessTable(ray.util.get_node_ip_address()).process(os.getpid())
    router = Router(transport, SystemClock(), reports.metrics, process=process)
    return QueueClients(
        producer=Producer(router, loop_thread, producer, random=chance),
        queue=Queue(router, loop_thread, queue, topics, chance),
        close=loop_thread.close,
    )


class ShippedFunction:
    """A pickled function, unpickled in the worker when it is first called.

    If unpickling fails, say for a missing module, the error is reported like one of the function.
    An actor that fails during construction would just disappear.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._pickled: bytes = ray.cloudpickle.dumps(function)
        self._function: Callable[[Any], Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The pickled function alone."""
        return {"_pickled": self._pickled, "_function": None}

    def __call__(self, batch: Any) -> Any:
        """Call the function."""
        if self._function is None:
            self._function = ray.cloudpickle.loads(self._pickled)
        return self._function(batch)


def launch_workers(configs: Sequence[ProcessConfig]) -> None:
    """Start one actor per worker; ``IllegalStateError`` if the group's workers run already."""
    started: list[str] = []
    function = ShippedFunction(configs[0].function)
    for config in configs:
        if not _launch(dataclasses.replace(config, function=function)):
            end_actors(started)
            raise IllegalStateError(
                f"a job with group_id={config.group_id!r} runs already",
                advice="stop it, or use another id",
            )
        started.append(worker_actor(config.group_id, config.worker_index))


def _launch(config: ProcessConfig) -> bool:
    """Start the actor of a worker; return false if one of its name exists.

    ``InvalidSettingError`` if Ray refuses ``ray_remote_args``.
    """
    make_remote: Any = ray.remote
    name = worker_actor(config.group_id, config.worker_index)
    try:
        remote_class = make_remote(
            **{"num_cpus": 0, **config.ray_remote_args},
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=WORKER_THREADS,
        )(ProcessWorkerProcess)
        remote_class.options(name=name, namespace=NAMESPACE, lifetime="detached").remote(config)
    except (TypeError, ValueError) as error:
        if isinstance(error, ValueError) and name in running_actors():
            return False
        raise InvalidSettingError(
            f"ray_remote_args={dict(config.ray_remote_args)!r}: {error}",
            advice="give what ray.remote takes",
        ) from error
    return True


class RayWorkers:
    """See ``WorkerActors``."""

    def handle(self, name: str) -> Any:
        """See ``WorkerActors.handle``."""
        return find_actor(name)

    def waits_for(self, name: str) -> str:
        """See ``WorkerActors.waits_for``."""
        accessor = ray_state._connect_and_get_accessor()
        data = accessor.get_actor_info(find_actor(name)._actor_id)
        if data is None:
            return ""
        table: Any = gcs_pb2.ActorTableData  # type: ignore[attr-defined]
        actor = table.FromString(data)
        if actor.state not in (table.PENDING_CREATION, table.RESTARTING) or actor.node_id:
            return ""
        needs = [f"{kind} {amount:g}" for kind, amount in actor.required_resources.items()]
        needs += [f"{label}={value}" for label, value in actor.label_selector.items()]
        free, all_of = ray.available_resources(), ray.cluster_resources()
        has = ", ".join(
            f"{kind} {free.get(kind, 0):g} of {all_of.get(kind, 0):g}"
            for kind in sorted({"CPU", *actor.required_resources})
        )
        wanted = ", ".join(needs) or "no resource"
        return f"is not placed or still starting: needs {wanted}; free in the cluster: {has}"

    def end(self, names: Sequence[str]) -> None:
        """See ``WorkerActors.end``."""
        end_actors(names)

    def add(self, model: str, worker_indexes: Sequence[int], workers: int) -> None:
        """See ``WorkerActors.add``; ``ValueError`` if ``model`` does not answer."""
        try:
            config: ProcessConfig = ray.get(
                find_actor(model).config.remote(), timeout=CONFIG_TIMEOUT_S
            )
        except ray.exceptions.RayError as error:
            raise ValueError(f"{model}: {error}") from error
        for index in worker_indexes:
            _launch(dataclasses.replace(config, worker_index=index, workers=workers))


def running_jobs() -> dict[str, list[int]]:
    """The jobs of the Ray cluster: group id → worker indexes."""
    return jobs_of(running_actors())


def attach(
    group_id: str,
    worker_indexes: Sequence[int],
    *,
    router: Router,
    transport: Transport,
    loop_thread: LoopThread,
    chance: random.Random,
    sources: tuple[str, ...] = (),
    sinks: tuple[str, ...] = (),
) -> ProcessJob:
    """The job with these workers."""
    return ProcessJob(
        group_id=group_id,
        worker_indexes=worker_indexes,
        router=router,
        transport=transport,
        loop_thread=loop_thread,
        random=chance,
        actors=RayWorkers(),
        sources=sources,
        sinks=sinks,
    )
