"""The tree of commands: what it refuses, how it ends, and that it is quick."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from oncelog import __version__
from oncelog.api.cli import main as cli
from oncelog.api.cli import status as cli_status
from oncelog.api.cli.terminal import CliError
from oncelog.storage.exceptions import UnknownTopicOrPartitionError


@pytest.fixture
def outcome(monkeypatch):
    """Makes ``oncelog status`` end with an exception or a status."""

    def use(end):
        def run(args):
            if isinstance(end, BaseException):
                raise end
            return end

        monkeypatch.setattr(cli_status.status, "callback", run)

    return use


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "missing command"),
        (["fly"], "there is no command 'fly'"),
        (["topic", "list"], "there is no command 'topic'; did you mean 'topics'?"),
        (["topics", "delet"], "there is no command 'delet'; did you mean 'delete'?"),
        (["status", "--jsn"], "no such option '--jsn'. Did you mean '--json'?"),
        (["topics", "list", "-o", "xml"], "'xml' is not one of 'table', 'json', 'yaml'"),
        (["start", "--dashboard-port", "99999"], "'99999' is not a whole number from 1 to 65535"),
        (["start", "--num-cpus", "two"], "'two' is not a whole number from 1"),
        (["start", "--num-cpus", "--2"], "'--2' is not a whole number from 1"),
        (["start", "--num-cpus", "9" * 5_000], "9' is not a whole number from 1"),
        (["topics"], "missing command"),
        (["topics", "create"], "TOPIC"),
        (["topics", "create", "f", "--partitions", "0"], "'0' is not a whole number from 1"),
        (["consume", "f", "--isolation-level", "dirty"], "'dirty' is not one of"),
        (["consume", "f", "--max-records", "-1"], "'-1' is not a whole number from 1"),
        (
            ["consume", "f", "--from-begin"],
            "no such option '--from-begin'. (Did you mean one of: '--from-beg",
        ),
        (["produce"], "TOPIC"),
        (["dump"], "PATH"),
        (["accept-cut", "x"], "OFFSET"),
        (["accept-cut", "x", "y"], "'y' is not a whole number from 0"),
        (["demo", "--seed", "x"], "'x' is not a whole number from 0"),
        (["demo", "--brokers", "6"], "'6' is not a whole number from 1 to 5"),
        (
            ["demo", "--streaming", "--brokers", "3"],
            "--streaming and --brokers exclude each other",
        ),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2(capsys, arguments, reason):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("oncelog: ")
    assert reason in captured.err
    assert " — see `oncelog" in captured.err


def test_help_names_every_command(capsys):
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in (
        "start",
        "stop",
        "status",
        "topics",
        "produce",
        "consume",
        "dump",
        "demo",
        "accept-cut",
    ):
        assert f"\n  {command} " in text


def test_the_version_is_that_of_the_package(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"oncelog {__version__}\n"


@pytest.mark.parametrize("status", [0, 1])
def test_the_status_of_a_command_is_that_of_the_program(outcome, status):
    outcome(status)
    assert cli.main(["status"]) == status


def test_an_error_of_the_library_is_one_line_without_a_stack_trace(outcome, capsys):
    outcome(UnknownTopicOrPartitionError("there is no topic 'f'", advice="create it"))
    assert cli.main(["status"]) == 1
    assert capsys.readouterr().err == "oncelog: there is no topic 'f' — create it\n"


def test_an_unexpected_error_is_one_line_too(outcome, capsys):
    outcome(RuntimeError("two\nlines"))
    assert cli.main(["status"]) == 1
    assert capsys.readouterr().err.startswith("oncelog: RuntimeError: two lines — ")


def test_an_interrupt_ends_as_shells_expect(outcome, capsys):
    outcome(KeyboardInterrupt())
    assert cli.main(["status"]) == 130
    assert capsys.readouterr().err == "oncelog: interrupted\n"


def test_the_demo_is_given_its_arguments(monkeypatch):
    given = []

    def run(args):
        where = (args.json, args.data_dir)
        given.append((args.seed, args.brokers, args.streaming, args.keep, *where))
        return 3

    monkeypatch.setitem(sys.modules, cli.DEMO_MODULE, types.SimpleNamespace(main=run))
    assert cli.main(["demo", "--seed", "7", "--keep", "--json", "f.json"]) == 3
    assert cli.main(["demo", "--streaming", "--data-dir", "d"]) == 3
    assert given == [(7, 1, False, True, "f.json", None), (None, 1, True, False, None, "d")]


def test_a_package_that_only_the_demo_needs_is_named(monkeypatch, capsys):
    monkeypatch.setattr(cli, "DEMO_MODULE", "package_of_the_demo")
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr().err == (
        "oncelog: the demo needs the package 'package_of_the_demo' — run it with `./run demo`, "
        "or install oncelog[spark,demo]\n"
    )


def test_missing_java_ends_the_demo_with_one_line(monkeypatch, capsys):
    def run(args):
        raise CliError("Spark needs Java 17 or newer", "install it")

    monkeypatch.setitem(sys.modules, cli.DEMO_MODULE, types.SimpleNamespace(main=run))
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr().err == "oncelog: Spark needs Java 17 or newer — install it\n"


def test_neither_help_nor_wrong_arguments_load_ray_or_arrow_or_what_connects():
    code = (
        "import sys\n"
        "from oncelog.api.cli.main import main\n"
        "main(['--help']), main(['topics', 'create']), main(['topics', 'list', '--help'])\n"
        "heavy = {'ray', 'pyarrow', 'numpy', 'pyspark', 'asyncio', 'ssl'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_leaves_is_no_error_message():
    code = (
        "import sys\n"
        "from oncelog.api.cli import main as cli, status as cli_status\n"
        "def run(args):\n"
        "    while True: print('line')\n"
        "cli_status.status.callback = run\n"
        "sys.exit(cli.main(['status']))\n"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    program.stdout.readline()
    program.stdout.close()
    error = program.stderr.read()
    program.stderr.close()
    assert (program.wait(), error) == (141, b"")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["topics", "create", "--help"]])
def test_help_that_nobody_reads_is_no_error_message(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "oncelog.api.cli.main", *arguments],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        env={name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
