"""The process that ``oncelog start`` leaves behind: it holds a local Ray cluster and the log.

    python -m oncelog.api.cli.head --data-dir DIR [--num-cpus N] [--dashboard-port PORT]

It runs in the foreground until SIGTERM or SIGINT, then stops the log cleanly and Ray with it. A
service manager can run it too. The last line on standard error says what went wrong.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oncelog.api.cli.terminal import CliError, describe_error
from oncelog.storage.exceptions import OncelogError

if TYPE_CHECKING:
    from oncelog.api.client import Cluster

MODULE: Final = "oncelog.api.cli.head"
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
SHUTDOWN_ATTEMPTS: Final = 5
SHUTDOWN_RETRY_S: Final = 1.0

FLAGS: Final = {"true": True, "false": False}
"""How a flag is given; no setting has one of these as a word."""

_logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until a signal asks to stop; return the exit status."""
    parser = argparse.ArgumentParser(prog=MODULE, description=__doc__, allow_abbrev=False)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--num-cpus", type=int)
    parser.add_argument("--dashboard-port", type=int)
    parser.add_argument("--config", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        serve(args)
    except (CliError, OncelogError) as error:
        sys.stderr.write(describe_error(error) + "\n")
        return 1
    except Exception as error:
        # A daemon's stack trace belongs in its log; the line for people comes last.
        _logger.exception("%s ends — do what the last line says, then start it again", MODULE)
        sys.stderr.write(describe_error(error) + "\n")
        return 1
    return 0


def serve(args: argparse.Namespace) -> None:
    """Start the cluster, wait for a signal, stop the cluster."""
    from oncelog.api import client
    from oncelog.api.session import cluster_connection

    settings = parse_settings(args.config)
    cluster = client.init(
        args.data_dir, num_cpus=args.num_cpus, dashboard_port=args.dashboard_port, **settings
    )
    signals = catch_signals()
    own = cluster_connection.directory_paths(args.data_dir)[0]
    discovery = cluster_connection.read_discovery(own)
    if discovery is None or discovery.process_id != os.getpid():
        raise CliError(
            f"a cluster already runs on data_dir={cluster.data_dir!r}",
            "use it, or stop it first with `oncelog stop`",
        )
    _logger.info("serving %s at %s", cluster.data_dir, cluster.address)
    number = wait_for_signal(signals)
    _logger.info("%s: stopping", signal.Signals(number).name)
    shut_down(cluster)
    _logger.info("stopped cleanly")


def shut_down(cluster: Cluster) -> None:
    """Stop the log, even if its controller is restarting or the log is already stopped."""
    from oncelog.api.session import cluster_connection

    for attempts_left in reversed(range(SHUTDOWN_ATTEMPTS)):
        if not cluster_connection.has_log():
            _logger.info("the log was stopped before")
            cluster_connection.forget_discovery(Path(cluster.data_dir))
            return
        try:
            cluster.shutdown()
        except OncelogError as error:
            if not error.retriable or not attempts_left:
                raise
            _logger.info("not stopped yet, trying again: %s", error)
            threading.Event().wait(SHUTDOWN_RETRY_S)
        else:
            return


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` pairs as keywords; digits become an int, true and false a flag."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise CliError(
                f"--config {pair!r} is not a setting", "give NAME=VALUE, once for each setting"
            )
        is_number = value.lstrip("-").isdecimal()
        settings[name] = int(value) if is_number else FLAGS.get(value.lower(), value)
    return settings


def catch_signals() -> int:
    """Catch ``STOP_SIGNALS`` from now on, instead of Ray; return the descriptor they arrive at.

    The descriptor is written whichever thread the signal is delivered to, so no signal is lost
    between a check and a wait.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, _ignore)
    return reader


def wait_for_signal(reader: int) -> int:
    """Block until one of ``STOP_SIGNALS`` arrives at ``reader``, and return it."""
    while True:
        for number in os.read(reader, 16):
            if number in STOP_SIGNALS:
                return number


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing: the wake-up descriptor reports the signal, and its default action is off."""


if __name__ == "__main__":
    sys.exit(main())
