"""``oncelog start`` and ``oncelog stop``: the process that runs a local cluster.

``start`` leaves ``oncelog.api.cli.head`` running, detached from the terminal, with its output in
``<data directory>/oncelog.log``; ``stop`` ends it. With ``--address`` both act on the log of an
existing Ray cluster, and no process is left behind.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import click

from oncelog.actors.config import DATA_DIR_SEPARATOR, ClusterConfig
from oncelog.api.cli import head
from oncelog.api.cli.arguments import Arguments, Command, WholeNumber, option, repeated
from oncelog.api.cli.connect import (
    cluster_options,
    connect,
    data_dir_of,
    data_dirs_of,
    find,
    login_arguments,
    login_variables,
    quiet_libraries,
    running_on,
)
from oncelog.api.cli.terminal import PROGRAM, CliError, UsageError, say, split_line
from oncelog.api.session import cluster_connection
from oncelog.storage.disk.file_system import FILE_MODE
from oncelog.storage.exceptions import ConnectionFailedError
from oncelog.storage.settings import settings_of

LOG_FILE: Final = "oncelog.log"
_APPENDED: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
START_TIMEOUT_S: Final = 120.0
DASHBOARD_SPARE_S: Final = 90.0
"""Stop waiting for the dashboard when only this much of the start timeout is left."""
POLL_S: Final = 0.1
LOG_TAIL_BYTES: Final = 65_536


# --- start ------------------------------------------------------------------------------------


@click.command(cls=Command)
@option("--num-cpus", type=WholeNumber(1), help="CPUs that Ray may use (default: all)")
@option(
    "--dashboard-port",
    type=WholeNumber(1, 65_535),
    metavar="PORT",
    help="port of the Ray dashboard (default: 8265, or the next free one)",
)
@option(
    "--kafka-port",
    type=WholeNumber(1, 65_535),
    metavar="PORT",
    help="serve clients of Kafka on this port of each broker (default: none)",
)
@option(
    "--cluster-id",
    metavar="ID",
    help="with --address: start this cluster once nodes with its data are up; never a new one",
)
@repeated(
    "--config", "NAME=VALUE", f"a setting of the cluster ({', '.join(settings_of(ClusterConfig))})"
)
@cluster_options
def start(args: Arguments) -> int:
    """Start a cluster on the data directory, or the log on the Ray cluster at ``--address``."""
    if args.kafka_port is not None:
        args.config = [*args.config, f"kafka_port={args.kafka_port}"]
    settings = head.parse_settings(args.config)
    cluster_connection.check_cluster_settings(settings)
    if args.address:
        if args.num_cpus is not None or args.dashboard_port is not None:
            raise UsageError(
                "--num-cpus and --dashboard-port belong to a Ray cluster that is started here",
                "leave them out with --address",
            )
        return _start_on(args, settings)
    data_dirs = data_dirs_of(args)
    if args.cluster_id is not None:
        raise UsageError("--cluster-id belongs to the log of a Ray cluster", "give its --address")
    path = cluster_connection.check_data_dir(data_dir_of(args))
    running = running_on(path)
    if running is not None:
        is_told_more = args.config or DATA_DIR_SEPARATOR in data_dirs
        if is_told_more or args.num_cpus is not None or args.dashboard_port is not None:
            _check_running(running, data_dirs, args, settings)
        say(f"runs already, process {running.process_id}")
        _describe(path, running)
        return 0
    cluster_connection.forget_discovery(path)
    if args.dashboard_port is not None:
        check_port(args.dashboard_port)
    say(f"starting   {path}")
    discovery = _spawn(args, path, data_dirs)
    say(f"dashboard  {discovery.dashboard_url or 'none'}")
    where = "" if args.data_dir is None else f" --data-dir {args.data_dir}"
    if settings.get("kafka_port"):
        say(f"kafka      port {settings['kafka_port']}; `oncelog status{where}` shows the address")
    say(_NEXT.format(where=where))
    return 0


_NEXT: Final = """\
next       oncelog topics create flights --partitions 6{where}
           echo "EWR IAH 517" | oncelog produce flights{where}
           oncelog consume flights --from-beginning{where}"""
"""What to try with a cluster that has just started."""


def _check_running(
    running: cluster_connection.Discovery,
    data_dirs: str,
    args: Arguments,
    settings: dict[str, Any],
) -> None:
    """Reject settings that differ from those of the running cluster."""
    quiet_libraries()
    from oncelog.api import client

    client.init(
        data_dirs,
        address=running.address,
        num_cpus=args.num_cpus,
        dashboard_port=args.dashboard_port,
        **login_arguments(args),
        **settings,
    ).close()


def check_port(port: int) -> None:
    """Reject a dashboard port that is in use or not permitted."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CliError(
                f"port {port} cannot be used for the dashboard ({error.strerror})",
                "give a free one with --dashboard-port, or leave it out to have one chosen",
            ) from None


def _start_on(args: Arguments, settings: dict[str, Any]) -> int:
    found = find(args)
    quiet_libraries()
    from oncelog.api import client

    cluster = client.init(
        data_dirs_of(args),
        address=found.address,
        cluster_id=args.cluster_id,
        **login_arguments(args),
        **settings,
    )
    say(f"serving {cluster_connection.data_dir_text(cluster.data_dirs)}")
    say(f"cluster    {cluster.cluster_id}")
    say(f"address    {cluster.address}")
    say(f"dashboard  {cluster.dashboard_url or 'none'}")
    say(f"reach it with --address {cluster.address}, or export RAY_ADDRESS={cluster.address}")
    cluster.close()
    return 0


def _spawn(args: Arguments, path: Path, data_dirs: str) -> cluster_connection.Discovery:
    """Start the head process and wait until it serves; what it logged if it does not."""
    command = [sys.executable, "-m", head.MODULE, "--data-dir", data_dirs]
    if args.num_cpus is not None:
        command += ["--num-cpus", str(args.num_cpus)]
    if args.dashboard_port is not None:
        command += ["--dashboard-port", str(args.dashboard_port)]
    for pair in args.config:
        command += ["--config", pair]
    log_path = path / LOG_FILE
    with open(os.open(log_path, _APPENDED, FILE_MODE), "ab") as log:
        log_start = log.tell()
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Not the data directory: Python would take modules from there.
            cwd="/",
            env={**os.environ, **login_variables(args)},
            start_new_session=True,
        )
    say(f"process    {process.pid}")
    say(f"log        {log_path}")
    sys.stdout.flush()
    try:
        return _wait_until_served(process, path, log_start)
    except BaseException:
        _end(process.pid)
        raise


def _wait_until_served(
    process: subprocess.Popen[bytes], path: Path, log_start: int
) -> cluster_connection.Discovery:
    deadline = time.monotonic() + START_TIMEOUT_S
    is_served = False
    while time.monotonic() < deadline:
        try:
            process.wait(timeout=POLL_S)
        except subprocess.TimeoutExpired:
            discovery = cluster_connection.read_discovery(path)
            if discovery is None or discovery.process_id != process.pid:
                continue
            if not is_served:
                is_served = True
                say(f"serving    {path}")
                say(f"address    {discovery.address}")
                sys.stdout.flush()
            if _is_told(discovery, deadline):
                return discovery
            continue
        what, advice = last_error(path / LOG_FILE, log_start)
        raise CliError(what, advice or f"see {path / LOG_FILE}")
    raise CliError(
        f"the cluster did not start within {START_TIMEOUT_S:.0f} s",
        f"see {path / LOG_FILE}, then try again",
    )


def _is_told(discovery: cluster_connection.Discovery, deadline: float) -> bool:
    """Whether the dashboard's address is known, which starts after the log; or it takes long."""
    return bool(discovery.dashboard_url) or time.monotonic() > deadline - DASHBOARD_SPARE_S


def last_error(log_path: Path, start: int) -> tuple[str, str]:
    """The head process's last message after byte ``start`` of its log: the error, what to do."""
    try:
        with log_path.open("rb") as log:
            log.seek(max(start, log_path.stat().st_size - LOG_TAIL_BYTES))
            text = log.read().decode("utf-8", "replace")
    except OSError as error:
        text = f"its log cannot be read: {error.strerror}"
    lines = [line for line in text.splitlines() if line.strip()]
    prefix = f"{PROGRAM}: "
    for line in reversed(lines):
        if line.startswith(prefix):
            return split_line(line.removeprefix(prefix))
    return f"the cluster did not start ({lines[-1].strip() if lines else 'it said nothing'})", ""


def _describe(path: Path, discovery: cluster_connection.Discovery) -> None:
    say(f"serving {path}")
    say(f"address    {discovery.address}")
    say(f"dashboard  {discovery.dashboard_url or 'none'}")
    say(f"process    {discovery.process_id}")
    say(f"log        {path / LOG_FILE}")


# --- keys -------------------------------------------------------------------------------------


@click.command(cls=Command)
@cluster_options
def rotate_key(args: Arguments) -> int:
    """Make a new key for transaction tickets."""
    with connect(args) as cluster:
        version = cluster.admin().rotate_ticket_key()
    say(f"new tickets use key {version}; those of key {version - 1} stay valid for 12 h")
    return 0


# --- stop -------------------------------------------------------------------------------------


@click.command(cls=Command)
@option(
    "--timeout-ms",
    type=WholeNumber(0),
    default=30_000,
    metavar="T",
    help="kill it if it has not stopped after T ms (default: 30000)",
)
@cluster_options
def stop(args: Arguments) -> int:
    """Stop the cluster cleanly and wait until it is gone; its data stays."""
    found = find(args)
    if found.discovery is not None and is_head(found.discovery.process_id):
        if login_variables(args):
            # The head itself may stop the log only if it was started as a user that may.
            with connect(args) as cluster:
                cluster.shutdown()
        return _stop_head(found.discovery, data_dir_of(args), args.timeout_ms)
    quiet_libraries()
    from oncelog.api import client

    try:
        cluster = client.connect(found.address, **login_arguments(args))
    except ConnectionFailedError as error:
        # Its node is down, or its log is missing: there is nothing left to flush.
        if not cluster_connection.end_log():
            raise
        say(f"stopped without its controller ({error}); what was acknowledged is on its disk")
        return 0
    path = Path(cluster.data_dir)
    holder = cluster_connection.read_discovery(path)
    if holder is not None and holder.address == cluster.address and is_head(holder.process_id):
        cluster.close()
        return _stop_head(holder, path, args.timeout_ms)
    cluster.shutdown()
    say(f"stopped; the Ray cluster at {cluster.address} keeps running")
    return 0


def is_head(process_id: int) -> bool:
    """Whether the process is one of our heads, not another program with a reused process id."""
    try:
        command = Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return False
    return head.MODULE.encode() in command.split(b"\0")


def _stop_head(discovery: cluster_connection.Discovery, path: Path, timeout_ms: int) -> int:
    process_id = discovery.process_id
    log_path = path / LOG_FILE
    log_start = log_path.stat().st_size if log_path.exists() else 0
    try:
        os.kill(process_id, signal.SIGTERM)
    except ProcessLookupError:
        say("stopped")
        return 0
    except PermissionError:
        raise CliError(
            f"process {process_id} belongs to another user", "stop it as that user"
        ) from None
    if wait_until_gone(process_id, timeout_ms):
        # A clean stop removes the discovery file from the data directory.
        if not (path / cluster_connection.DISCOVERY_FILE).exists():
            say("stopped")
            return 0
        cluster_connection.forget_discovery(path)
        what, _ = last_error(log_path, log_start)
        raise CliError(
            f"stopped, but not cleanly ({what})",
            f"nothing acknowledged is lost, the next start recovers the log; see {log_path}",
        )
    _end(process_id)
    cluster_connection.forget_discovery(path)
    raise CliError(
        f"process {process_id} did not stop within {timeout_ms:,} ms and was killed",
        "nothing acknowledged is lost; the next start recovers the log",
    )


def wait_until_gone(process_id: int, timeout_ms: int) -> bool:
    """Wait until the process has ended; return whether it did in time."""
    try:
        descriptor = os.pidfd_open(process_id)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_ms / 1_000)[0])
    finally:
        os.close(descriptor)


def _end(process_id: int) -> None:
    """Kill the head process; its Ray processes end with it."""
    try:
        os.kill(process_id, signal.SIGKILL)
    except ProcessLookupError:
        return
    wait_until_gone(process_id, 5_000)
