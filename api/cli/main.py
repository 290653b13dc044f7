"""The command line ``oncelog``: its commands, and how their errors are shown.

The module of a command is imported when the command is named, and Ray only when it is needed: help
and wrong arguments are answered at once.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from oncelog import __version__
from oncelog.actors.process.ray_environment import keep_output_clean
from oncelog.api.cli.arguments import (
    COMPLETION_VARIABLE,
    Arguments,
    Group,
    WholeNumber,
    exclusive,
    flag,
    option,
)
from oncelog.api.cli.terminal import (
    PROGRAM,
    STATUS_BROKEN_PIPE,
    STATUS_INTERRUPTED,
    CliError,
    EndedBySignal,
    UsageError,
    end_at_once,
    report,
    say,
)

DEMO_MODULE: Final = "oncelog.examples.flights.demo"
DEMO_BROKERS_MAX: Final = 5
SHELLS: Final = ("bash", "zsh", "fish")

COMMANDS: Final = {
    "start": (
        "cluster:start",
        "Start a Ray cluster with the log on it, or the log on the Ray cluster at --address.",
    ),
    "stop": ("cluster:stop", "Stop the cluster cleanly; its data stays."),
    "status": (
        "status:status",
        "Show the cluster, its partitions and its actors; exit status 1 if degraded, 3 if down.",
    ),
    "top": (
        "top:top",
        "Show brokers, busy partitions, open transactions, groups and problems; q ends it.",
    ),
    "topics": ("topics:topics", "List, create, describe, alter or delete topics."),
    "brokers": ("replicas:brokers", "Drain brokers, or use them again."),
    "partitions": ("replicas:partitions", "Choose the brokers of partitions."),
    "produce": ("records:produce", "Send lines as records."),
    "consume": ("records:consume", "Print the values of records."),
    "groups": ("groups:groups", "List, describe, change or delete consumer groups."),
    "jobs": ("groups:jobs", "List, describe, scale or stop jobs of cluster.process."),
    "transactions": (
        "transactions:transactions",
        "Show transactional ids, find hanging transactions, abort, complete and delete.",
    ),
    "users": ("identities:users", "Add, list or remove users, or change passwords."),
    "acls": ("identities:acls", "Say who may do what, and whether that counts."),
    "metrics": (
        "metrics:metrics",
        "List the metrics, or write a dashboard and alert rules for them.",
    ),
    "console": ("console:console", "Show the cluster on pages for a browser, until Ctrl-C."),
    "logs": (
        "logs:logs",
        "Show what an actor's process has written, on whichever node it is.",
    ),
    "rotate-key": (
        "cluster:rotate_key",
        "Make a new key for transaction tickets; open transactions continue.",
    ),
    "dump": (
        "data_directory:dump",
        "Show what is in the files of a log; read-only, also while the log is in use.",
    ),
    "accept-cut": (
        "data_directory:accept_cut",
        "Let recovery truncate a damaged log at an offset, giving up all records from there on.",
    ),
    "broker-id": (
        "data_directory:broker_id",
        "Print this host's broker id, which is chosen once and kept in its data directory.",
    ),
}
"""Where each command is, as ``module:name`` in this package, and what its help says."""


class _Program(Group):
    """All commands; each is imported when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        place, text = COMMANDS[cmd_name]
        module, _, name = place.partition(":")
        command: click.Command = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        command.help = text
        return command

    def texts(self) -> dict[str, str]:
        return {name: text for name, (_, text) in COMMANDS.items()} | super().texts()


program: Final = _Program(
    PROGRAM,
    help="An exactly-once, transactional event log for Ray.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(__version__, message="%(prog)s %(version)s")(program)


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
    """Run one command, without what click does when it is the whole program."""
    words = sys.argv[1:] if argv is None else list(argv)
    if COMPLETION_VARIABLE in os.environ:
        program.main(words, prog_name=PROGRAM, complete_var=COMPLETION_VARIABLE)
    try:
        with program.make_context(PROGRAM, words) as ctx:
            status: int = program.invoke(ctx)
    except click.exceptions.Exit as finished:
        return finished.exit_code  # After --help and --version.
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else PROGRAM
        message = error.format_message().rstrip(".")
        raise UsageError(message[0].lower() + message[1:], f"see `{command} --help`") from None
    return status


@program.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(args: Arguments) -> int:
    """Print the script that completes commands in bash, zsh or fish.

    Names of topics and groups are those of the running cluster, if it answers within a second.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(args.shell)
    assert kind is not None
    say(kind(program, {}, PROGRAM, COMPLETION_VARIABLE).source())
    return 0


# --- the demo ---------------------------------------------------------------------------------


@program.command()
@option("--seed", type=WholeNumber(0), help="inject the same faults again")
@flag(
    "--streaming",
    "send the flights day by day, and aggregate windows of them with a Spark stream",
)
@option(
    "--brokers",
    type=WholeNumber(1, DEMO_BROKERS_MAX),
    default=1,
    help="use N Ray nodes on this machine, and kill one of them too; needs root",
)
@flag("--keep", "keep the cluster running afterwards")
@option("--json", metavar="FILE", help="write the results to this file")
@option("--data-dir", metavar="DIR", help="keep the data here (default: temporary)")
def demo(args: Arguments) -> int:
    """Send a year of real flights through the log exactly once, while processes are killed."""
    exclusive("--streaming", "--brokers")
    # By name, because examples are a layer above this package.
    try:
        module: Any = importlib.import_module(DEMO_MODULE)
    except ModuleNotFoundError as error:
        raise CliError(
            f"the demo needs the package {error.name!r}",
            "run it with `./run demo`, or install oncelog[spark,demo]",
        ) from error
    status: int = module.main(args)
    return status


if __name__ == "__main__":
    sys.exit(main())
