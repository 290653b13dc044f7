"""How a program gets to a cluster: start one, join one that runs, and find it again.

A cluster that ``init`` started leaves ``cluster.json`` in its data directory while it runs, so
that other programs given the same directory join it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oncelog.actors.config import ClusterConfig, ReplicaConfig, build_settings
from oncelog.actors.interfaces import CONTROLLER_ACTOR, NAMESPACE, Transport, actor_of
from oncelog.actors.protocol.cluster_messages import MetadataReply, MetadataRequest
from oncelog.actors.protocol.messages import DescribeReplicaRequest
from oncelog.actors.ray_environment import SYSTEM_CONFIG, prepare_to_join, prepare_to_start
from oncelog.api.event_loop import LoopThread
from oncelog.api.process_bound import AFTER_FORK
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import ConnectionFailedError, InvalidSettingError
from oncelog.storage.model import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, TopicPartition

LOCAL_BROKER_ID: Final = 1
READY_TIMEOUT_MS: Final = 60_000
READY_POLL_MS: Final = 50
CALL_TIMEOUT_MS: Final = 5_000
DISCOVERY_FILE: Final = "cluster.json"
DEFAULT_DATA_DIR: Final = "oncelog-data"

_loop_threads: Final[weakref.WeakSet[LoopThread]] = weakref.WeakSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """Where a running cluster of a data directory is: its Ray address and its starter."""

    address: str
    dashboard_url: str
    process_id: int


def refuse_after_fork(loop_thread: LoopThread) -> None:
    """Make everything that lives on ``loop_thread`` refuse to work in children of this process."""
    _loop_threads.add(loop_thread)


def _forbid_in_child() -> None:
    for loop_thread in tuple(_loop_threads):
        loop_thread.forbid(AFTER_FORK)


os.register_at_fork(after_in_child=_forbid_in_child)


def check_data_dir(data_dir: str | os.PathLike[str]) -> Path:
    """Make the data directory and refuse one that cannot be written, naming it and the reason."""
    path = Path(data_dir).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InvalidSettingError(
            f"data_dir={str(path)!r} is a file: give a directory, or a path where one can be made"
        ) from None
    except OSError as error:
        raise InvalidSettingError(
            f"data_dir={str(path)!r} cannot be made ({error.strerror}): give another directory"
        ) from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise InvalidSettingError(
            f"data_dir={str(path)!r} cannot be read and written by this user: "
            "change its permissions, or give another directory"
        )
    return path.resolve()


# --- Ray --------------------------------------------------------------------------------------


def join_ray(address: str) -> None:
    """Connect this process to the Ray cluster at ``address``, if it is not connected to one yet."""
    prepare_to_join()
    import ray

    if ray.is_initialized():
        return
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConnectionFailedError(
            f"no Ray cluster answers at address={address!r} ({reason}): start one with "
            "`oncelog start`, or pass the address of one that runs"
        ) from None


def start_ray(*, num_cpus: int | None, dashboard_port: int | None) -> None:
    """Start a Ray cluster of this process's own, tuned for the log; it ends with the process."""
    prepare_to_join()
    prepare_to_start()
    import ray

    # Ray says here that it has made a token; every process of ours finds it by itself.
    logging.getLogger("ray").setLevel(logging.ERROR)
    options: dict[str, Any] = {} if dashboard_port is None else {"dashboard_port": dashboard_port}
    try:
        ray.init(
            address="local",
            namespace=NAMESPACE,
            num_cpus=num_cpus,
            labels={"broker": str(LOCAL_BROKER_ID)},
            include_dashboard=True,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            _system_config=SYSTEM_CONFIG,
            **options,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConnectionFailedError(f"Ray could not be started: {reason}") from None


def ray_address() -> str:
    """Address of the Ray cluster this process is connected to."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def dashboard_url() -> str:
    """Address of the dashboard of the Ray cluster this process is connected to, or ``""``."""
    from ray._private.worker import get_dashboard_url

    url = get_dashboard_url()
    return f"http://{url}" if url else ""


# --- discovery --------------------------------------------------------------------------------


def write_discovery(data_dir: Path, discovery: Discovery) -> None:
    """Leave word in the data directory where its cluster runs."""
    text = json.dumps(
        {
            "address": discovery.address,
            "dashboard_url": discovery.dashboard_url,
            "process_id": discovery.process_id,
        }
    )
    temporary = data_dir / f".{DISCOVERY_FILE}.{os.getpid()}"
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(data_dir / DISCOVERY_FILE)


def read_discovery(data_dir: Path) -> Discovery | None:
    """Where the cluster of ``data_dir`` runs, or ``None`` when its starter is gone."""
    try:
        fields = json.loads((data_dir / DISCOVERY_FILE).read_text(encoding="utf-8"))
        discovery = Discovery(
            address=str(fields["address"]),
            dashboard_url=str(fields["dashboard_url"]),
            process_id=int(fields["process_id"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return discovery if _is_alive(discovery.process_id) else None


def forget_discovery(data_dir: Path) -> None:
    """Take the word back: the cluster of ``data_dir`` has stopped."""
    (data_dir / DISCOVERY_FILE).unlink(missing_ok=True)


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# --- the log ----------------------------------------------------------------------------------


def has_controller() -> bool:
    """Whether an actor of the controller's name runs in this Ray cluster."""
    import ray

    try:
        ray.get_actor(CONTROLLER_ACTOR, NAMESPACE)
    except ValueError:
        return False
    return True


def check_cluster_settings(settings: Mapping[str, Any]) -> ClusterConfig:
    """Build the cluster's settings; ``InvalidSettingError`` names what is wrong with one."""
    return build_settings(ClusterConfig, settings)


def start_log(data_dir: Path, config: ClusterConfig) -> None:
    """Start the controller on ``data_dir``; it starts every other actor of the log."""
    from oncelog.actors.controller_process import launch_controller

    launch_controller(
        ReplicaConfig(
            topic=CLUSTER_METADATA_TOPIC,
            partition=0,
            broker_id=LOCAL_BROKER_ID,
            data_dir=str(data_dir),
            cluster=config,
        )
    )


async def wait_until_ready(transport: Transport) -> MetadataReply:
    """Wait until the controller answers and every coordinator shard is led.

    Raises ``ConnectionFailedError`` with the last reason when that takes over a minute, or at
    once when the actor named as the controller is not one.
    """
    request = MetadataRequest(topics=tuple(sorted(INTERNAL_TOPICS)))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + READY_TIMEOUT_MS / 1000
    while True:
        reply = await transport.call(CONTROLLER_ACTOR, request, timeout_ms=CALL_TIMEOUT_MS)
        if reply.error is ErrorCode.NONE and await _are_led(transport, reply):
            return reply
        if reply.error is ErrorCode.UNKNOWN_SERVER_ERROR:
            raise ConnectionFailedError(
                f"the actor {CONTROLLER_ACTOR!r} in Ray namespace {NAMESPACE!r} is not oncelog's "
                f"({reply.detail}): stop it, or use another Ray cluster"
            )
        is_offline = reply.error is ErrorCode.NOT_CONTROLLER and reply.detail
        if is_offline or loop.time() > deadline:
            reason = reply.detail or reply.error.name
            raise ConnectionFailedError(f"the log did not start: {reason}")
        await asyncio.sleep(READY_POLL_MS / 1000)


async def _are_led(transport: Transport, reply: MetadataReply) -> bool:
    """Whether every coordinator shard is led now: epochs alone outlive the processes."""
    actors = [
        actor_of(TopicPartition(topic.name, partition.partition), partition.leader)
        for topic in reply.topics
        for partition in topic.partitions
    ]
    replicas = await asyncio.gather(
        *(
            transport.call(actor, DescribeReplicaRequest(), timeout_ms=CALL_TIMEOUT_MS)
            for actor in actors
        )
    )
    return bool(replicas) and all(replica.is_leader for replica in replicas)
