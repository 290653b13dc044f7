"""What the commands are declared with: groups, arguments, options and their types, on click.

To add a command, decorate a function that takes ``Arguments`` and returns an exit status::

    @topics.command("delete")
    @topic_argument
    @cluster_options
    def delete_topic(args: Arguments) -> int:
        \"\"\"Delete a topic and its data.\"\"\"

The docstring is its help. A command of its own, or a new group, is a row of the table in ``main``.
"""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

FunctionT = TypeVar("FunctionT", bound="Callable[..., Any] | click.Command")

INT32_MAX: Final = 2**31 - 1
"""Of ``storage.model``; help is to be quicker than its import."""

MODULE: Final = "oncelog.api.cli.main"
COMPLETION_VARIABLE: Final = "_ONCELOG_COMPLETE"
"""Set while a shell asks for completions, and so not in what lists names."""

COMPLETION_TIMEOUT_S: Final = 1.0
"""The shell waits for this long at most until a name is completed."""

COMPLETIONS_MAX: Final = 1_000
"""More names than these are not offered."""

_PLAIN_NAME: Final = re.compile(r"[\w.:@%+,/][\w.:@%+,/-]*", re.ASCII)
"""What every shell takes as it is; no option either. Other programs choose the names of groups."""


class Arguments(types.SimpleNamespace):
    """The arguments of one command, by name."""


class Command(click.Command):
    """A command whose function takes ``Arguments`` and returns its exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        assert self.callback is not None
        return self.callback(Arguments(**ctx.params))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Describe the arguments before the options."""
        texts = [
            (one.make_metavar(ctx), one.text)
            for one in self.get_params(ctx)
            if isinstance(one, Argument) and one.text
        ]
        if texts:
            with formatter.section("Arguments"):
                formatter.write_dl(texts)
        super().format_options(ctx, formatter)


class Group(click.Group):
    """Commands under one name."""

    command_class = Command

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        # One line says that the command is missing; click would print the whole help.
        self.no_args_is_help = False

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that ``args`` begin with; an unknown one is an error with the nearest."""
        name = args[0]
        # Completion asks too, for a line that is not finished: it gets no error.
        is_final = not ctx.resilient_parsing
        if is_final and not name.startswith("-") and self.get_command(ctx, name) is None:
            import difflib

            close = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"there is no command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their texts, which click would cut to a line."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.texts().items()))

    def texts(self) -> dict[str, str]:
        """What each command does, in one paragraph."""
        return {
            name: (command.help or "").split("\n\n")[0] for name, command in self.commands.items()
        }

    def list_commands(self, _: click.Context) -> list[str]:
        """The names of the commands, in the order in which they are declared."""
        return list(self.commands)


class Argument(click.Argument):
    """A positional argument that help describes."""

    def __init__(self, names: Sequence[str], text: str = "", **settings: Any) -> None:
        super().__init__(names, **settings)
        self.text = text


def argument(name: str, text: str = "", **settings: Any) -> Callable[[FunctionT], FunctionT]:
    """Declare a positional argument."""
    return click.argument(name, cls=Argument, text=text, **settings)


option: Final = click.option


def flag(name: str, text: str) -> Callable[[FunctionT], FunctionT]:
    """Declare an option without a value."""
    return click.option(name, is_flag=True, help=text)


def repeated(
    name: str, metavar: str, text: str, **settings: Any
) -> Callable[[FunctionT], FunctionT]:
    """Declare an option that may be given more than once."""
    text = f"{text}; may be given more than once"
    return click.option(name, multiple=True, metavar=metavar, help=text, **settings)


def all_of(*declared: Any) -> Callable[[FunctionT], FunctionT]:
    """Declare several arguments or options, in this order, for commands that share them."""

    def declare(function: FunctionT) -> FunctionT:
        for one in reversed(declared):
            function = one(function)
        return function

    return declare


def exclusive(*options: str, required: bool = False) -> None:
    """Reject the arguments if several of ``options`` are given, or none although required."""
    ctx = click.get_current_context()
    given = [
        option
        for option in options
        if ctx.get_parameter_source(option.lstrip("-").replace("-", "_"))
        is ParameterSource.COMMANDLINE
    ]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]} exclude each other", ctx)
    if required and not given:
        raise click.UsageError(f"one of {', '.join(options)} is required", ctx)


# --- types ------------------------------------------------------------------------------------

DIGITS_MAX: Final = 19
"""A 64-bit number has at most as many."""


def as_int(text: str) -> int | None:
    """The int that ``text`` is; ``None`` if it is none, or far from one of 64 bits."""
    digits = text.removeprefix("-")
    return int(text) if digits.isdecimal() and len(digits) <= DIGITS_MAX else None


class WholeNumber(click.ParamType):  # type: ignore[type-arg]  # Generic since click 8.4.
    """An int from ``minimum`` to ``maximum``, both inclusive."""

    name = "n"

    def __init__(self, minimum: int, maximum: int = INT32_MAX) -> None:
        self.minimum = minimum
        self.maximum = maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number that ``value`` is."""
        text = str(value)
        number = as_int(text)
        if number is None or not self.minimum <= number <= self.maximum:
            self.fail(
                f"{text!r} is not a whole number from {self.minimum} to {self.maximum}", param, ctx
            )
        return number


EPOCH_MS_MIN: Final = 10**11
"""A smaller number is no time in ms, of 1973 at the earliest, but a date or a time in seconds."""


def time_ms(text: str) -> int:
    """A type: an ISO 8601 date or time, or ms since the epoch, as the latter.

    Numbers count as ms only if they are 0 or large enough to be meant so.
    """
    import datetime

    if (number := as_int(text)) is not None and (number == 0 or number >= EPOCH_MS_MIN):
        return number
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time like 2026-01-31T12:00 or 2026-01-31T12:00+01:00; "
            "ms since 1970 have 13 digits"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    return max(int(moment.timestamp() * 1_000), 0)


# --- shared by many commands ------------------------------------------------------------------

OUTPUTS: Final = ("table", "json", "yaml")

output_options: Final = all_of(
    option(
        "-o",
        "--output",
        type=click.Choice(OUTPUTS),
        default="table",
        help="how to print it (default: table)",
    ),
    flag("--json", "the same as --output json"),
)


def names_of(*command: str, key: str) -> Callable[..., list[CompletionItem]]:
    """What completes a name: those that a running cluster has, if it answers in time.

    ``command`` is the one that lists them, in a process of its own: it is killed if it takes long.
    """

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        import json
        import subprocess

        place = {
            option.opts[0]: ctx.params.get(option.name or "")
            for option in ctx.command.params
            if option.name in {"address", "data_dir", "user", "password_file", "token", "cert"}
        }
        given = [word for name, value in place.items() if value for word in (name, value)]
        try:
            done = subprocess.run(  # noqa: S603
                [sys.executable, "-m", MODULE, *command, "--output", "json", *given],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=COMPLETION_TIMEOUT_S,
                env={name: os.environ[name] for name in os.environ if name != COMPLETION_VARIABLE},
                check=False,
            )
            found = json.loads(done.stdout or b"[]")
        except (subprocess.TimeoutExpired, OSError, ValueError):
            return []  # A shell in the middle of a line cannot show what is wrong.
        names = sorted(
            name
            for one in found
            if (name := one[key]).startswith(incomplete) and _PLAIN_NAME.fullmatch(name)
        )
        return [CompletionItem(name) for name in names[:COMPLETIONS_MAX]]

    return complete


topic_names: Final = names_of("topics", "list", key="name")
group_names: Final = names_of("groups", "list", key="group")
topic_argument: Final = argument("topic", shell_complete=topic_names)
group_argument: Final = argument("group", shell_complete=group_names)
