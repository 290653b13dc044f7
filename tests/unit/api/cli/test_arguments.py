"""What is completed, and what commands have in common."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys

import pytest
import yaml
from click.shell_completion import ShellComplete
from topics import AdminCluster, topic_of

from oncelog.api.cli import arguments as cli_arguments
from oncelog.api.cli import main as cli
from oncelog.api.cli import topics as cli_topics


def completed(*words):
    """What is offered for the last of ``words``."""
    shell = ShellComplete(cli.program, {}, cli.PROGRAM, cli.COMPLETION_VARIABLE)
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.fixture
def listing(tmp_path, monkeypatch):
    """Makes a shell script the program that is asked for names."""

    def use(script):
        path = tmp_path / "python"
        path.write_text(
            f'#!/bin/sh\necho "$@" $_ONCELOG_COMPLETE > {tmp_path / "asked"}\n{script}\n'
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(path))
        return tmp_path / "asked"

    return use


def test_commands_options_and_choices_are_completed():
    assert completed("to") == ["top", "topics"]
    assert completed("topics", "de") == ["describe", "delete", "delete-records"]
    assert completed("topics", "list", "--int") == ["--internal"]
    assert completed("status", "--output", "y") == ["yaml"]
    assert completed("completion", "") == ["bash", "zsh", "fish"]


def test_topics_and_groups_of_the_cluster_are_completed(listing, monkeypatch):
    monkeypatch.setenv(cli.COMPLETION_VARIABLE, "bash_complete")
    asked = listing("""echo '[{"name": "flights"}, {"name": "delays"}, {"name": "flown"}]'""")
    place = ("--data-dir", "there", "--user", "me")
    assert completed("consume", *place, "fl") == ["flights", "flown"]
    given = asked.read_text().split()
    assert given[:6] == ["-m", cli_arguments.MODULE, "topics", "list", "--output", "json"]
    assert given[6:] == [*place]
    listing("""echo '[{"group": "readers"}]'""")
    assert completed("groups", "describe", "") == ["readers"]
    assert completed("consume", "flights", "--group", "r") == ["readers"]


def test_names_that_a_shell_would_not_take_as_they_are_are_not_offered(listing):
    names = ["$(touch x)", "`id`", "a b", "a\nb", "a\n", "-x", "a;b", "ä", "", "a*", "a.b:c@1-2"]
    listing(f"cat <<'END'\n{json.dumps([{'group': name} for name in names])}\nEND")
    assert completed("groups", "describe", "") == ["a.b:c@1-2"]


def test_a_mistyped_command_is_no_error_while_a_line_is_completed():
    assert completed("topcis", "tra") == ["transactions"]
    assert completed("topics", "lits", "de") == ["describe", "delete", "delete-records"]


@pytest.mark.parametrize(
    ("text", "meant_ms"),
    [
        ("0", 0),
        ("1769817600000", 1_769_817_600_000),
        ("2026-01-31", 1_769_817_600_000),
        ("2026-01-31T01:00+01:00", 1_769_817_600_000),
    ],
)
def test_a_time_is_a_date_or_ms(text, meant_ms):
    assert cli_arguments.time_ms(text) == meant_ms


@pytest.mark.parametrize("text", ["1769817600", "2000", "-5"])
def test_a_number_that_is_no_time_in_ms_is_refused(text):
    with pytest.raises(cli.click.BadParameter, match="ms since 1970 have 13 digits"):
        cli_arguments.time_ms(text)


def test_a_date_of_digits_only_is_that_date_or_refused():
    try:
        assert cli_arguments.time_ms("20260131") == 1_769_817_600_000
    except cli.click.BadParameter:
        assert sys.version_info < (3, 11)


@pytest.mark.parametrize("script", ["exec sleep 600", "echo 'no cluster' >&2; exit 1", "echo '['"])
def test_nothing_is_completed_where_no_cluster_answers(listing, monkeypatch, capfd, script):
    listing(script)
    monkeypatch.setattr(cli_arguments, "COMPLETION_TIMEOUT_S", 0.2)
    assert completed("consume", "fl") == []
    assert tuple(capfd.readouterr()) == ("", "")


def test_the_script_makes_bash_complete_commands(tmp_path):
    code = "from oncelog.api.cli.main import main; main(['completion', 'bash'])"
    script = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    program = tmp_path / "oncelog"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {cli_arguments.MODULE} "$@"\n')
    program.chmod(0o755)
    typed = "COMP_WORDS=(oncelog gro); COMP_CWORD=1; _oncelog_completion oncelog; echo $COMPREPLY"
    done = subprocess.run(
        [shutil.which("bash"), "-c", f"{script.stdout}\n{typed}"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert done.stdout == "groups\n"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_that_asks_the_program(capsys, shell):
    assert cli.main(["completion", shell]) == 0
    assert f"_ONCELOG_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_what_is_listed_is_the_same_as_json_and_as_yaml(monkeypatch, capsys):
    cluster = AdminCluster(topic_of("flights", 1, 1), topic_of("delays", -1))
    monkeypatch.setattr(cli_topics, "connect", lambda args: cluster)
    shown = {}
    for output in (["-o", "json"], ["--json"], ["--output", "yaml"]):
        assert cli.main(["topics", "list", *output]) == 0
        shown[output[-1]] = capsys.readouterr().out
    assert shown["json"] == shown["--json"]
    assert yaml.safe_load(shown["yaml"]) == json.loads(shown["json"])
    assert shown["yaml"].startswith("- name: delays\n")
    assert cli.main(["topics", "describe", "delays", "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["partitions"][0]["leader"] is None


def every_command(command=cli.program, name="oncelog"):
    ctx = cli.click.Context(command, info_name=name)
    if not isinstance(command, cli.click.Group):
        yield name, command
        return
    for each in command.list_commands(ctx):
        yield from every_command(command.get_command(ctx, each), f"{name} {each}")


def test_every_command_and_option_has_a_text():
    found = dict(every_command())
    assert len(found) > 45
    missing = [name for name, command in found.items() if not command.help]
    missing += [
        f"{name} {parameter.opts}"
        for name, command in found.items()
        for parameter in command.params
        if isinstance(parameter, cli.click.Option) and not parameter.help
    ]
    assert not missing


def test_what_lists_or_describes_has_an_output_option():
    lists = {
        name: command
        for name, command in every_command()
        if name.split()[-1] in {"list", "describe", "status", "limits", "log-dirs", "check"}
    }
    assert len(lists) > 12
    without = [
        name
        for name, command in lists.items()
        if {"output", "json"} - {parameter.name for parameter in command.params}
    ]
    assert not without
