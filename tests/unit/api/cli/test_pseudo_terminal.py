"""What a terminal is shown that a pipe is not: colours, folded lines, bars, and a live view."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

PREAMBLE = f"import sys\nsys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
WIDTH = 60


class Terminal:
    """A program in a terminal of its own, ``WIDTH`` characters wide."""

    def __init__(self, code, *arguments, **streams):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
        self.modes = termios.tcgetattr(slave)
        unset = {"NO_COLOR", "COLUMNS", "LINES"}
        inherited = {name: text for name, text in os.environ.items() if name not in unset}
        self.program = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + code, *arguments],
            **{"stdin": slave, "stdout": slave, "stderr": slave, **streams},
            env={**inherited, "TERM": "xterm-256color"},
        )
        os.close(slave)

    def read_until(self, word):
        """All that is shown until ``word`` is."""
        shown = b""
        while word not in shown:
            shown += os.read(self.master, 4_096)
        return shown

    def type(self, keys):
        os.write(self.master, keys)

    def end(self):
        """(exit status, all that is shown until the end)"""
        shown = b""
        try:
            while data := os.read(self.master, 4_096):
                shown += data
        except OSError:
            pass  # Linux says so that the last writer is gone.
        os.close(self.master)
        return self.program.wait(), shown.replace(b"\r\n", b"\n")


TABLE = (
    "from oncelog.api.cli.terminal import say, table\n"
    "say(table(('topic', 'state'), [('t' * 70, 'serving'), ('\\x1b[2Jx', 'offline: why')]))\n"
)


def test_a_table_in_a_terminal_has_colours_and_is_folded():
    status, shown = Terminal(TABLE).end()
    assert status == 0
    assert b"\x1b[1mTOPIC" in shown
    assert b"\x1b[32mserving" in shown
    assert b"\x1b[31moffline: why" in shown
    assert b"t" * 70 not in shown
    assert shown.count(b"t") >= 70


def test_no_control_character_of_a_value_reaches_a_terminal():
    _, shown = Terminal(TABLE).end()
    assert b"\\u001b[2Jx" in shown
    assert b"\x1b[2J" not in shown


def test_there_are_no_colours_where_they_are_not_wanted():
    _, shown = Terminal("import os\nos.environ['NO_COLOR'] = '1'\n" + TABLE).end()
    assert b"serving" in shown
    assert b"\x1b[3" not in shown


def test_a_table_in_a_pipe_is_plain_and_not_folded():
    program = Terminal(TABLE, stdout=subprocess.PIPE)
    out = program.program.stdout.read()
    assert program.end()[0] == 0
    assert b"\x1b" not in out
    assert b"t" * 70 + b"  serving\n" in out


CONSUME = (
    "import test_records as here\n"
    "clients = here.Clients()\n"
    "value = b'\\x1b]0;owned\\x07\\xff\\tx'\n"
    "clients.polls = [[here.record(0, value), here.record(1, 'ü'.encode())]]\n"
    "here.cli_records.connect = lambda args: here.cluster_of(clients)\n"
    "sys.exit(here.cli.main(['consume', 'flights', *sys.argv[1:]]))\n"
)


def test_a_hostile_record_is_shown_to_a_terminal_and_not_obeyed():
    status, shown = Terminal(CONSUME, "--count", "2").end()
    assert (status, b"\x1b]0" in shown) == (0, False)
    assert shown.decode() == "\\u001b]0;owned\\u0007\\xff\tx\nü\n"


def test_a_pipe_gets_every_byte_of_a_record_and_the_terminal_a_bar():
    program = Terminal(CONSUME, "--count", "2", stdout=subprocess.PIPE)
    out = program.program.stdout.read()
    status, shown = program.end()
    assert (status, out) == (0, b"\x1b]0;owned\x07\xff\tx\n\xc3\xbc\n")
    assert b"consuming" in shown
    assert b"100%" in shown


PRODUCE = (
    "import test_records as here\n"
    "here.cli_records.connect = lambda args: here.cluster_of(here.Clients())\n"
    "sys.exit(here.cli.main(['produce', 'flights', *sys.argv[1:]]))\n"
)


@pytest.mark.parametrize("is_shown", [True, False])
def test_reading_a_file_has_a_bar_only_where_errors_go_to_a_terminal(tmp_path, is_shown):
    (tmp_path / "lines").write_bytes(b"x\n" * 1_000)
    streams = {} if is_shown else {"stderr": subprocess.PIPE}
    program = Terminal(PRODUCE, str(tmp_path / "lines"), **streams)
    errors = b"" if is_shown else program.program.stderr.read()
    status, shown = program.end()
    assert (status, errors) == (0, b"")
    assert (b"reading" in shown) is is_shown
    assert b"1,000 records to flights" in shown


TOP = (
    "import test_top as here\n"
    "here.show_one_cluster({failures})\n"
    "sys.exit(here.cli.main(['top', *sys.argv[1:]]))\n"
)


def test_top_shows_the_cluster_until_q_and_leaves_the_terminal_as_it_was():
    program = Terminal(TOP.format(failures=""), "--interval-ms", "600000")
    shown = program.read_until(b"flights")
    assert b"\x1b[?1049h" in shown  # Another screen, so that the lines before come back.
    program.type(b"xq")
    assert program.program.wait() == 0
    modes = termios.tcgetattr(program.master)
    _, rest = program.end()
    assert b"\x1b[?1049l" in rest
    assert modes == program.modes


def test_top_looks_again_after_the_interval():
    program = Terminal(TOP.format(failures=""), "--interval-ms", "100")
    program.read_until(b"1,000")
    program.type(b"q")
    assert program.end()[0] == 0


@pytest.mark.parametrize(
    "failure",
    ["here.RequestTimedOutError('moving')", "here.cli_top.CliError('moving', 'wait')"],
)
def test_top_goes_on_after_a_look_that_fails_and_shows_the_last_one_meanwhile(failure):
    program = Terminal(TOP.format(failures=failure), "--interval-ms", "100")
    shown = program.read_until(b"moving") + program.read_until(b"1,000")
    program.type(b"q")
    assert program.end()[0] == 0
    meanwhile = shown.split(b"moving", 1)[1].split(b"1,000", 1)[0]
    assert meanwhile.count(b"flights") > 1  # Those of the last look, and of the next one.


def test_a_signal_ends_top_and_the_terminal_is_as_it_was():
    program = Terminal(TOP.format(failures=""), "--interval-ms", "600000")
    program.read_until(b"flights")
    program.type(b"\x03")
    program.program.send_signal(2)
    assert program.program.wait() == 130
    modes = termios.tcgetattr(program.master)
    assert b"\x1b[?1049l" in program.end()[1]
    assert modes == program.modes
