"""How a command finds its cluster, and as whom it connects.

By ``--address``, a data directory, or ``RAY_ADDRESS``; with ``--user``, ``--token-file`` or
``--cert``, or as any program.

What connects is imported when a command connects: help is to be quicker.
"""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oncelog.api.cli.arguments import Arguments, all_of, option
from oncelog.api.cli.terminal import CliError, blocked_termination, end_in_order, is_debugging

if TYPE_CHECKING:
    from oncelog.api.client import Cluster
    from oncelog.api.session.cluster_connection import Discovery

ADDRESS_VARIABLE: Final = "RAY_ADDRESS"
PROBE_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A running cluster: its Ray address and, if a data directory named it, its starter process."""

    address: str
    discovery: Discovery | None = None


cluster_options: Final = all_of(
    option("--address", metavar="HOST:PORT", help="Ray address of the cluster, or 'auto'"),
    option(
        "--data-dir",
        metavar="DIR",
        help="data directory of the cluster (default: oncelog-data); "
        "to start with several, DIR,DIR",
    ),
    option(
        "--user",
        metavar="NAME",
        help="connect as this user of the cluster (default: ONCELOG_USER, or as nobody)",
    ),
    option(
        "--password-file",
        metavar="FILE",
        help="its first line is that user's password (default: ONCELOG_PASSWORD_FILE)",
    ),
    option(
        "--token-file",
        "token",
        metavar="FILE",
        help="or: its first line is the signed token of a user (default: ONCELOG_TOKEN_FILE)",
    ),
    option(
        "--cert",
        metavar="FILE",
        help="or: it has the certificate of a user and its key, in PEM (default: ONCELOG_CERT)",
    ),
)
"""Options that select the cluster, and say who asks."""


def login_arguments(args: Arguments) -> dict[str, Any]:
    """Who connects, as keywords of ``connect`` and ``init``, which also know the environment."""
    names = ("user", "password_file", "token", "cert")
    named = {name: getattr(args, name, None) for name in names}
    return {name: value for name, value in named.items() if value is not None}


def login_variables(args: Arguments) -> dict[str, str]:
    """Who connects, as variables for a process in another directory; empty for nobody."""
    from oncelog.api.session.login import NOBODY, login_of

    login = login_of(**login_arguments(args))
    return {} if login == NOBODY else login.variables()


def data_dir_of(args: Arguments) -> Path:
    """The data directory that the arguments name first, made absolute; it need not exist."""
    from oncelog.actors.config import DATA_DIR_SEPARATOR
    from oncelog.api.session.cluster_connection import DEFAULT_DATA_DIR

    first = (args.data_dir or DEFAULT_DATA_DIR).split(DATA_DIR_SEPARATOR)[0]
    return Path(first).expanduser().absolute()


def data_dirs_of(args: Arguments) -> str:
    """All that they name, as one setting."""
    from oncelog.api.session import cluster_connection

    named = args.data_dir or cluster_connection.DEFAULT_DATA_DIR
    return cluster_connection.data_dir_text(cluster_connection.directory_paths(named))


def running_on(data_dir: Path) -> Discovery | None:
    """Where the cluster of ``data_dir`` runs, ``None`` if none does.

    A starter that was killed leaves its file behind, and its process id may have been reused. So it
    counts only whether the address answers.
    """
    from oncelog.api.session.cluster_connection import read_discovery

    if data_dir.exists() and not os.access(data_dir, os.R_OK | os.X_OK):
        raise CliError(
            f"the data directory {str(data_dir)!r} cannot be read by this user",
            "change its permissions, or give another one with --data-dir",
        )
    discovery = read_discovery(data_dir)
    if discovery is None or not answers(discovery.address):
        return None
    return discovery


def answers(address: str) -> bool:
    """Whether anything listens at ``address`` (host:port)."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False


def find(args: Arguments) -> Found:
    """The cluster that the arguments select.

    In this order: ``--address``, the cluster running on the data directory, ``RAY_ADDRESS``. The
    variable never overrides a data directory that was given explicitly.
    """
    if args.address:
        return Found(address=_checked(args.address, "--address"))
    path = data_dir_of(args)
    discovery = running_on(path)
    if discovery is not None:
        return Found(address=discovery.address, discovery=discovery)
    address = os.environ.get(ADDRESS_VARIABLE, "")
    if address and args.data_dir is None:
        return Found(address=_checked(address, ADDRESS_VARIABLE))
    raise CliError(
        f"no cluster runs on the data directory {str(path)!r}",
        "start one with `oncelog start`, or name a running one with --data-dir or --address",
    )


def _checked(address: str, source: str) -> str:
    """``address`` if something listens there; Ray itself would take long to find out."""
    if address == "auto" or answers(address):
        return address
    raise CliError(
        f"no Ray cluster answers at {source} {address!r}",
        "start one with `oncelog start`, or give the host:port of one that runs",
    )


def connect(args: Arguments) -> Cluster:
    """Connect to the cluster that the arguments select: directly, or else through Ray."""
    from oncelog.api import client
    from oncelog.api.session.login import login_of

    quiet_libraries()
    end_in_order()
    cluster = client.connect_directly(
        data_dir_of(args),
        login_of(**login_arguments(args)),
        ray_address=args.address,
        join=join_ray,
    )
    if cluster is not None:
        return cluster
    found = find(args)
    join_ray(found.address)
    return client.connect(found.address, **login_arguments(args))


def join_ray(address: str) -> None:
    """Join the Ray cluster at ``address``; signals end the command in order before and after."""
    from oncelog.api.session import cluster_connection

    with blocked_termination():
        cluster_connection.join_ray(address, shows_output=False)
        # Only now: joining Ray installs its own handlers.
        end_in_order()


_NOWHERE: Final = logging.NullHandler()


def quiet_libraries() -> None:
    """Keep library logs off the terminal unless debugging: an error is one line here."""
    if is_debugging():
        logging.basicConfig(level=logging.DEBUG)
        return
    logging.getLogger("oncelog").addHandler(_NOWHERE)
