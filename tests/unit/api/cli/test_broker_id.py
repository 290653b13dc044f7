"""``oncelog broker-id``: a host's number is the head's, the kept one, or that of its address."""

from __future__ import annotations

import socket

import pytest

from oncelog.api.cli import data_directory
from oncelog.api.cli import main as cli
from oncelog.api.cli.terminal import CliError

IDENTITY = "version=0\nbroker.id={}\ncluster.id={}\n"


@pytest.fixture
def ask(tmp_path, monkeypatch, capsys):
    """Ask for the number on a host with the address ``own``; exit status and what was printed."""

    def answer(own, head="10.0.0.1", directory=tmp_path / "log"):
        monkeypatch.setattr(data_directory, "addresses", lambda name: (own, name))
        options = [] if head is None else ["--head", head]
        status = cli.main(["broker-id", str(directory), *options])
        printed = capsys.readouterr()
        return status, (printed.out or printed.err).strip()

    return answer


def test_head_is_broker_1(ask):
    assert ask("10.0.0.1") == (0, "1")


@pytest.mark.parametrize(
    ("own", "head", "number"),
    [
        ("10.0.0.2", "10.0.0.1", 4),
        ("10.0.0.0", "10.0.0.1", 2),
        ("10.1.0.2", "10.0.0.1", 65_540),
        ("192.168.1.5", "192.168.0.9", 263),
        ("172.16.0.5", "172.31.0.9", 7),
        ("131.107.0.5", "131.1.2.3", 7_012_359),
    ],
)
def test_worker_has_the_number_of_its_address_in_the_heads_network(ask, own, head, number):
    assert ask(own, head) == (0, str(number))


@pytest.mark.parametrize(
    ("own", "head"),
    [("192.168.1.5", "10.0.0.1"), ("192.169.1.5", "192.168.0.1"), ("fd00::5", "fd00::1")],
)
def test_worker_whose_address_tells_nothing_is_refused_and_told_where_to_write_one(
    ask, tmp_path, own, head
):
    status, said = ask(own, head)
    assert status == 1
    assert own in said
    assert f"to {tmp_path / 'log' / 'broker.id'}" in said
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "broker.id").write_text("7\n")
    assert ask(own, head) == (0, "7")


def test_number_stays_when_the_address_changes(ask):
    first = ask("10.0.0.2")
    assert ask("10.0.0.9") == first
    assert ask("10.0.0.9", head=None) == first


def test_number_of_the_data_goes_before_all_others(ask, tmp_path):
    ask("10.0.0.2")
    (tmp_path / "log" / "meta.properties").write_text(IDENTITY.format(3, "c" * 32))
    assert ask("10.0.0.2") == (0, "3")


def test_without_head_no_number_is_chosen(ask, tmp_path):
    status, said = ask("10.0.0.2", head=None)
    assert status == 1
    assert "--head" in said
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(("own", "kept"), [("10.0.0.2", 1), ("10.0.0.1", 4)])
def test_disk_keeps_its_number_when_its_host_becomes_the_head_or_ceases_to_be(
    ask, tmp_path, own, kept
):
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "meta.properties").write_text(IDENTITY.format(kept, "c" * 32))
    assert ask(own) == (0, str(kept))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("meta.properties", "version=9\n"),
        ("broker.id", "two"),
        ("broker.id", "0"),
        ("broker.id", ""),
    ],
)
def test_file_that_cannot_be_understood_is_not_replaced(ask, tmp_path, name, text):
    path = tmp_path / "log" / name
    path.parent.mkdir()
    path.write_text(text)
    status, said = ask("10.0.0.2")
    assert status == 1
    assert str(path.parent) in said
    assert path.read_text() == text


def test_directory_that_cannot_be_made_is_an_error(ask, tmp_path):
    (tmp_path / "file").touch()
    status, said = ask("10.0.0.2", directory=tmp_path / "file" / "log")
    assert status == 1
    assert "cannot tell" in said


def test_own_address_is_that_on_the_way_to_the_head():
    assert data_directory.addresses("127.0.0.1") == ("127.0.0.1", "127.0.0.1")


def test_head_whose_name_nobody_knows_is_named(monkeypatch):
    def unknown(*_arguments, **_options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(CliError, match=r"'nowhere' \(Name or service not known\)"):
        data_directory.addresses("nowhere")
