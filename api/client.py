"""The connection of one program to a cluster, and everything that is made from it.

One file: who is made from a connection shares its loop, its transport and its end.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import ray

from oncelog.actors.config import ClusterConfig, data_directories
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.option_types import ClusterOptions
from oncelog.actors.process.clock import SystemClock
from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.process.ray_metrics import RayMetrics
from oncelog.actors.protocol.messages.cluster import MetadataReply, MetadataRequest, ShutdownRequest
from oncelog.actors.protocol.messages.transaction import Winner
from oncelog.actors.rpc.actor_transport import ActorTransport
from oncelog.actors.rpc.call_meter import CallReports
from oncelog.actors.rpc.ray_transport import RayTransport, find_actor
from oncelog.api.admin.admin import Admin, AsyncAdmin
from oncelog.api.config import ConsumerSettings, ProducerSettings
from oncelog.api.consuming.consumer import AsyncConsumer, Consumer
from oncelog.api.option_types import ConsumerOptions, ProducerOptions
from oncelog.api.processing.actor import attach, launch_workers, running_jobs
from oncelog.api.processing.job import LEAVE_TIMEOUT_MS, ProcessJob, remove_former_workers
from oncelog.api.processing.loop import worker_settings
from oncelog.api.processing.messages import BatchFormat, ProcessConfig
from oncelog.api.producing.member import (
    TRANSACTION_TIMEOUT_MS,
    Membership,
    RunEnd,
    TransactionMember,
    begin_run,
    end_run,
)
from oncelog.api.producing.producer import AsyncProducer, Producer
from oncelog.api.session import cluster_connection
from oncelog.api.session.event_loop import (
    LoopOfProgram,
    LoopThread,
    ProcessBound,
    close_if_forgotten,
    refuse_ray_of_parent,
)
from oncelog.api.session.ray_cluster import DelayedStarts
from oncelog.api.session.routing import ClientContext, Outage, Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    ConnectionFailedError,
    GroupIdNotFoundError,
    exception_for,
)
from oncelog.storage.model import TopicPartition
from oncelog.storage.settings import settings_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

SHUTDOWN_TIMEOUT_MS: Final = 30_000


def init(
    data_dir: cluster_connection.DataDir = cluster_connection.DEFAULT_DATA_DIR,
    *,
    address: str | None = None,
    num_cpus: int | None = None,
    dashboard_port: int | None = None,
    cluster_id: str | None = None,
    **settings: Unpack[ClusterOptions],
) -> Cluster:
    """Start Ray and the log on ``data_dir`` if they are not up, and connect to them.

    Joins, in this order: the Ray cluster this process is connected to, the one at ``address``, or
    the one that runs on ``data_dir`` already; else starts a local one that ends with this process
    (its data stays). Of several directories, a sequence or a text with commas, the first is the
    broker's own, and each broker has replicas in all. ``settings`` are those of ``ClusterConfig``.
    With a ``cluster_id`` that cluster is started, once enough nodes that have its data are there,
    and none is founded. Raises ``InvalidSettingError`` for an impossible directory or setting,
    ``ConnectionFailedError`` when the cluster has another id or data directory or cannot be
    started. On a cluster that runs, settings that differ from its own are refused by
    ``InvalidSettingError``; those that are not given are not asked about. A handler of SIGTERM that
    the program has set stays; without one Ray's ends it in order.
    """
    refuse_ray_of_parent()
    paths = cluster_connection.directory_paths(data_dir)
    path = paths[0]
    config = cluster_connection.check_cluster_settings(settings)
    cluster_connection.check_cluster_id(cluster_id)
    running = cluster_connection.read_discovery(path)
    # For a record left by this process ask Ray: it may have been shut down since.
    if address is None and running is not None and running.process_id != os.getpid():
        address = running.address
    is_starter = address is None and not ray.is_initialized()
    delayed = None
    if is_starter:
        cluster_connection.check_data_dir(path)
        delayed = cluster_connection.start_ray(num_cpus=num_cpus, dashboard_port=dashboard_port)
    else:
        if address is not None:
            cluster_connection.join_ray(address)
        cluster_connection.check_joined(num_cpus=num_cpus, dashboard_port=dashboard_port)
    is_launcher = not cluster_connection.is_log_started()
    if is_launcher:
        cluster_connection.start_log(paths, config, is_ours=is_starter, cluster_id=cluster_id)
    cluster = Cluster()
    try:
        cluster.expect(paths, cluster_id, settings)
    except BaseException:
        # A log with the wrong settings must not stay in the way of the right one.
        end = cluster.shutdown if is_launcher else cluster.close
        end()
        raise
    if delayed is not None:
        cluster.announce(path, delayed)
    return cluster


def connect(address: str = "auto") -> Cluster:
    """Attach to a running cluster; ``"auto"`` finds the Ray cluster of this machine.

    Raises ``ConnectionFailedError`` when there is none, or when it runs no log.
    """
    cluster_connection.join_ray(address)
    if not cluster_connection.is_log_started():
        was = cluster_connection.where_log_was()
        raise ConnectionFailedError(
            f"the Ray cluster at {cluster_connection.ray_address()} runs no oncelog"
            f"{f' now (it ran {was})' if was else ''}",
            advice="start it there with oncelog.init() or `oncelog start`",
        )
    return Cluster()


class Cluster(ProcessBound):
    """One program's connection. Use it as a context manager, or ``close`` it."""

    make_there = "call oncelog.connect() there"

    def __init__(self) -> None:
        self._delayed: DelayedStarts | None = None
        self._loop_thread = LoopThread()
        cluster_connection.refuse_after_fork(self._loop_thread)
        self._reports = CallReports(RayMetrics(), ClusterConfig().metrics_interval_ms)
        self._transport = ActorTransport(RayTransport(), self._reports)
        self._clock = SystemClock()
        self._random = random.Random(secrets.randbits(64))
        self._router = Router(self._transport, self._clock, self._reports.metrics)
        self._processes = ProcessTable(ray.util.get_node_ip_address())
        self.address = cluster_connection.ray_address()
        try:
            self._metadata = self._loop_thread.run(
                cluster_connection.wait_until_ready(self._transport, cluster_connection.away_log)
            )
        except BaseException:
            self._loop_thread.close()
            raise
        self._reports.interval_ms = int(
            cluster_connection.setting(self._metadata, "metrics_interval_ms")
        )

    # --- what it is -----------------------------------------------------------------------

    @property
    def data_dir(self) -> str:
        """Data directory of the first broker; of several, its own."""
        return str(self.data_dirs[0])

    @property
    def data_dirs(self) -> tuple[Path, ...]:
        """All data directories of the first broker."""
        return data_directories(self._metadata.brokers[0].data_dir)

    @property
    def cluster_id(self) -> str:
        """Id of the cluster, chosen when it was founded."""
        return self._metadata.cluster_id

    @property
    def dashboard_url(self) -> str:
        """Address of the Ray dashboard, empty if it does not run; waits for one that starts."""
        if self._delayed is not None:
            self._delayed.wait()
        return cluster_connection.dashboard_url()

    def announce(self, path: Path, delayed: DelayedStarts) -> None:
        """Record in the data directory where this cluster runs; then have Ray start the rest."""

        def write() -> None:
            cluster_connection.write_discovery(
                path,
                cluster_connection.Discovery(
                    address=self.address,
                    dashboard_url=cluster_connection.dashboard_url(),
                    process_id=os.getpid(),
                ),
            )

        def write_again() -> None:
            if cluster_connection.read_discovery(path) is not None:
                write()

        write()
        self._delayed = delayed
        delayed.begin(then=write_again)

    def describe(self) -> MetadataReply:
        """Brokers, topics, leaders and epochs, as the controller knows them now."""
        reply = self._loop_thread.run(
            self._transport.call(CONTROLLER_ACTOR, MetadataRequest(), timeout_ms=5_000)
        )
        if reply.error is not ErrorCode.NONE:
            raise exception_for(reply.error, reply.detail)
        return reply

    def expect(
        self, data_dirs: tuple[Path, ...], cluster_id: str | None, settings: Mapping[str, Any]
    ) -> None:
        """Refuse to go on if this is not the cluster that was meant; see ``check_settings``."""
        cluster_connection.check_data_dirs(self._metadata, data_dirs)
        cluster_connection.check_cluster(self._metadata, cluster_id)
        cluster_connection.check_settings(self._metadata, settings)

    @property
    def context(self) -> ClientContext:
        """What the bridges to other systems build their clients from; see ``ClientContext``."""
        return ClientContext(
            router=self._router,
            loop_thread=self._loop_thread,
            random=self._random,
            processes=self._processes,
        )

    # --- what is made from it -------------------------------------------------------------

    def admin(self) -> Admin:
        """Topics, groups and transactions."""
        return Admin(self._router, self._loop_thread, random=self._random)

    def producer(self, **settings: Unpack[ProducerOptions]) -> Producer:
        """Make a producer; ``settings`` are those of ``ProducerSettings``, by keyword."""
        return Producer(
            self._router,
            self._loop_thread,
            ProducerSettings.from_options(settings),
            random=self._random,
        )

    def consumer(self, **settings: Unpack[ConsumerOptions]) -> Consumer:
        """Make a consumer; ``settings`` are those of ``ConsumerSettings``, by keyword."""
        return Consumer(
            self._router,
            self._loop_thread,
            ConsumerSettings.from_options(settings),
            self._random,
            self._reports,
        )

    def async_producer(self, **settings: Unpack[ProducerOptions]) -> AsyncProducer:
        """Make a producer for the running event loop, with its own view of the cluster.

        One that is not closed ends when nothing refers to it any more, with a ``ResourceWarning``.
        """
        router = Router(self._transport, self._clock, self._reports.metrics)
        options = ProducerSettings.from_options(settings)
        producer = AsyncProducer(router, options, random=self._random)
        self._loop_thread.call_when_forbidden(producer.forbid)
        close_if_forgotten(producer, LoopOfProgram(), producer._core)
        return producer

    def async_consumer(self, **settings: Unpack[ConsumerOptions]) -> AsyncConsumer:
        """Make a consumer for the running event loop, with its own view of the cluster.

        One that is not closed leaves its group when nothing refers to it any more, with a
        ``ResourceWarning``.
        """
        router = Router(self._transport, self._clock, self._reports.metrics)
        options = ConsumerSettings.from_options(settings)
        consumer = AsyncConsumer(router, options, self._random, self._reports)
        close_if_forgotten(consumer, LoopOfProgram(), consumer._core)
        return consumer

    def begin_run(
        self,
        transactional_id: str,
        *,
        token: bytes = b"",
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        ends_with_process: bool = True,
    ) -> Membership:
        """Begin a run of a distributed write, which fences older ones; see ``api.member``.

        The run ends with this process, if it goes before ``end_run``: then it is aborted within
        seconds, if the coordinator runs on the same host, else by its timeout. With
        ``ends_with_process=False`` another process may end it, and only the timeout counts.
        """
        driver = self._processes.process(os.getpid()) if ends_with_process else None
        return self._loop_thread.run(
            begin_run(
                self._router,
                ProducerSettings(),
                transactional_id,
                token=token,
                transaction_timeout_ms=transaction_timeout_ms,
                driver=driver,
                random=self._random,
            )
        )

    def member(
        self, membership: Membership, **settings: Unpack[ProducerOptions]
    ) -> TransactionMember:
        """One task attempt of a distributed write; see ``oncelog.api.producing.member``."""
        return TransactionMember(
            self._router,
            self._loop_thread,
            ProducerSettings.from_options(settings),
            membership,
            random=self._random,
        )

    def end_run(
        self, membership: Membership, *, committed: bool, winners: Sequence[Winner] = ()
    ) -> RunEnd:
        """End a distributed write: commit ``winners``, abort every other member, or abort all."""
        return self._loop_thread.run(
            end_run(
                self._router,
                ProducerSettings(),
                membership,
                committed=committed,
                winners=winners,
                random=self._random,
            )
        )

    def process(
        self,
        *,
        source: str,
        sink: str,
        function: Callable[[Any], Any],
        group_id: str,
        workers: int = 2,
        batch_format: BatchFormat = "arrow",
        commit_interval_ms: int = 100,
        max_poll_records: int = 5_000,
        function_timeout_ms: int = 1_800_000,
        max_function_failures: int = 3,
        max_worker_deaths: int = 10,
        producer_settings: ProducerOptions | None = None,
        consumer_settings: ConsumerOptions | None = None,
    ) -> ProcessJob:
        """Run ``function`` over ``source`` into ``sink``, exactly once, in Ray actors.

        See ``oncelog.api.processing.job`` for what the function gets and returns. The workers
        outlive this program: ``job(group_id)`` finds them again, ``stop()`` of it ends them. A
        later job of the same ``group_id`` continues where this one ended. A worker fails, for good
        and visibly, after ``max_function_failures`` in a row of the function, whatever it raises
        or if one call takes longer than ``function_timeout_ms`` and others get its input, or
        after ``max_worker_deaths`` processes in a row that ended over the same input. Raises
        ``UnknownTopicOrPartitionError`` if a topic is missing, ``InvalidSettingError`` for an
        impossible setting, ``IllegalStateError`` if a job of this ``group_id`` runs.
        """
        settings_of(ProcessConfig)["workers"].take(workers)
        job_id = secrets.token_hex(8)
        for topic in (source, sink):
            self._loop_thread.run(self._router.partition_count(topic))
        configs = [
            ProcessConfig(
                source=source,
                sink=sink,
                group_id=group_id,
                worker_index=worker_index,
                workers=workers,
                function=function,
                batch_format=batch_format,
                commit_interval_ms=commit_interval_ms,
                max_poll_records=max_poll_records,
                function_timeout_ms=function_timeout_ms,
                max_function_failures=max_function_failures,
                max_worker_deaths=max_worker_deaths,
                job_id=job_id,
                producer_settings=producer_settings or {},
                consumer_settings=consumer_settings or {},
            )
            for worker_index in range(workers)
        ]
        worker_settings(configs[0])
        launch_workers(configs)
        admin = AsyncAdmin(self._router, random=self._random, timeout_ms=LEAVE_TIMEOUT_MS)
        self._loop_thread.run(remove_former_workers(admin, group_id, worker_count=workers))
        return self._attach(group_id, range(workers), source, sink)

    def jobs(self) -> list[ProcessJob]:
        """The jobs of ``process`` that this cluster runs, by group id, whoever started them.

        One whose workers have all failed is among them until it is stopped.
        """
        return [self._attach(group_id, found) for group_id, found in running_jobs().items()]

    def job(self, group_id: str) -> ProcessJob:
        """The job with this group id; ``GroupIdNotFoundError`` if there is none."""
        jobs = running_jobs()
        if group_id not in jobs:
            known = "those of " + ", ".join(map(repr, jobs)) if jobs else "none"
            raise GroupIdNotFoundError(f"no job with group_id={group_id!r} runs; running: {known}")
        return self._attach(group_id, jobs[group_id])

    def _attach(
        self, group_id: str, worker_indexes: Sequence[int], source: str = "", sink: str = ""
    ) -> ProcessJob:
        return attach(
            group_id,
            worker_indexes,
            router=self._router,
            transport=self._transport,
            loop_thread=self._loop_thread,
            chance=self._random,
            source=source,
            sink=sink,
        )

    # --- actor handles --------------------------------------------------------------------

    @property
    def controller(self) -> Any:
        """Ray handle of the controller."""
        return _handle(CONTROLLER_ACTOR)

    def partition(self, topic: str, partition: int) -> Any:
        """Ray handle of the actor that holds the leader of a partition, maybe with other replicas.

        Its methods take requests, see the messages.
        """
        tp = TopicPartition(topic, partition)
        address, _ = self._loop_thread.run(self._router.leader(tp))
        return _handle(address)

    def transaction_coordinator(self, transactional_id: str) -> Any:
        """Ray handle of the coordinator of a transactional id."""
        self._loop_thread.run(self._router.start())
        return _handle(self._router.transaction_coordinator(transactional_id))

    def group_coordinator(self, group_id: str) -> Any:
        """Ray handle of the coordinator of a consumer group."""
        self._loop_thread.run(self._router.start())
        return _handle(self._router.group_coordinator(group_id))

    def on_outage(self, listener: Callable[[Outage], None]) -> None:
        """Call ``listener`` when something that this program calls has not answered for 5 s.

        And once it answers again. Both are logged as well, as warnings of ``oncelog.client``. It is
        called on the thread of the connection, so it must not wait, or call a client.
        """
        self._router.outages.listeners.append(listener)

    # --- the end --------------------------------------------------------------------------

    def close(self) -> None:
        """Detach this program and close its producers and consumers. The cluster keeps running."""
        if not self._loop_thread.is_forbidden:
            self._transport.close()
        self._loop_thread.close()

    def shutdown(self) -> None:
        """Stop the log cleanly for all clients, and detach. Ray keeps running; the data stays."""
        reply = self._loop_thread.run(
            self._transport.call(
                CONTROLLER_ACTOR, ShutdownRequest(), timeout_ms=SHUTDOWN_TIMEOUT_MS
            )
        )
        if reply.error is not ErrorCode.NONE:
            raise exception_for(reply.error, reply.detail or "the log did not stop in time")
        cluster_connection.end_log()
        cluster_connection.forget_discovery(Path(self.data_dir))
        self.close()

    def __enter__(self) -> Cluster:
        """The cluster itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Detach."""
        self.close()


def _handle(address: str) -> Any:
    return find_actor(address.partition("/")[0])
