"""Which cluster a command means, in which order, and what it says when there is none."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from oncelog.api import client
from oncelog.api.cli import connect as cli_connect
from oncelog.api.cli import main as cli
from oncelog.api.cli import terminal as cli_terminal
from oncelog.api.cli.arguments import Arguments, Command
from oncelog.api.cli.terminal import CliError
from oncelog.api.session import cluster_connection, login
from oncelog.storage.exceptions import InvalidSettingError


@pytest.fixture(autouse=True)
def _no_ray_address(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture
def listener():
    """Address of something that listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def deaf():
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"127.0.0.1:{port}"


def arguments(address=None, data_dir=None):
    return Arguments(address=address, data_dir=data_dir)


def leave_word(data_dir, address, process_id=None):
    word = cluster_connection.Discovery(
        address=address, dashboard_url="", process_id=process_id or os.getpid()
    )
    cluster_connection.write_discovery(data_dir, word)
    return word


def test_an_address_wins_over_the_data_directory(tmp_path, listener, deaf):
    leave_word(tmp_path, deaf)
    assert cli_connect.find(arguments(listener, str(tmp_path))).address == listener


def test_a_cluster_is_found_by_its_data_directory(tmp_path, listener):
    word = leave_word(tmp_path, listener)
    found = cli_connect.find(arguments(data_dir=str(tmp_path)))
    assert (found.address, found.discovery) == (listener, word)


def test_without_arguments_the_default_data_directory_is_asked(tmp_path, listener, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "oncelog-data").mkdir()
    leave_word(tmp_path / "oncelog-data", listener)
    assert cli_connect.find(arguments()).address == listener


def test_without_a_running_directory_the_variable_of_ray_is_used(tmp_path, listener, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", listener)
    assert cli_connect.find(arguments()).address == listener


def test_a_directory_asked_for_is_never_replaced_by_the_variable(tmp_path, listener, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", listener)
    with pytest.raises(CliError, match="no cluster runs on"):
        cli_connect.find(arguments(data_dir=str(tmp_path)))


def test_no_cluster_at_all_points_to_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CliError) as caught:
        cli_connect.find(arguments())
    assert "`oncelog start`" in caught.value.advice


def test_an_address_where_nothing_listens_is_refused_at_once(deaf):
    with pytest.raises(CliError, match="no Ray cluster answers at --address"):
        cli_connect.find(arguments(deaf))


def test_an_address_that_is_none_is_refused():
    with pytest.raises(CliError, match="'nonsense'"):
        cli_connect.find(arguments("nonsense"))


def test_the_word_of_a_killed_starter_counts_for_nothing(tmp_path, deaf):
    leave_word(tmp_path, deaf)
    assert cli_connect.running_on(tmp_path) is None


def test_a_data_directory_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(CliError, match="cannot be read by this user") as caught:
        cli_connect.running_on(tmp_path)
    assert str(tmp_path) in caught.value.what


def test_libraries_log_nothing_to_the_terminal_unless_debugging(capsys, monkeypatch):
    monkeypatch.delenv("ONCELOG_DEBUG", raising=False)
    logger = cli_connect.logging.getLogger("oncelog")
    before = list(logger.handlers)
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setenv("RAY_BACKEND_LOG_LEVEL", "fatal")
    cli_connect.quiet_libraries()
    logger.getChild("any").error("a stack trace")
    assert capsys.readouterr().err == ""
    logger.handlers[:] = before


def test_the_word_of_a_process_whose_number_another_has_counts_for_nothing(tmp_path, listener):
    own = cluster_connection.life_of(os.getpid())
    assert own
    for life, is_believed in (
        (own, True),
        ("", True),
        (f"{own}0", False),
        ("another boot 1", False),
    ):
        word = cluster_connection.Discovery(
            address=listener, dashboard_url="", process_id=os.getpid(), life=life
        )
        cluster_connection.write_discovery(tmp_path, word)
        assert (cli_connect.running_on(tmp_path) is not None) is is_believed


def test_whoever_is_connected_ends_in_order_whatever_handlers_ray_has_set(listener, monkeypatch):
    known = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    blocked = []

    def join_ray(address, *, shows_output):
        assert not shows_output
        blocked.extend(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        signal.signal(signal.SIGTERM, lambda *_: None)

    def connect(address):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(cluster_connection, "join_ray", join_ray)
    monkeypatch.setattr(client, "connect", connect)
    try:
        with pytest.raises(cli_terminal.EndedBySignal):
            cli_connect.connect(arguments(listener))
    finally:
        for number, handler in known.items():
            signal.signal(number, handler)
    assert signal.SIGTERM in blocked
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


# --- as whom ----------------------------------------------------------------------------------


def options(*given):
    command = cli_connect.cluster_options(Command("any", callback=lambda args: args))
    return command.main(list(given), standalone_mode=False)


def test_help_tells_the_defaults_as_they_are():
    text = cli.program.get_command(cli.click.Context(cli.program), "topics").commands["list"]
    told = {option.name: option.help for option in text.params if hasattr(option, "help")}
    assert f"(default: {cluster_connection.DEFAULT_DATA_DIR})" in told["data_dir"]
    assert f"(default: {login.USER_VARIABLE}," in told["user"]
    assert f"(default: {login.FILE_VARIABLE})" in told["password_file"]
    assert f"(default: {login.TOKEN_VARIABLE})" in told["token"]
    assert f"(default: {login.CERTIFICATE_VARIABLE})" in told["cert"]


WAYS = {
    ("--user", "alice", "--password-file", "f"): {"user": "alice", "password_file": "f"},
    ("--token-file", "t"): {"token": "t"},
    ("--cert", "c"): {"cert": "c"},
}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--token-file", "t", "--cert", "c"), "token and cert are given; log in by one of user"),
        (("--user", "a", "--cert", "c"), "user and cert are given; log in by one of user, token"),
    ],
)
def test_several_ways_to_log_in_are_refused_as_by_connect(given, told):
    with pytest.raises(InvalidSettingError, match=told):
        cli_connect.login_variables(options(*given))


def test_who_connects_is_passed_on_only_if_it_is_said(listener, monkeypatch):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    seen = []
    monkeypatch.setattr(cluster_connection, "join_ray", lambda address, **_: None)
    monkeypatch.setattr(client, "connect", lambda address, **login: seen.append(login))
    try:
        cli_connect.connect(options("--address", listener))
        for given in WAYS:
            cli_connect.connect(options("--address", listener, *given))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert seen == [{}, *WAYS.values()]


def test_another_process_is_told_who_connects_wherever_it_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nobody = dict.fromkeys(
        ("ONCELOG_USER", "ONCELOG_PASSWORD_FILE", "ONCELOG_TOKEN_FILE", "ONCELOG_CERT"), ""
    )
    for name in nobody:
        monkeypatch.delenv(name, raising=False)
    assert cli_connect.login_variables(options()) == {}
    told = nobody | {"ONCELOG_USER": "alice", "ONCELOG_PASSWORD_FILE": str(tmp_path / "f")}
    given = options("--user", "alice", "--password-file", "f")
    assert cli_connect.login_variables(given) == told
    told_file = nobody | {"ONCELOG_TOKEN_FILE": str(tmp_path / "t")}
    assert cli_connect.login_variables(options("--token-file", "t")) == told_file
    told_cert = nobody | {"ONCELOG_CERT": str(tmp_path / "c")}
    assert cli_connect.login_variables(options("--cert", "c")) == told_cert
    monkeypatch.setenv("ONCELOG_USER", "alice")
    monkeypatch.setenv("ONCELOG_PASSWORD_FILE", "f")
    assert cli_connect.login_variables(options()) == told
    for name in nobody:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONCELOG_TOKEN_FILE", "t")
    token = nobody | {"ONCELOG_TOKEN_FILE": str(tmp_path / "t")}
    assert cli_connect.login_variables(options()) == token
