"""The command line ``oncelog``: its commands, and how their errors are shown.

Ray is imported only by the commands that need it, so that help and wrong arguments are answered
at once.
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
from oncelog.api.cli import console as cli_console
from oncelog.api.cli import data_directory as cli_data_directory
from oncelog.api.cli import groups as cli_groups
from oncelog.api.cli import identities as cli_identities
from oncelog.api.cli import metrics as cli_metrics
from oncelog.api.cli import records as cli_records
from oncelog.api.cli import status as cli_status
from oncelog.api.cli import topics as cli_topics
from oncelog.api.cli import transactions as cli_transactions
from oncelog.api.cli.connect import add_cluster_arguments
from oncelog.api.cli.terminal import (
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
from oncelog.storage.model import INT64_MAX, TOPIC_PARTITIONS_MAX, IsolationLevel
from oncelog.storage.settings import settings_of

DEMO_MODULE: Final = "oncelog.examples.flights.demo"
DEMO_BROKERS_MAX: Final = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 for errors, 2 for wrong arguments.

    When a signal ends it, SIGPIPE included, the status is 128 plus the signal's number, as usual.
    """
    keep_output_clean()
    try:
        status = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of standard output is gone: write nothing more, not even at exit.
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
        # Only --help and --version exit this way; wrong arguments raise.
        return int(finished.code or 0)
    status: int = args.run(args)
    return status


# --- arguments --------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    """The parser with all commands."""
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
    cli_identities.add_commands(commands)
    cli_metrics.add_commands(commands)
    cli_console.add_commands(commands)
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
        "Start a Ray cluster with the log on it, or the log on the Ray cluster at --address.",
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
        help="with --address: start this cluster once nodes with its data are up; never a new one",
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
        help="kill it if it has not stopped after T ms (default: 30000)",
    )
    status = add_command(
        commands,
        "status",
        "Show the cluster, its partitions and its actors; exit status 1 if degraded, 3 if down.",
        cli_status.status,
    )
    add_cluster_arguments(status)
    add_json(status)


def _settings(text: str, kind: type[Any]) -> str:
    """``text`` and the names of the settings; ``docs/SETTINGS.md`` describes them."""
    return f"{text} ({', '.join(settings_of(kind))})"


def _add_rotate_key(commands: Commands) -> None:
    rotate = add_command(
        commands,
        "rotate-key",
        "Make a new key for transaction tickets; open transactions continue.",
        cli_cluster.rotate_key,
    )
    add_cluster_arguments(rotate)


def _add_topic_commands(commands: Commands) -> None:
    actions = add_actions(commands, "topics", "List, create, describe, alter or delete topics.")
    listing = add_command(actions, "list", "List the topics.", cli_topics.list_topics)
    listing.add_argument("--internal", action="store_true", help="internal topics too")
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
        help="replicas of each partition (default: 3, or one per broker if there are fewer)",
    )
    create.add_argument(
        "--if-not-exists", action="store_true", help="leave an existing topic unchanged"
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
    add_repeated(alter, "--reset", "NAME", "reset a setting to its default")
    add_repeated(alter, "--append", "NAME=VALUE", "add a member to a setting that is a list")
    add_repeated(alter, "--subtract", "NAME=VALUE", "remove a member from such a setting")
    alter.add_argument(
        "--partitions",
        type=whole_number(1, TOPIC_PARTITIONS_MAX),
        metavar="N",
        help="the new number of partitions, more than now",
    )
    delete = add_command(actions, "delete", "Delete a topic and its data.", cli_topics.delete_topic)
    delete_records = _add_delete_records(actions)
    for action in (create, alter):
        action.add_argument(
            "--validate-only", action="store_true", help="change nothing; say what is wrong"
        )
    for action in (create, describe, alter, delete, delete_records):
        action.add_argument("topic", metavar="TOPIC")
    add_json(listing, describe)
    for action in (listing, create, describe, alter, delete, delete_records):
        add_cluster_arguments(action)


def _add_delete_records(actions: Commands) -> argparse.ArgumentParser:
    delete = add_command(
        actions,
        "delete-records",
        "Delete the oldest records of a topic, permanently.",
        cli_topics.delete_records,
    )
    delete.add_argument(
        "--partition",
        type=whole_number(0),
        metavar="N",
        help="only from this partition (default: from each)",
    )
    before = delete.add_mutually_exclusive_group(required=True)
    before.add_argument(
        "--before-offset",
        type=whole_number(0, INT64_MAX),
        metavar="O",
        help="records below this offset",
    )
    before.add_argument("--all", action="store_true", help="all current records")
    return delete


def _add_record_commands(commands: Commands) -> None:
    produce = add_command(commands, "produce", "Send lines as records.", cli_records.produce)
    produce.add_argument("topic", metavar="TOPIC")
    produce.add_argument(
        "--transactional-id", metavar="ID", help="send all lines in one transaction of this id"
    )
    produce.add_argument(
        "--key-separator", metavar="S", help="the part of each line before S is the key"
    )
    produce.add_argument("--file", metavar="F", help="read this file, not standard input")
    add_cluster_arguments(produce)
    consume = add_command(commands, "consume", "Print the values of records.", cli_records.consume)
    consume.add_argument("topic", metavar="TOPIC")
    consume.add_argument(
        "--group", metavar="G", help="read as a member of this group, and commit offsets"
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
        help="start at the first record, or at the group's committed offset",
    )
    consume.add_argument("--json", action="store_true", help="one JSON object per record")
    consume.add_argument(
        "--max-records", type=whole_number(1), metavar="N", help="stop after N records"
    )
    consume.add_argument(
        "--timeout-ms", type=whole_number(0), metavar="T", help="stop after T ms without a record"
    )
    consume.add_argument(
        "--skip-damaged", action="store_true", help="skip unreadable records, with a warning"
    )
    add_cluster_arguments(consume)


def _add_dump(commands: Commands) -> None:
    dump = add_command(
        commands,
        "dump",
        "Show what is in the files of a log; read-only, also while the log is in use.",
        cli_data_directory.dump,
    )
    dump.add_argument("path", metavar="PATH", help="a data directory, a partition's, or a file")
    dump.add_argument("--deep", action="store_true", help="the records too")
    dump.add_argument(
        "--verify",
        action="store_true",
        help="check instead: CRCs, indexes, snapshots; exit status 1 if anything is wrong",
    )
    dump.add_argument("--json", action="store_true", help="one JSON object per line")


def _add_accept_cut(commands: Commands) -> None:
    accept = add_command(
        commands,
        "accept-cut",
        "Let recovery truncate a damaged log at an offset, giving up all records from there on.",
        cli_data_directory.accept_cut,
    )
    accept.add_argument("directory", metavar="DIRECTORY", help="the partition's, as in the error")
    accept.add_argument(
        "offset", type=whole_number(0), metavar="OFFSET", help="where to truncate, as in the error"
    )


def _add_broker_id(commands: Commands) -> None:
    number = add_command(
        commands,
        "broker-id",
        "Print this host's broker id, which is chosen once and kept in its data directory.",
        cli_data_directory.broker_id,
    )
    number.add_argument("directory", metavar="DIR", help="the data directory of this host")
    number.add_argument(
        "--head",
        metavar="HOST",
        help="the head of the cluster, whose broker id is 1; needed to choose an id",
    )


# --- the demo ---------------------------------------------------------------------------------


def _add_demo(commands: Commands) -> None:
    demo = add_command(
        commands,
        "demo",
        "Send a year of real flights through the log exactly once, while processes are killed.",
        _run_demo,
    )
    demo.add_argument(
        "--seed", type=whole_number(0), metavar="N", help="inject the same faults again"
    )
    what = demo.add_mutually_exclusive_group()
    what.add_argument(
        "--streaming",
        action="store_true",
        help="send the flights day by day, and aggregate windows of them with a Spark stream",
    )
    what.add_argument(
        "--brokers",
        type=whole_number(1, DEMO_BROKERS_MAX),
        default=1,
        metavar="N",
        help="use N Ray nodes on this machine, and kill one of them too; needs root",
    )
    demo.add_argument("--keep", action="store_true", help="keep the cluster running afterwards")
    demo.add_argument("--json", metavar="FILE", help="write the results to this file")
    demo.add_argument("--data-dir", metavar="DIR", help="keep the data here (default: temporary)")


def _run_demo(args: argparse.Namespace) -> int:
    """Run the demo. Imported by name, because examples are a layer above this package."""
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
