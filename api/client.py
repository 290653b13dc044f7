"""A program's connection to a cluster, and the clients that are made from it.

One file: the clients of a connection share its event loop, its transport and its close.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oncelog.actors.config import data_directories
from oncelog.actors.interfaces import CONTROLLER_ACTOR, Transport
from oncelog.actors.process.clock import SystemClock
from oncelog.actors.process.ray_output import keep_own_output
from oncelog.actors.protocol.messages.cluster import MetadataReply, MetadataRequest, ShutdownRequest
from oncelog.actors.protocol.messages.transaction import RUN_TIMEOUT_MS
from oncelog.actors.rpc.call_meter import NO_REPORTS
from oncelog.actors.rpc.handshake import Identity
from oncelog.api.admin.admin import Admin, AsyncAdmin
from oncelog.api.admin.calls import TIMEOUT_MS
from oncelog.api.session import cluster_connection
from oncelog.api.session.event_loop import (
    LoopOfProgram,
    LoopThread,
    ProcessBound,
    close_if_forgotten,
    refuse_ray_of_parent,
)
from oncelog.api.session.links import Link, NotReachedError, RayLink, direct_link
from oncelog.api.session.login import NOBODY, Login, login_of
from oncelog.api.session.routing import ClientContext, Outage, Router
from oncelog.api.session.throttling import PoliteTransport
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

    from oncelog.actors.option_types import ClusterOptions
    from oncelog.actors.protocol.messages.transaction import Winner
    from oncelog.api.consuming.consumer import AsyncConsumer, Consumer
    from oncelog.api.option_types import ConsumerOptions, ProducerOptions, QueueOptions
    from oncelog.api.processing.job import ProcessJob
    from oncelog.api.processing.messages import BatchFormat, OnError, ProcessConfig, ProcessMode
    from oncelog.api.producing.member import Membership, RunEnd, TransactionMember
    from oncelog.api.producing.producer import AsyncProducer, Producer
    from oncelog.api.queueing.queue import AsyncQueue, Queue
    from oncelog.api.session.ray_cluster import DelayedStarts

_logger = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT_MS: Final = 30_000


def init(
    data_dir: cluster_connection.DataDir = cluster_connection.DEFAULT_DATA_DIR,
    *,
    address: str | None = None,
    num_cpus: int | None = None,
    dashboard_port: int | None = None,
    cluster_id: str | None = None,
    user: str | None = None,
    password_file: str | os.PathLike[str] | None = None,
    token: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
    **settings: Unpack[ClusterOptions],
) -> Cluster:
    """Start Ray and the log on ``data_dir`` unless they run already, and connect to them.

    Joins the Ray cluster that this process is connected to; else the one at ``address``; else the
    one that already runs on ``data_dir``. Without any, it starts a local one, which ends with this
    process; the data stays. ``data_dir`` may be several directories, as a sequence or separated by
    commas. The first is the broker's own, and each broker has replicas in all of them.

    ``settings`` are those of ``ClusterConfig``. A running cluster must agree with those given. With
    ``cluster_id`` that cluster is started once enough nodes with its data are up; no new cluster is
    created. A SIGTERM handler of the program is kept; without one, Ray's shuts the process down.
    ``user``, ``password_file``, ``token`` and ``cert`` as in ``connect``.

    ``InvalidSettingError`` for an unusable directory, or a setting that is out of range or differs
    from the running cluster's. ``ConnectionFailedError`` if the cluster has another id or data
    directory, or cannot be started.
    """
    # One thing: find out what runs, start what does not, and join it.
    import ray

    refuse_ray_of_parent()
    keep_own_output()
    login = login_of(user, password_file, token, cert)
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
    cluster = Cluster(login)
    try:
        cluster.expect(paths, cluster_id, settings)
    except BaseException:
        # A log with the wrong settings must not keep the right one from starting.
        end = cluster.shutdown if is_launcher else cluster.close
        end()
        raise
    if delayed is not None:
        cluster.announce(path, delayed)
    return cluster


def connect(
    address: str = "auto",
    *,
    user: str | None = None,
    password_file: str | os.PathLike[str] | None = None,
    token: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
) -> Cluster:
    """Connect to a running cluster; ``"auto"`` finds the Ray cluster of this machine.

    With ``user`` all calls are that user's, who proves to know the first line of ``password_file``
    (SCRAM-SHA-256, RFC 7677); the password is never sent. ``token`` is the path of a file with a
    signed token (JWT), read anew for each connection; ``cert`` that of a PEM file with a
    certificate and its key. Both need TLS. Without any of these the variables ``ONCELOG_USER`` and
    ``ONCELOG_PASSWORD_FILE``, ``ONCELOG_TOKEN_FILE`` or ``ONCELOG_CERT`` count; without these, this
    is a program of the Ray cluster like any other, ``User:ray``.

    ``ConnectionFailedError`` if there is none, or it does not run the log.
    ``SaslAuthenticationFailedError`` if the cluster does not know the user with that password.
    ``InvalidSettingError`` if a file has no password, token or certificate.
    """
    login = login_of(user, password_file, token, cert)
    keep_own_output()
    cluster_connection.join_ray(address)
    if not cluster_connection.is_log_started():
        was = cluster_connection.where_log_was()
        raise ConnectionFailedError(
            f"the Ray cluster at {cluster_connection.ray_address()} runs no oncelog"
            f"{f' now (it ran {was})' if was else ''}",
            advice="start it there with oncelog.init() or `oncelog start`",
        )
    return Cluster(login)


def connect_directly(
    data_dir: Path,
    login: Login = NOBODY,
    *,
    ray_address: str | None = None,
    join: Callable[[str], None] = cluster_connection.join_ray,
) -> Cluster | None:
    """Connect to the cluster that runs on ``data_dir`` of this machine, without joining Ray.

    ``None`` if that is not possible: no listener is named there that answers, or Ray's cluster is
    not that of ``ray_address``, or another one answers. Then ``connect`` may. What only Ray can do,
    such as jobs and handles of actors, first joins Ray by ``join``, in the caller's thread.

    ``SaslAuthenticationFailedError`` and ``InvalidSettingError`` as in ``connect``.
    """
    link = direct_link(data_dir, login, ray_address=ray_address, join=join)
    if link is None:
        return None
    try:
        return Cluster(login, link)
    except NotReachedError as error:
        _logger.info("%s: %s: Ray is asked", data_dir, error)
        return None


class Cluster(ProcessBound):
    """A program's connection to a cluster, made by ``init`` or ``connect``.

    Use it as a context manager, or ``close`` it. It may be used from any thread, but not in a
    forked process.
    """

    make_there = "call oncelog.connect() there"

    def __init__(self, login: Login = NOBODY, link: Link | None = None) -> None:
        self._link = link = link or RayLink(login.identity())
        self._login = login
        self._delayed: DelayedStarts | None = None
        self._loop_thread = LoopThread()
        cluster_connection.refuse_after_fork(self._loop_thread)
        self._reports = link.reports
        self._connections = link.connections
        self._transport = PoliteTransport(self._connections)
        self._clock = SystemClock()
        self._random = random.Random(secrets.randbits(64))
        self._processes = link.processes
        self._router = self._new_router()
        self.address = link.address
        try:
            self._metadata = self._loop_thread.run(link.ready(self._transport))
        except BaseException:
            self._loop_thread.close()
            raise
        if self._reports is not NO_REPORTS:
            self._reports.interval_ms = int(
                cluster_connection.setting(self._metadata, "metrics_interval_ms")
            )

    def _new_router(self) -> Router:
        """A view of the cluster of its own, for one client."""
        return Router(
            self._transport,
            self._clock,
            self._reports,
            process=self._processes.process(os.getpid()),
        )

    # --- what it is -----------------------------------------------------------------------

    @property
    def data_dir(self) -> str:
        """The data directory of the first broker; if it has several, its own."""
        return str(self.data_dirs[0])

    @property
    def data_dirs(self) -> tuple[Path, ...]:
        """All data directories of the first broker."""
        return data_directories(self._metadata.brokers[0].data_dir)

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, chosen when it was first started."""
        return self._metadata.cluster_id

    @property
    def dashboard_url(self) -> str:
        """The address of the Ray dashboard, "" if there is none; waits while it starts."""
        if self._delayed is not None:
            self._delayed.wait()
        return self._link.dashboard_url

    def announce(self, path: Path, delayed: DelayedStarts) -> None:
        """Write to the data directory where this cluster runs, then let Ray start the rest."""

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
        """Return the brokers, topics, leaders and leader epochs that the controller knows now."""
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
        """What integrations make their clients from; see ``ClientContext``."""
        return ClientContext(
            router=self._router,
            loop_thread=self._loop_thread,
            random=self._random,
            processes=self._processes,
            login=self._login,
        )

    # --- what is made from it -------------------------------------------------------------

    def admin(self, timeout_ms: int = TIMEOUT_MS) -> Admin:
        """Make an admin client for topics, replicas, groups, transactions, users and ACLs.

        Its calls are retried for up to ``timeout_ms``.
        """
        return Admin(self._router, self._loop_thread, random=self._random, timeout_ms=timeout_ms)

    def async_admin(self) -> AsyncAdmin:
        """Make an admin client for the running event loop, with its own metadata cache."""
        router = self._new_router()
        return AsyncAdmin(router, random=self._random)

    def transport_as(self, identity: Identity | None) -> tuple[Transport, Callable[[], None]]:
        """Calls as ``identity`` over connections of its own, and what closes these.

        ``None`` is whoever this connection is of; its connections stay open.
        """
        if identity is None:
            return self._transport, lambda: None
        connections = self._link.connections_as(identity)
        return PoliteTransport(connections), connections.close

    def producer(self, **settings: Unpack[ProducerOptions]) -> Producer:
        """Make a producer; ``settings`` are the keywords of ``ProducerSettings``.

        ``InvalidSettingError`` for an unknown setting or a value out of range.
        """
        from oncelog.api.config import ProducerSettings
        from oncelog.api.producing.producer import Producer

        return Producer(
            self._router,
            self._loop_thread,
            ProducerSettings.from_options(settings),
            random=self._random,
        )

    def consumer(self, **settings: Unpack[ConsumerOptions]) -> Consumer:
        """Make a consumer; ``settings`` are the keywords of ``ConsumerSettings``.

        ``InvalidSettingError`` for an unknown setting or a value out of range.
        """
        from oncelog.api.config import ConsumerSettings
        from oncelog.api.consuming.consumer import Consumer

        return Consumer(
            self._router,
            self._loop_thread,
            ConsumerSettings.from_options(settings),
            self._random,
        )

    def async_producer(self, **settings: Unpack[ProducerOptions]) -> AsyncProducer:
        """Make a producer for the running event loop, with its own metadata cache.

        A producer that is garbage-collected before it is closed ends with a ``ResourceWarning``.
        """
        from oncelog.api.config import ProducerSettings
        from oncelog.api.producing.producer import AsyncProducer

        router = self._new_router()
        options = ProducerSettings.from_options(settings)
        producer = AsyncProducer(router, options, random=self._random)
        self._loop_thread.call_when_forbidden(producer.forbid)
        close_if_forgotten(producer, LoopOfProgram(), producer._core)
        return producer

    def async_consumer(self, **settings: Unpack[ConsumerOptions]) -> AsyncConsumer:
        """Make a consumer for the running event loop, with its own metadata cache.

        A consumer that is garbage-collected before it is closed leaves its group, with a
        ``ResourceWarning``.
        """
        from oncelog.api.config import ConsumerSettings
        from oncelog.api.consuming.consumer import AsyncConsumer

        router = self._new_router()
        options = ConsumerSettings.from_options(settings)
        consumer = AsyncConsumer(router, options, self._random)
        close_if_forgotten(consumer, LoopOfProgram(), consumer._core)
        return consumer

    def queue(self, topics: str | Sequence[str], **settings: Unpack[QueueOptions]) -> Queue:
        """Make a worker of a queue over ``topics``; ``settings`` are those of ``QueueSettings``.

        ``InvalidSettingError`` for an unknown setting, a value out of range, or without a
        ``group_id``.
        """
        from oncelog.api.config import QueueSettings
        from oncelog.api.queueing.queue import Queue

        return Queue(
            self._router,
            self._loop_thread,
            QueueSettings.from_options(settings),
            topics,
            self._random,
        )

    def async_queue(
        self, topics: str | Sequence[str], **settings: Unpack[QueueOptions]
    ) -> AsyncQueue:
        """Make a worker of a queue for the running event loop, with its own metadata cache.

        One that is garbage-collected before it is closed leaves its group, with a
        ``ResourceWarning``.
        """
        from oncelog.api.config import QueueSettings
        from oncelog.api.queueing.queue import AsyncQueue

        queue = AsyncQueue(
            self._new_router(),
            QueueSettings.from_options(settings),
            topics,
            self._random,
        )
        close_if_forgotten(queue, LoopOfProgram(), queue._core)
        return queue

    def begin_run(
        self,
        transactional_id: str,
        *,
        token: bytes = b"",
        transaction_timeout_ms: int = RUN_TIMEOUT_MS,
        ends_with_process: bool = True,
    ) -> Membership:
        """Begin a run of a distributed write; it fences older runs of the id. Durable on return.

        ``token`` (up to 1,024 bytes) names what is written: if a commit with it exists, the result
        has ``is_committed``. If this process ends before ``end_run``, the run is aborted: within
        seconds if there is a broker on its host, else after ``transaction_timeout_ms``. With
        ``ends_with_process=False`` only the timeout aborts it, and another process may end it.

        ``OutdatedVersionError`` if the token names a lower version than the last commit.
        ``RequestTimedOutError`` if the outcome is unknown: call again.
        """
        from oncelog.api.config import ProducerSettings
        from oncelog.api.producing.member import begin_run

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
        """Make a producer for one task attempt of a distributed write.

        ``settings`` are the keywords of ``ProducerSettings``; ``transactional_id`` is ignored.
        """
        from oncelog.api.config import ProducerSettings
        from oncelog.api.producing.member import TransactionMember

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
        """End a distributed write: commit ``winners`` and abort all other members, or abort all.

        ``winners`` are the ``winner`` values of members. Durable on return. Safe to repeat with the
        same arguments; an abort after the decision changes nothing. ``InvalidTxnStateError`` if a
        winner is unknown or lacks records, and nothing changes. ``ProducerFencedError`` if a newer
        run has begun. ``RequestTimedOutError`` if the outcome is unknown: call again.
        """
        from oncelog.api.config import ProducerSettings
        from oncelog.api.producing.member import end_run

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
        source: str | Sequence[str],
        sink: str | Sequence[str] | None,
        function: Callable[[Any], Any],
        group_id: str,
        workers: int = 2,
        batch_format: BatchFormat = "arrow",
        commit_interval_ms: int = 100,
        max_poll_records: int = 5_000,
        function_timeout_ms: int = 1_800_000,
        max_function_failures: int = 3,
        max_worker_deaths: int = 10,
        max_concurrency: int = 100,
        on_error: OnError = "fail",
        dead_letter_topic: str | None = None,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 30_000,
        ray_remote_args: Mapping[str, Any] | None = None,
        producer_settings: ProducerOptions | None = None,
        consumer_settings: ConsumerOptions | QueueOptions | None = None,
        mode: ProcessMode = "partitions",
        tracing: bool | None = None,
    ) -> ProcessJob:
        """Process ``source`` into ``sink`` with ``function``, exactly once, in Ray actors.

        Each may be several topics; ``sink=None`` writes nothing.

        ``oncelog.api.processing.job`` says what the function gets and returns. The workers outlive
        this program: ``job(group_id)`` finds them again, and its ``stop()`` ends them. A later job
        with the same ``group_id`` continues where this one ended. With ``mode="queue"`` the workers
        share records instead of partitions, in any number, and in no order but a queue's ``order``.
        Source: KIP-447, KIP-1289.

        A worker fails permanently after ``max_function_failures`` in a row: the function raises, or
        one call exceeds ``function_timeout_ms`` and other workers get its input. It also fails
        after ``max_worker_deaths`` of its processes in a row have died over the same input.

        ``on_error`` is what a failure of the function, or output that cannot be sent, leads to:
        ``"fail"`` as above; ``"retry"`` repeats the input without end, with pauses from
        ``retry_backoff_ms`` to ``retry_backoff_max_ms``; ``"skip"`` leaves out each record that
        fails alone ``max_function_failures`` times; ``"dead_letter"`` also sends it to
        ``dead_letter_topic``, in the same transaction. With the last two, so is a record over which
        ``max_worker_deaths`` processes have died and, when it is alone, as many again.

        ``ray_remote_args`` are what each worker needs and where it may run, as ``ray.remote`` takes
        it: ``num_cpus`` (0), ``num_gpus``, ``memory``, ``resources``, ``runtime_env`` and so on.
        The status says of a worker that no node takes what it waits for.

        With ``tracing`` the workers make spans, and what they send carries their context; ``None``
        is whether their process has set a tracer provider.

        ``UnknownTopicOrPartitionError`` if a topic is missing, ``InvalidSettingError`` for a value
        out of range, ``IllegalStateError`` if a job of this ``group_id`` runs.
        """
        # One thing: the arguments of a job become the configurations of its workers.
        from oncelog.api.processing.actor import launch_workers
        from oncelog.api.processing.job import LEAVE_TIMEOUT_MS, remove_former_workers
        from oncelog.api.processing.loop import worker_settings
        from oncelog.api.processing.messages import ProcessConfig
        from oncelog.api.processing.queue_loop import queue_worker_settings

        self._link.join_ray()
        settings_of(ProcessConfig)["workers"].take(workers)
        job_id = secrets.token_hex(8)
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
                max_concurrency=max_concurrency,
                on_error=on_error,
                dead_letter_topic=dead_letter_topic,
                retry_backoff_ms=retry_backoff_ms,
                retry_backoff_max_ms=retry_backoff_max_ms,
                ray_remote_args=ray_remote_args or {},
                job_id=job_id,
                login=self._login,
                producer_settings=producer_settings or {},
                consumer_settings=consumer_settings or {},
                mode=mode,
                tracing=tracing,
            )
            for worker_index in range(workers)
        ]
        config = configs[0]
        check_settings = queue_worker_settings if mode == "queue" else worker_settings
        check_settings(config)
        dead_letters = () if dead_letter_topic is None else (dead_letter_topic,)
        for topic in (*config.sources, *config.sinks, *dead_letters):
            self._loop_thread.run(self._router.partition_count(topic))
        launch_workers(configs)
        admin = AsyncAdmin(self._router, random=self._random, timeout_ms=LEAVE_TIMEOUT_MS)
        self._loop_thread.run(remove_former_workers(admin, group_id, worker_count=workers))
        return self._attach(group_id, range(workers), config)

    def jobs(self) -> list[ProcessJob]:
        """Return the running jobs of ``process``, sorted by group id, whoever started them.

        A job whose workers have all failed is included until it is stopped.
        """
        from oncelog.api.processing.actor import running_jobs

        self._link.join_ray()
        return [self._attach(group_id, found) for group_id, found in running_jobs().items()]

    def job(self, group_id: str) -> ProcessJob:
        """Return the job with this group id, or raise ``GroupIdNotFoundError``."""
        from oncelog.api.processing.actor import running_jobs

        self._link.join_ray()
        jobs = running_jobs()
        if group_id not in jobs:
            known = "those of " + ", ".join(map(repr, jobs)) if jobs else "none"
            raise GroupIdNotFoundError(f"no job with group_id={group_id!r} runs; running: {known}")
        return self._attach(group_id, jobs[group_id])

    def _attach(
        self, group_id: str, worker_indexes: Sequence[int], config: ProcessConfig | None = None
    ) -> ProcessJob:
        from oncelog.api.processing.actor import attach

        return attach(
            group_id,
            worker_indexes,
            router=self._router,
            transport=self._transport,
            loop_thread=self._loop_thread,
            chance=self._random,
            sources=() if config is None else config.sources,
            sinks=() if config is None else config.sinks,
        )

    # --- actor handles --------------------------------------------------------------------

    @property
    def controller(self) -> Any:
        """The Ray actor handle of the controller."""
        return self._handle(CONTROLLER_ACTOR)

    def partition(self, topic: str, partition: int) -> Any:
        """The Ray handle of the actor with a partition's leader, and maybe other replicas.

        Its methods take the requests of ``actors/protocol/messages``.
        """
        tp = TopicPartition(topic, partition)
        address, _ = self._loop_thread.run(self._router.leader(tp))
        return self._handle(address)

    def transaction_coordinator(self, transactional_id: str) -> Any:
        """The Ray actor handle of the coordinator of a transactional id."""
        self._loop_thread.run(self._router.start())
        return self._handle(self._router.transaction_coordinator(transactional_id))

    def group_coordinator(self, group_id: str) -> Any:
        """The Ray actor handle of the coordinator of a consumer group."""
        self._loop_thread.run(self._router.start())
        return self._handle(self._router.group_coordinator(group_id))

    def on_outage(self, listener: Callable[[Outage], None]) -> None:
        """Call ``listener`` when a callee has not replied for 5 s, and when it replies again.

        Both are also logged, as warnings of ``oncelog.client``. The listener runs on the
        connection's thread, so it must not block or call a client.
        """
        self._router.outages.listeners.append(listener)

    # --- the end --------------------------------------------------------------------------

    def close(self) -> None:
        """Disconnect this program and close its clients. The cluster keeps running."""
        if not self._loop_thread.is_forbidden:
            self._connections.close()
        self._loop_thread.close()

    def shutdown(self) -> None:
        """Stop the log cleanly for all clients, and disconnect. Ray keeps running; data stays.

        Raises ``OncelogError`` if the log does not stop in time.
        """
        self._link.join_ray()
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
        """Return the cluster itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Detach."""
        self.close()

    def _handle(self, address: str) -> Any:
        from oncelog.actors.rpc.ray_transport import find_actor

        self._link.join_ray()
        return find_actor(address.partition("/")[0])
