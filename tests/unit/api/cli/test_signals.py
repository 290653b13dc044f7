"""A signal to a command ends it in order, what is held first; a second one waits for nothing."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from oncelog.api.cli import terminal as cli_terminal
from oncelog.api.cli.terminal import EndedBySignal

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
PREAMBLE = (
    "import signal, sys\n"
    "from oncelog.api.cli import main as cli, terminal as cli_terminal, status as cli_status\n"
    "cli_terminal.end_in_order()\n"
    "def strike(): signal.raise_signal(int(sys.argv[1]))\n"
)


def program(code, number):
    """(exit status, output, errors) of a program that may ``strike``."""
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code, str(int(number))],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(autouse=True)
def _own_handlers():
    known = {number: signal.getsignal(number) for number in cli_terminal.STOP_SIGNALS}
    yield
    for number, handler in known.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_the_first_signal_is_raised_with_its_exit_status(number, status):
    cli_terminal.end_in_order()
    with pytest.raises(EndedBySignal) as caught:
        signal.raise_signal(number)
    assert caught.value.status == status


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_what_is_held_ends_first(number, status):
    cli_terminal.end_in_order()
    ended = []

    def work():
        with cli_terminal.held():
            with cli_terminal.held():
                signal.raise_signal(number)
                ended.append("inner")
            ended.append("outer")

    with pytest.raises(EndedBySignal) as caught:
        work()
    assert (ended, caught.value.status) == (["inner", "outer"], status)


def test_a_block_that_fails_tells_its_failure_and_not_the_signal():
    cli_terminal.end_in_order()

    def work():
        with cli_terminal.held():
            signal.raise_signal(signal.SIGTERM)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        work()


@pytest.mark.parametrize(("number", "_"), SIGNALS)
def test_a_second_signal_ends_it_at_once_whatever_is_held(number, _):
    code = "with cli_terminal.held():\n    strike(); print('held', flush=True); strike()\n"
    assert program(code, number) == (-number, "held\n", "")


@pytest.mark.parametrize(("number", "_"), SIGNALS)
def test_after_the_command_nobody_is_told_where_it_was_interrupted(number, _):
    code = "cli_status.status.callback = lambda args: 0\ncli.main(['status'])\nstrike()\n"
    assert program(code, number) == (-number, "", "")


@pytest.mark.parametrize(
    ("number", "status", "word"), [(*SIGNALS[0], "interrupted"), (*SIGNALS[1], "terminated")]
)
def test_a_command_that_a_signal_ends_says_so_in_one_line(number, status, word):
    code = "cli_status.status.callback = lambda args: strike()\nsys.exit(cli.main(['status']))\n"
    assert program(code, number) == (status, "", f"oncelog: {word}\n")


def test_termination_waits_while_ray_is_joined():
    code = (
        "with cli_terminal.blocked_termination():\n"
        "    strike(); print('joined', flush=True)\n"
        "print('not reached')\n"
    )
    status, out, _ = program(code, signal.SIGTERM)
    assert (status, out) == (1, "joined\n")
