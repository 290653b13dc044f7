"""How commands take their arguments: one line for what is wrong, numbers within their limits."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final, NoReturn, TypeAlias

from oncelog.api.cli.output import UsageError

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise UsageError(message, f"see `{self.prog} --help`")


def whole_number(minimum: int, maximum: int = INT32_MAX) -> Callable[[str], int]:
    """An argument type: a number from ``minimum`` to ``maximum``, both inclusive."""

    def parse(text: str) -> int:
        number = int(text) if text.lstrip("-").isdecimal() else minimum - 1
        if not minimum <= number <= maximum:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {minimum} to {maximum}"
            )
        return number

    return parse


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def add_actions(commands: Commands, name: str, text: str) -> Commands:
    """Add a command of this name, described by ``text``, that has actions of its own."""
    parser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    return parser.add_subparsers(dest="action", metavar="ACTION", required=True)


def add_repeated(parser: argparse.ArgumentParser, name: str, metavar: str, text: str) -> None:
    """Add an option that may be given more than once."""
    text = f"{text}; may be given more than once"
    parser.add_argument(name, action="append", default=[], metavar=metavar, help=text)


def add_json(*parsers: argparse.ArgumentParser) -> None:
    """Add ``--json`` to each of ``parsers``."""
    for parser in parsers:
        parser.add_argument("--json", action="store_true", help="for programs")


def add_command(
    commands: Commands,
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """Add a command of this name, described by ``text``, that calls ``run``."""
    parser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    parser.set_defaults(run=run)
    return parser
