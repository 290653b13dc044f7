"""How a program reaches a cluster: start one, join a running one, and find it again.

A cluster that ``init`` started leaves ``cluster.json`` in its data directory while it runs, so that
other programs with the same directory join it. A program that joins says what it expects, and any
other cluster is rejected.

One file: starting, joining and finding share the data directory, Ray and the checks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from oncelog.actors.config import (
    DATA_DIR_SEPARATOR,
    DATA_DIRECTORIES_MAX,
    FOUNDING_SETTINGS,
    ClusterConfig,
    ReplicaConfig,
    data_directories,
)
from oncelog.actors.interfaces import (
    BROKER_ACTORS,
    CONTROLLER_ACTOR,
    LOG_ACTORS,
    NAMESPACE,
    Transport,
    leader_address,
)
from oncelog.actors.pin import BROKER_LABEL, LOCAL_BROKER_ID
from oncelog.actors.process.ray_environment import (
    SYSTEM_CONFIG,
    own_termination,
    prepare_to_join,
    prepare_to_start,
)
from oncelog.actors.protocol.messages.cluster import MetadataReply, MetadataRequest
from oncelog.actors.protocol.messages.partition import DescribeReplicaRequest
from oncelog.actors.rpc.listener_directory import LISTENER_FILE
from oncelog.api.session.client_metrics import PROCESS
from oncelog.api.session.event_loop import AFTER_FORK, LoopThread, record_fork, refuse_ray_of_parent
from oncelog.api.session.ray_cluster import (
    DelayedStarts,
    check_dashboard_port,
    delayed,
    ray_cluster_at,
)
from oncelog.storage.disk.file_system import DIRECTORY_MODE, FILE_MODE
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import ConnectionFailedError, InvalidSettingError, exception_for
from oncelog.storage.model import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, TopicPartition
from oncelog.storage.settings import build, refused

READY_TIMEOUT_MS: Final = 60_000
READY_POLL_MS: Final = 50
CALL_TIMEOUT_MS: Final = 5_000
DISCOVERY_FILE: Final = "cluster.json"
DEFAULT_DATA_DIR: Final = "oncelog-data"

DataDir: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
"""One data directory, or several: a sequence, or a text with commas."""

_loop_threads: Final[weakref.WeakSet[LoopThread]] = weakref.WeakSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """Where the cluster of a data directory runs: its Ray address and its starter process."""

    address: str
    dashboard_url: str
    process_id: int
    life: str = field(default="", compare=False)
    """Tells apart processes with the same id: the machine's boot and the start time."""


def refuse_after_fork(loop_thread: LoopThread) -> None:
    """Make everything on ``loop_thread`` refuse to work in forked children of this process."""
    _loop_threads.add(loop_thread)


def _forbid_in_child() -> None:
    record_fork()
    PROCESS.forget()
    for loop_thread in tuple(_loop_threads):
        loop_thread.forbid(AFTER_FORK)


os.register_at_fork(after_in_child=_forbid_in_child)


def directory_paths(data_dir: DataDir) -> tuple[Path, ...]:
    """The data directories as absolute paths, with links resolved where this machine can.

    The first is the broker's own. ``InvalidSettingError`` for none, too many, a duplicate, or a
    path with a comma, which separates directories.
    """
    if isinstance(data_dir, str):
        given: list[str | os.PathLike[str]] = [*data_dir.split(DATA_DIR_SEPARATOR)]
    else:
        given = [data_dir] if isinstance(data_dir, os.PathLike) else [*data_dir]
    if not 1 <= len(given) <= DATA_DIRECTORIES_MAX or not all(map(os.fspath, given)):
        raise refused(
            "data_dir",
            data_dir,
            f"1 to {DATA_DIRECTORIES_MAX} directories, in one text separated by commas",
        )
    paths = tuple(Path(one).expanduser().absolute().resolve() for one in given)
    for number, path in enumerate(paths):
        if DATA_DIR_SEPARATOR in str(path):
            raise InvalidSettingError(
                f"data_dir={str(path)!r} has a comma, which separates directories: rename it"
            )
        if path in paths[:number]:
            raise InvalidSettingError(
                f"data_dir={data_dir!r} names {str(path)!r} twice",
                advice="give each directory once",
            )
    return paths


def data_dir_text(paths: Iterable[Path]) -> str:
    """The directories as one setting."""
    return DATA_DIR_SEPARATOR.join(map(str, paths))


def check_data_dir(data_dir: str | os.PathLike[str]) -> Path:
    """Create the data directory, or raise why it cannot be used."""
    from oncelog.actors.replica.data_directory import IDENTITY_FILE

    path = Path(data_dir).expanduser().absolute()
    try:
        path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    except FileExistsError:
        raise InvalidSettingError(
            f"data_dir={str(path)!r} is a file",
            advice="give a directory, or a path where one can be created",
        ) from None
    except OSError as error:
        raise InvalidSettingError(
            f"data_dir={str(path)!r} cannot be created ({error.strerror})",
            advice="give another directory",
        ) from None
    if (path / IDENTITY_FILE).exists() and path.stat().st_uid == os.getuid():
        # One of an earlier version, which other users could read.
        path.chmod(DIRECTORY_MODE)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise InvalidSettingError(
            f"data_dir={str(path)!r} cannot be read and written by this user",
            advice="change its permissions, or give another directory",
        )
    return path.resolve()


# --- Ray --------------------------------------------------------------------------------------


def join_ray(address: str, *, shows_output: bool = True) -> None:
    """Connect this process to the Ray cluster at ``address``, unless it already is.

    ``shows_output``: show what this program's own tasks and actors write, as Ray does.
    Raises ``ConnectionFailedError`` within seconds if there is none, or if this process is
    connected to another cluster: it can be in only one at a time.
    """
    refuse_ray_of_parent()
    prepare_to_join()
    import ray

    if ray.is_initialized() and address in {"auto", ray_address()}:
        return
    place = _host_and_port(address)
    place, cluster = ray_cluster_at(place, address)
    if ray.is_initialized():
        if not cluster.endswith(ray_cluster_id()):
            raise ConnectionFailedError(
                f"this process is connected to the Ray cluster at {ray_address()}, so it cannot "
                f"use the one at address={address!r}",
                advice="use another process, or call ray.shutdown() first",
            )
        return
    try:
        with own_termination():
            ray.init(
                address=place,
                namespace=NAMESPACE,
                log_to_driver=None if shows_output else False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConnectionFailedError(
            f"the Ray cluster at address={address!r} cannot be joined from here ({reason})",
            advice="start a Ray node on this machine: a program needs one of its own",
        ) from None


def leave_ray() -> None:
    """Disconnect this process from its Ray cluster, if it is connected to one."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()


def _host_and_port(address: str) -> str:
    """The address that Ray would use: resolves "auto" and this machine's own names."""
    from ray._private.services import canonicalize_bootstrap_address_or_die

    if "://" in address:
        raise ConnectionFailedError(
            f"address={address!r} is not a Ray address", advice="give host:port, without a scheme"
        )
    try:
        return str(canonicalize_bootstrap_address_or_die(address))
    except (ConnectionError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConnectionFailedError(
            f"no Ray cluster can be at address={address!r} ({reason})",
            advice="start one with `oncelog start`, or pass the host:port of one that runs",
        ) from None


def ray_cluster_id() -> bytes:
    """The id of the Ray cluster that this process is connected to."""
    from ray._private.worker import global_worker

    worker: Any = global_worker
    return bytes(worker.gcs_client.cluster_id.binary())


def check_joined(*, num_cpus: int | None, dashboard_port: int | None) -> None:
    """Reject settings that differ in a Ray cluster that this program did not start."""
    import ray

    if num_cpus is not None:
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if cpus != num_cpus:
            raise InvalidSettingError(
                f"num_cpus={num_cpus} is not what the Ray cluster at {ray_address()} has, which "
                f"is {cpus}",
                advice="leave it out, or stop that cluster first",
            )
    url = dashboard_url()
    if dashboard_port is not None and not url.endswith(f":{dashboard_port}"):
        raise InvalidSettingError(
            f"dashboard_port={dashboard_port} is not what the Ray cluster at {ray_address()} has, "
            f"whose dashboard is {url or 'off'}",
            advice="leave it out, or stop that cluster first",
        )


RAY_STARTS_MAX: Final = 2
"""How often a start of Ray is tried that takes longer than Ray waits: 30 s on a busy machine."""

RAY_WAS_SLOW: Final = "timed out during startup"
"""What Ray says then."""


def start_ray(*, num_cpus: int | None, dashboard_port: int | None) -> DelayedStarts:
    """Start a Ray cluster, tuned for the log, that ends with this process.

    The result starts the dashboard and other processes that can wait.
    """
    if dashboard_port is not None:
        check_dashboard_port(dashboard_port)
    prepare_to_join()
    prepare_to_start()
    import ray

    # Ray logs here that it made a token; each of our processes finds the token by itself.
    logging.getLogger("ray").setLevel(logging.ERROR)
    options: dict[str, Any] = {} if dashboard_port is None else {"dashboard_port": dashboard_port}
    attempts_left = RAY_STARTS_MAX
    while True:
        attempts_left -= 1
        try:
            with own_termination(), delayed() as starts:
                ray.init(
                    address="local",
                    namespace=NAMESPACE,
                    num_cpus=num_cpus,
                    labels={BROKER_LABEL: str(LOCAL_BROKER_ID)},
                    include_dashboard=True,
                    logging_level=logging.ERROR,
                    configure_logging=False,
                    _system_config=SYSTEM_CONFIG,
                    **options,
                )
        except Exception as error:
            # Ray raises what it likes, ``Exception`` itself among it.
            ray.shutdown()
            reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            if not attempts_left or RAY_WAS_SLOW not in reason:
                raise ConnectionFailedError(f"Ray could not be started: {reason}") from None
        else:
            return starts


def ray_address() -> str:
    """The address of the Ray cluster that this process is connected to."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def dashboard_url() -> str:
    """The address of that cluster's dashboard, or ``""``."""
    from ray._private.worker import get_dashboard_url

    url = get_dashboard_url()
    return f"http://{url}" if url else ""


# --- discovery --------------------------------------------------------------------------------


def write_discovery(data_dir: Path, discovery: Discovery) -> None:
    """Record in the data directory where its cluster runs."""
    text = json.dumps(
        {
            "address": discovery.address,
            "dashboard_url": discovery.dashboard_url,
            "process_id": discovery.process_id,
            "life": discovery.life or life_of(discovery.process_id),
        }
    )
    temporary = data_dir / f".{DISCOVERY_FILE}.{os.getpid()}"
    temporary.touch(FILE_MODE)
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(data_dir / DISCOVERY_FILE)


def read_discovery(data_dir: Path) -> Discovery | None:
    """Where the cluster of ``data_dir`` runs, or ``None`` if its starter is gone."""
    try:
        fields = json.loads((data_dir / DISCOVERY_FILE).read_text(encoding="utf-8"))
        discovery = Discovery(
            address=str(fields["address"]),
            dashboard_url=str(fields["dashboard_url"]),
            process_id=int(fields["process_id"]),
            life=str(fields.get("life", "")),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return discovery if _is_alive(discovery) else None


def forget_discovery(data_dir: Path) -> None:
    """Remove the record: the cluster of ``data_dir`` has stopped."""
    (data_dir / DISCOVERY_FILE).unlink(missing_ok=True)
    (data_dir / LISTENER_FILE).unlink(missing_ok=True)


def life_of(process_id: int) -> str:
    """Which process has that id now; "" if none, or if the system does not tell."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text(encoding="ascii", errors="replace")
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    # The program's name is in parentheses and may contain any character.
    started = stat.rpartition(")")[2].split()[19]
    return f"{boot_id} {started}"


def _is_alive(discovery: Discovery) -> bool:
    """Whether the starter is alive, not another process that reuses its id."""
    try:
        os.kill(discovery.process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not discovery.life or discovery.life == life_of(discovery.process_id)


# --- the log ----------------------------------------------------------------------------------


def has_log() -> bool:
    """Whether the controller runs in this Ray cluster, or brokers, which start the next one."""
    import ray

    from oncelog.actors.launch.processes import running_actors

    try:
        ray.get_actor(CONTROLLER_ACTOR, NAMESPACE)
    except ValueError:
        return any(name.startswith(BROKER_ACTORS) for name in running_actors())
    return True


def check_cluster_id(cluster_id: str | None) -> None:
    """Reject what is not a cluster id."""
    if cluster_id is not None and re.fullmatch("[0-9a-f]{32}", cluster_id) is None:
        raise InvalidSettingError(
            f"cluster_id={cluster_id!r} is not a cluster id, which has 32 hexadecimal digits",
            advice="`oncelog status` and meta.properties in each data directory show it",
        )


def check_cluster_settings(settings: Mapping[str, Any]) -> ClusterConfig:
    """Build the cluster's settings; ``InvalidSettingError`` says which one is wrong, and why."""
    return build(ClusterConfig, settings)


def is_log_started() -> bool:
    """Whether the log runs or will restart: its node is alive.

    Actors pinned to a node that is gone restart elsewhere only if their data is there.
    """
    from oncelog.actors.launch import cluster_location

    if not has_log():
        return False
    known = cluster_location.read_location()
    return known is None or not cluster_location.is_lost(known)


def where_log_was() -> str:
    """What Ray remembers of a log that does not run, for an error; empty if there never was one."""
    from oncelog.actors.launch import cluster_location

    known = cluster_location.read_location()
    if known is None:
        return ""
    state = (
        "is away" if cluster_location.is_away(known) else "is alive, but the log was stopped there"
    )
    return f"{known}; that node {state}"


def start_log(
    data_dirs: Sequence[Path], config: ClusterConfig, *, is_ours: bool, cluster_id: str | None
) -> None:
    """Start the controller where the data is; it starts every other actor of the log.

    Actors left from a log whose node is down are killed first, since they would wait forever.
    ``is_ours`` means that this process has started Ray. If it has not, this waits for a majority of
    the voters, on nodes with the data of the cluster ``cluster_id``. Raises
    ``ConnectionFailedError`` and ``InvalidSettingError`` as ``find_location`` does.
    """
    from oncelog.actors.launch import cluster_location
    from oncelog.actors.launch.processes import launch_controller

    known = cluster_location.read_location()
    data_dir = data_dir_text(data_dirs)
    if is_ours:
        found = cluster_location.find_location(data_dir, known, is_ours=True, cluster_id=cluster_id)
    else:
        found = cluster_location.wait_for_location(data_dir, known, cluster_id=cluster_id)
    if known not in {None, found}:
        end_log()
    server_secret = cluster_location.server_secret(is_new=not _log_actors())
    cluster_location.write_location(found)
    launch_controller(
        ReplicaConfig(
            topic=CLUSTER_METADATA_TOPIC,
            partition=0,
            broker_id=found.broker_id,
            data_dir=found.data_dir,
            cluster=config,
            cluster_id=found.cluster_id,
            pin=found.pin,
            server_secret=server_secret,
        ),
        found.voters,
    )


def end_log() -> list[str]:
    """Kill every actor of the log, as kill -9 would; return their names. No data is lost."""
    from oncelog.actors.launch.processes import end_actors

    ours = _log_actors()
    end_actors(ours)
    return ours


def _log_actors() -> list[str]:
    from oncelog.actors.launch.processes import running_actors

    return [name for name in running_actors() if name.startswith(LOG_ACTORS)]


def away_log() -> str:
    """Where the log is, if its node has died, so that waiting is pointless; else empty."""
    from oncelog.actors.launch import cluster_location

    known = cluster_location.read_location()
    return (
        f"this is {known}; that node is away" if known and cluster_location.is_lost(known) else ""
    )


_NOT_LED: Final = {
    ErrorCode.NONE: "the controller serves, but some coordinator shards have no leader that "
    "accepts writes: `oncelog status` shows which"
}


async def wait_until_ready(
    transport: Transport, away: Callable[[], str] = lambda: ""
) -> MetadataReply:
    """Wait until the controller replies and every coordinator shard has a leader.

    Raises ``ConnectionFailedError`` with the last reason after a minute, and
    ``SaslAuthenticationFailedError`` at once. Raises the former immediately if
    the actor with the controller's name is not one, or if ``away()`` says that the log is gone.
    """
    request = MetadataRequest(topics=tuple(sorted(INTERNAL_TOPICS)))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + READY_TIMEOUT_MS / 1000
    while True:
        reply = await transport.call(CONTROLLER_ACTOR, request, timeout_ms=CALL_TIMEOUT_MS)
        if reply.error is ErrorCode.NONE and await _are_led(transport, reply):
            return reply
        if reply.error is ErrorCode.SASL_AUTHENTICATION_FAILED:
            raise exception_for(reply.error, reply.detail)
        if reply.error is ErrorCode.UNKNOWN_SERVER_ERROR:
            raise ConnectionFailedError(
                f"the actor {CONTROLLER_ACTOR!r} in Ray namespace {NAMESPACE!r} is not oncelog's "
                f"({reply.detail})",
                advice="stop it, or use another Ray cluster",
            )
        if reason := await asyncio.to_thread(away):
            raise ConnectionFailedError(f"the log cannot be reached: {reason}")
        is_offline = reply.error is ErrorCode.NOT_CONTROLLER and reply.detail
        if is_offline or loop.time() > deadline:
            reason = reply.detail or _NOT_LED.get(reply.error, reply.error.name)
            raise ConnectionFailedError(f"the log did not start: {reason}")
        await asyncio.sleep(READY_POLL_MS / 1000)


async def _are_led(transport: Transport, reply: MetadataReply) -> bool:
    """Whether every coordinator shard has a leader now; epochs alone outlive the processes."""
    leaders = [
        (leader_address(topic, partition), TopicPartition(topic.name, partition.partition))
        for topic in reply.topics
        for partition in topic.partitions
    ]
    if any(address is None for address, _ in leaders):
        return False
    replicas = await asyncio.gather(
        *(
            transport.call(
                address, DescribeReplicaRequest(topic_partition=shard), timeout_ms=CALL_TIMEOUT_MS
            )
            for address, shard in leaders
            if address is not None
        )
    )
    return bool(replicas) and all(replica.takes_writes for replica in replicas)


# --- what a program expects -------------------------------------------------------------------


def check_data_dirs(metadata: MetadataReply, expected: tuple[Path, ...]) -> None:
    """Reject a cluster whose data is elsewhere."""
    found = data_directories(metadata.brokers[0].data_dir)
    if found != expected:
        raise ConnectionFailedError(
            f"a cluster with data_dir={data_dir_text(found)!r} runs here already, so "
            f"data_dir={data_dir_text(expected)!r} cannot be started",
            advice="use the same directory, or stop the running cluster first",
        )


def check_cluster(metadata: MetadataReply, expected: str | None) -> None:
    """Reject another cluster than ``expected``; ``None`` accepts any."""
    if expected not in {None, metadata.cluster_id}:
        raise ConnectionFailedError(
            f"cluster {metadata.cluster_id} runs here already, not cluster_id={expected!r}",
            advice="stop it first, or give its id",
        )


def check_settings(metadata: MetadataReply, expected: Mapping[str, Any]) -> None:
    """Reject settings that differ from those the cluster was started with."""
    for name, value in expected.items():
        found = setting(metadata, name)
        if str(value) != found:
            raise InvalidSettingError(
                f"{name}={value!r} is not what the cluster of {metadata.brokers[0].data_dir} has, "
                f"which is {found}",
                advice="leave it out, or stop the cluster and start it with that"
                + (" in a new directory" if name in FOUNDING_SETTINGS else ""),
            )


def setting(metadata: MetadataReply, name: str) -> str:
    """The cluster's value of one setting of ``ClusterConfig``."""
    return dict(metadata.settings).get(name, str(getattr(ClusterConfig(), name)))
