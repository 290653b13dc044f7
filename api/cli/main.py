"""The command line ``oncelog``: its commands, and what becomes of their errors.

Ray is imported by the commands that need it and not before, so that help and wrong arguments are
answered at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

from oncelog import __version__
from oncelog.actors.config import ClusterConfig, TopicConfig
from oncelog.actors.process.ray_environment import keep_output_clean
from oncelog.api.cli import cluster as cli_cluster
from oncelog.api.cli import data_directory as cli_data_directory
from oncelog.api.cli import groups as cli_groups
from oncelog.api.cli import metrics as cli_metrics
from oncelog.api.cli import records as cli_records
from oncelog.api.cli import status as cli_status
from oncelog.api.cli import topics as cli_topics
from oncelog.api.cli import transactions as cli_transactions
from oncelog.api.cli.connect import add_cluster_arguments
from oncelog.api.cli.terminal import (
    INT64_MAX,
    PROGRAM,
    STATUS_BROKEN_PIPE,
    STATUS_INTERRUPTED,
    CliError,
    Commands,
    EndedBySignal,
    Parser,
    add_actions,
    add_command,
    add_json,
    add_repeated,
    end_at_once,
    report,
    whole_number,
)
from oncelog.storage.model import TOPIC_PARTITIONS_MAX, IsolationLevel
from oncelog.storage.settings import settings_of

DEMO_MODULE: Final = "oncelog.examples.flights.demo"
DEMO_BROKERS_MAX: Final = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status: 0, 1 for errors, 2 for wrong arguments.

    Ended by a signal, also by SIGPIPE, it is 128 and the signal's number, as of other programs.
    """
    keep_output_clean()
    try:
        status = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output is gone: nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return STATUS_BROKEN_PIPE
    except EndedBySignal as ended:
        verb = "interrupted" if ended.number == signal.SIGINT else "terminated"
        sys.stderr.write(f"{PROGRAM}: {verb}\n")
        return ended.status
    except KeyboardInterrupt:
        sys.stderr.write(f"{PROGRAM}: interrupted\n")
        return STATUS_INTERRUPTED
    except Exception as error:
        return report(error)
    finally:
        end_at_once()
    return status


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as finished:
        # Only help and the version exit this way; wrong arguments raise.
        return int(finished.code or 0)
    status: int = args.run(args)
    return status


# --- arguments --------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    """The whole tree of commands."""
    parser = Parser(
        prog=PROGRAM,
        description="An exactly-once, transactional event log for Ray.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_cluster_commands(commands)
    _add_topic_commands(commands)
    cli_topics.add_replica_commands(commands)
    _add_record_commands(commands)
    cli_groups.add_commands(commands)
    cli_groups.add_job_commands(commands)
    cli_transactions.add_commands(commands)
    cli_metrics.add_commands(commands)
    _add_rotate_key(commands)
    _add_dump(commands)
    _add_accept_cut(commands)
    _add_broker_id(commands)
    _add_demo(commands)
    return parser


def _add_cluster_commands(commands: Commands) -> None:
    start = add_command(
        commands,
        "start",
        "Start the log and a Ray cluster of its own, or the log on the Ray cluster at --address.",
        cli_cluster.start,
    )
    add_cluster_arguments(start)
    start.add_argument(
        "--num-cpus", type=whole_number(1), metavar="N", help="CPUs that Ray may use (default: all)"
    )
    start.add_argument(
        "--dashboard-port",
        type=whole_number(1, 65_535),
        metavar="PORT",
        help="port of the Ray dashboard (default: 8265, or the next free one)",
    )
    start.add_argument(
        "--cluster-id",
        metavar="ID",
        help="with --address: start this cluster, once nodes with its data are there; found none",
    )
    add_repeated(
        start, "--config", "NAME=VALUE", _settings("a setting of the cluster", ClusterConfig)
    )
    stop = add_command(
        commands, "stop", "Stop the cluster cleanly; its data stays.", cli_cluster.stop
    )
    add_cluster_arguments(stop)
    stop.add_argument(
        "--timeout-ms",
        type=whole_number(0),
        default=30_000,
        metavar="T",
        help="when to kill it if it has not stopped (default: 30000)",
    )
    status = add_command(
        commands,
        "status",
        "Show the cluster, its partitions and actors; exit status 1 if degraded, 3 if not serving.",
        cli_status.status,
    )
    add_cluster_arguments(status)
    add_json(status)


def _settings(text: str, kind: type[Any]) -> str:
    """``text`` and the names of the settings that are meant; ``docs/SETTINGS.md`` has the rest."""
    return f"{text} ({', '.join(settings_of(kind))})"


def _add_rotate_key(commands: Commands) -> None:
    rotate = add_command(
        commands,
        "rotate-key",
        "Make a new secret for the tickets of transactions; those that are open go on.",
        cli_cluster.rotate_key,
    )
    add_cluster_arguments(rotate)


def _add_topic_commands(commands: Commands) -> None:
    actions = add_actions(commands, "topics", "List, create, describe, alter or delete topics.")
    listing = add_command(actions, "list", "List the topics.", cli_topics.list_topics)
    listing.add_argument("--internal", action="store_true", help="internal topics as well")
    create = add_command(actions, "create", "Create a topic.", cli_topics.create_topic)
    create.add_argument(
        "--partitions",
        type=whole_number(1, TOPIC_PARTITIONS_MAX),
        default=1,
        metavar="N",
        help="how many partitions (default: 1)",
    )
    create.add_argument(
        "--replication-factor",
        type=whole_number(1),
        metavar="N",
        help="on how many brokers each is (default: 3, or all if there are fewer)",
    )
    create.add_argument(
        "--if-not-exists", action="store_true", help="leave one that exists as it is"
    )
    add_repeated(create, "--config", "NAME=VALUE", _settings("a setting of the topic", TopicConfig))
    describe = add_command(
        actions,
        "describe",
        "Show a topic, its settings and its leaders.",
        cli_topics.describe_topic,
    )
    alter = add_command(actions, "alter", "Change settings of a topic.", cli_topics.alter_topic)
    add_repeated(
        alter, "--config", "NAME=VALUE", _settings("a new value of a setting", TopicConfig)
    )
    add_repeated(alter, "--reset", "NAME", "a setting to be the default again")
    alter.add_argument(
        "--partitions",
        type=whole_number(1, TOPIC_PARTITIONS_MAX),
        metavar="N",
        help="how many partitions it is to have, more than now",
    )
    delete = add_command(actions, "delete", "Delete a topic and its data.", cli_topics.delete_topic)
    delete_records = _add_delete_records(actions)
    for action in (create, describe, alter, delete, delete_records):
        action.add_argument("topic", metavar="TOPIC")
    add_json(listing, describe)
    for action in (listing, create, describe, alter, delete, delete_records):
        add_cluster_arguments(action)


def _add_delete_records(actions: Commands) -> argparse.ArgumentParser:
    delete = add_command(
        actions,
        "delete-records",
        "Delete the oldest records of a topic, for good.",
        cli_topics.delete_records,
    )
    delete.add_argument(
        "--partition",
        type=whole_number(0),
        metavar="N",
        help="of this partition only (default: of each)",
    )
    before = delete.add_mutually_exclusive_group(required=True)
    before.add_argument(
        "--before-offset",
        type=whole_number(0, INT64_MAX),
        metavar="O",
        help="those below this offset",
    )
    before.add_argument("--all", action="store_true", help="all that there are now")
    return delete


def _add_record_commands(commands: Commands) -> None:
    produce = add_command(commands, "produce", "Send lines as records.", cli_records.produce)
    produce.add_argument("topic", metavar="TOPIC")
    produce.add_argument(
        "--transactional-id", metavar="ID", help="send all lines in one transaction of this id"
    )
    produce.add_argument(
        "--key-separator", metavar="S", help="what stands before it in a line is the key"
    )
    produce.add_argument("--file", metavar="F", help="read this file, not standard input")
    add_cluster_arguments(produce)
    consume = add_command(commands, "consume", "Print the values of records.", cli_records.consume)
    consume.add_argument("topic", metavar="TOPIC")
    consume.add_argument(
        "--group", metavar="G", help="share the partitions with this group, and commit offsets"
    )
    consume.add_argument(
        "--isolation-level",
        choices=[level.value for level in IsolationLevel],
        default=IsolationLevel.READ_COMMITTED.value,
        metavar="L",
        help="read_committed (default) or read_uncommitted",
    )
    consume.add_argument(
        "--from-beginning",
        action="store_true",
        help="begin at the first record, or where the group has committed",
    )
    consume.add_argument("--json", action="store_true", help="a JSON object per record")
    consume.add_argument(
        "--max-records", type=whole_number(1), metavar="N", help="stop after N records"
    )
    consume.add_argument(
        "--timeout-ms", type=whole_number(0), metavar="T", help="stop after T ms without a record"
    )
    consume.add_argument(
        "--skip-damaged", action="store_true", help="pass over what cannot be read, with a warning"
    )
    add_cluster_arguments(consume)


def _add_dump(commands: Commands) -> None:
    dump = add_command(
        commands,
        "dump",
        "Show what the files of a log say, also while it runs; nothing is changed.",
        cli_data_directory.dump,
    )
    dump.add_argument("path", metavar="PATH", help="a data directory, a partition's, or a file")
    dump.add_argument("--deep", action="store_true", help="the records as well")
    dump.add_argument(
        "--verify",
        action="store_true",
        help="check instead: CRCs, indexes, snapshots; exit status 1 if something is wrong",
    )
    dump.add_argument("--json", action="store_true", help="a JSON object per line")


def _add_accept_cut(commands: Commands) -> None:
    accept = add_command(
        commands,
        "accept-cut",
        "Give up the records of a replica that is offline for damage, from an offset on.",
        cli_data_directory.accept_cut,
    )
    accept.add_argument("directory", metavar="DIRECTORY", help="of the partition, as refused")
    accept.add_argument(
        "offset", type=whole_number(0), metavar="OFFSET", help="where it is cut, as refused"
    )


def _add_broker_id(commands: Commands) -> None:
    number = add_command(
        commands,
        "broker-id",
        "Print the number of this host's broker, which is chosen once and kept with its data.",
        cli_data_directory.broker_id,
    )
    number.add_argument("directory", metavar="DIR", help="the data directory of this host")
    number.add_argument(
        "--head",
        metavar="HOST",
        help="the head of the cluster, which gets 1; needed to choose a number",
    )


# --- the demo ---------------------------------------------------------------------------------


def _add_demo(commands: Commands) -> None:
    demo = add_command(
        commands,
        "demo",
        "A year of real flights goes through the log exactly once, while things are killed.",
        _run_demo,
    )
    demo.add_argument(
        "--seed", type=whole_number(0), metavar="N", help="repeat the choice of faults"
    )
    what = demo.add_mutually_exclusive_group()
    what.add_argument(
        "--streaming",
        action="store_true",
        help="the flights arrive one day after the other, and a Spark stream keeps windows of them",
    )
    what.add_argument(
        "--brokers",
        type=whole_number(1, DEMO_BROKERS_MAX),
        default=1,
        metavar="N",
        help="on so many Ray nodes of this machine, one of which is killed too; needs root",
    )
    demo.add_argument("--keep", action="store_true", help="leave the cluster running to look at")
    demo.add_argument("--json", metavar="FILE", help="write the figures to this file")
    demo.add_argument("--data-dir", metavar="DIR", help="keep the data here (default: temporary)")


def _run_demo(args: argparse.Namespace) -> int:
    """Run the demo. Imported by name, because examples are above this package."""
    try:
        demo = importlib.import_module(DEMO_MODULE)
    except ModuleNotFoundError as error:
        raise CliError(
            f"the demo needs the package {error.name!r}",
            "run it with `./run demo`, or install oncelog[spark,demo]",
        ) from error
    status: int = demo.main(args)
    return status


if __name__ == "__main__":
    sys.exit(main())
