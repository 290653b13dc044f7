"""``oncelog console``: where it serves, and what it does when its cluster is gone."""

from __future__ import annotations

import asyncio
import socket
import threading
from types import SimpleNamespace

import pytest

from oncelog.api.cli import console as cli_console
from oncelog.api.cli.arguments import Arguments
from oncelog.api.cli.main import main
from oncelog.api.cli.terminal import CliError
from oncelog.storage.exceptions import ConnectionFailedError


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "logins need TLS"),
        (["--tls-cert", "c.pem"], "belong together"),
        (["--port", "0"], "from 1 to 65535"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_served(capsys, arguments, said):
    assert main(["console", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_certificate_that_cannot_be_used_is_named(capsys, tmp_path):
    missing = str(tmp_path / "none.pem")
    assert main(["console", "--tls-cert", missing, "--tls-key", missing]) == 1
    assert missing in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused_if_it_was_given_and_passed_over_if_not(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CliError, match=f"port {port} can be used"):
            cli_console._listener("127.0.0.1", port)
        monkeypatch.setattr(cli_console, "DEFAULT_PORT", port)
        with cli_console._listener("127.0.0.1", None) as found:
            assert port < found.getsockname()[1] < port + cli_console.PORTS_TRIED


class Cluster:
    address = "10.0.0.1:6379"
    dashboard_url = ""

    def __init__(self, world):
        self.is_closed = False
        self._world = world

    def jobs(self):
        if self._world.problem is not None:
            raise self._world.problem
        return []

    def close(self):
        self.is_closed = True


@pytest.fixture
def world(monkeypatch):
    """Whether Ray answers, and whether a cluster is found."""
    found = SimpleNamespace(
        ray_answers=True,
        ray_id=b"first",
        is_there=True,
        problem=None,
        has_left=threading.Event(),
        made=[],
    )

    def ray_cluster_at(address):
        if found.ray_id is None:
            raise ConnectionFailedError("something else answers")
        return address, b"framed " + found.ray_id

    def connect(args):
        if not found.is_there:
            raise CliError("no cluster runs there", "start one")
        found.made.append(Cluster(found))
        return found.made[-1]

    def leave():
        found.has_left.set()

    monkeypatch.setattr(cli_console, "connect", connect)
    monkeypatch.setattr(cli_console, "answers", lambda address: found.ray_answers)
    monkeypatch.setattr(cli_console, "ray_cluster_at", ray_cluster_at)
    monkeypatch.setattr(cli_console.cluster_connection, "ray_cluster_id", lambda: found.ray_id)
    monkeypatch.setattr(cli_console.cluster_connection, "leave_ray", leave)
    return found


def test_while_ray_answers_the_connection_stays(world):
    console = cli_console._Console(Arguments(), None)
    console.connect()
    console._look_again()
    assert (len(world.made), world.has_left.is_set()) == (1, False)
    assert not world.made[0].is_closed


def test_a_cluster_that_is_gone_is_let_go_and_found_again(world):
    console = cli_console._Console(Arguments(), None)
    console.connect()
    world.ray_answers = world.is_there = False
    console._look_again()
    assert world.made[0].is_closed
    assert world.has_left.is_set()
    assert console._link.cluster is None
    assert console._link.problem == "no cluster runs there"
    world.ray_answers = world.is_there = True
    console._look_again()
    assert console._link.cluster is world.made[1]
    assert console._link.problem == ""


@pytest.mark.parametrize("ray_id", [b"second", None])
def test_another_cluster_at_the_same_address_is_another(world, ray_id):
    console = cli_console._Console(Arguments(), None)
    console.connect()
    world.ray_id = ray_id
    console._look_again()
    assert world.made[0].is_closed
    assert world.has_left.is_set()
    assert console._link.cluster is world.made[1]


@pytest.mark.parametrize(
    ("problem", "told"),
    [(CliError("no jobs", "wait"), "no jobs"), (RuntimeError("odd"), "RuntimeError: odd")],
)
def test_what_goes_wrong_while_connecting_again_is_told_and_tried_again(world, problem, told):
    console = cli_console._Console(Arguments(), None)
    console.connect()
    world.ray_answers, world.problem = False, problem
    console._look_again()
    assert [one.is_closed for one in world.made] == [True, True]
    assert (console._link.cluster, console._link.problem) == (None, told)
    world.problem = None
    console._look_again()
    assert console._link.cluster is world.made[2]


def test_a_cluster_that_is_gone_is_let_go_though_nobody_looks(world, monkeypatch):
    monkeypatch.setattr(cli_console, "LOOK_S", 0.0)
    monkeypatch.setattr(cli_console, "WAKE_S", 0.01)

    async def serve(link, *args, **options):
        assert await asyncio.to_thread(world.has_left.wait, 60)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        console = cli_console._Console(Arguments(), SimpleNamespace(serve=serve))
        console.connect()
        world.ray_answers = world.is_there = False
        console.serve(listener, SimpleNamespace(tls=None))
    assert world.made[0].is_closed
    assert console._link.problem == "no cluster runs there"
