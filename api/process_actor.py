"""Hosts the workers of ``cluster.process`` in named, detached, self-restarting Ray actors."""

from __future__ import annotations

import functools
import os
import random
import secrets
from collections.abc import Sequence
from typing import Any, Final

import ray

from oncelog.actors.actor_transport import ActorTransport
from oncelog.actors.clock import SystemClock
from oncelog.actors.interfaces import NAMESPACE, Transport
from oncelog.actors.launch import end_actors
from oncelog.actors.ray_transport import RayTransport
from oncelog.api.config import ConsumerSettings, ProducerSettings
from oncelog.api.consumer import Consumer
from oncelog.api.event_loop import LoopThread
from oncelog.api.process import ProcessJob, ProcessWorker, worker_actor
from oncelog.api.process_loop import Clients
from oncelog.api.process_messages import ProcessConfig
from oncelog.api.producer import Producer
from oncelog.api.routing import Router
from oncelog.storage.exceptions import IllegalStateError

WORKER_THREADS: Final = 4
"""Calls a worker answers side by side; its loop has a thread of its own."""


class ProcessWorkerProcess(ProcessWorker):
    """The actor of one worker. Fenced, it ends its process: Ray knows which one is to live."""

    def __init__(self, config: ProcessConfig) -> None:
        super().__init__(
            config,
            _connect,
            clock=SystemClock(),
            process_id=os.getpid(),
            on_fenced=functools.partial(os._exit, 1),
        )
        self._name = worker_actor(config.group_id, config.worker_index)

    def __repr__(self) -> str:
        return self._name


def _connect(producer: ProducerSettings, consumer: ConsumerSettings) -> Clients:
    """Make the clients of a worker inside its actor, on an event loop of their own."""
    chance = random.Random(secrets.randbits(64))
    loop_thread = LoopThread()
    router = Router(ActorTransport(RayTransport()), SystemClock())
    return Clients(
        producer=Producer(router, loop_thread, producer, random=chance),
        consumer=Consumer(router, loop_thread, consumer, chance),
        close=loop_thread.close,
    )


def launch_job(
    configs: Sequence[ProcessConfig],
    *,
    router: Router,
    transport: Transport,
    loop_thread: LoopThread,
    chance: random.Random,
) -> ProcessJob:
    """Start one actor per worker. ``IllegalStateError`` if the group's workers run already."""
    names = [worker_actor(config.group_id, config.worker_index) for config in configs]
    make_remote: Any = ray.remote
    remote_class = make_remote(
        num_cpus=0, max_restarts=-1, max_task_retries=0, max_concurrency=WORKER_THREADS
    )(ProcessWorkerProcess)
    started: list[str] = []
    for name, config in zip(names, configs, strict=True):
        try:
            remote_class.options(name=name, namespace=NAMESPACE, lifetime="detached").remote(config)
        except ValueError:
            end_actors(started)
            raise IllegalStateError(
                f"a job with group_id={config.group_id!r} runs already: stop it, or use another id"
            ) from None
        started.append(name)
    return ProcessJob(
        configs=configs,
        router=router,
        transport=transport,
        loop_thread=loop_thread,
        random=chance,
        handle=lambda name: ray.get_actor(name, NAMESPACE),
        release=functools.partial(end_actors, names),
    )
