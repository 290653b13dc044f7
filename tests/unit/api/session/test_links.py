"""When a command asks a cluster directly, and when it goes on through Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.protocol.messages.cluster import MetadataReply
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.actors.rpc.certificates import IN_USE, OUR_FILES
from oncelog.actors.rpc.listener import ListenerAddress
from oncelog.actors.rpc.listener_directory import LISTENER_FILE, NamedListener
from oncelog.api import client
from oncelog.api.session import cluster_connection
from oncelog.api.session.links import DirectLink, NotReachedError, direct_link
from oncelog.api.session.login import NOBODY, Login
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError, SaslAuthenticationFailedError

RAY_ADDRESS = "10.0.0.1:6379"
HOST = "10.0.0.1"


@pytest.fixture(autouse=True)
def _ray_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of Ray")


def name(data_dir: Path, **changed: Any) -> NamedListener:
    """Leave the file of a cluster that does not run."""
    fields: dict[str, Any] = {
        "cluster_id": "c1",
        "broker_id": 1,
        "actor": "controller",
        "address": ListenerAddress(host="127.0.0.1", port=1, token=b"t", is_keyed=True),
        "ray_address": RAY_ADDRESS,
        "process": ProcessTable(HOST).process(os.getpid()),
    }
    named = NamedListener(**{**fields, **changed})
    path = data_dir / LISTENER_FILE
    path.touch(0o600)
    path.write_bytes(named.to_bytes())
    return named


def link_on(data_dir: Path) -> DirectLink:
    link = direct_link(data_dir, NOBODY)
    assert link is not None
    return link


def test_there_is_a_link_if_a_listener_is_named_of_the_ray_cluster_that_is_meant(
    tmp_path: Path,
) -> None:
    assert direct_link(tmp_path, NOBODY) is None
    name(tmp_path)
    assert link_on(tmp_path).address == RAY_ADDRESS
    assert direct_link(tmp_path, NOBODY, ray_address=RAY_ADDRESS) is not None
    assert direct_link(tmp_path, NOBODY, ray_address="10.0.0.2:6379") is None


def test_without_rays_token_ray_itself_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name(tmp_path)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert direct_link(tmp_path, NOBODY) is None
    name(tmp_path, address=ListenerAddress(host="127.0.0.1", port=1, token=b"t"))
    assert direct_link(tmp_path, NOBODY) is not None


def ended() -> DriverProcess:
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    process = ProcessTable(HOST).process(child.pid)
    child.communicate()
    assert process is not None
    return process


@pytest.mark.parametrize("is_secured", [False, True])
@pytest.mark.parametrize("is_user", [False, True])
def test_an_address_is_called_only_while_it_is_that_of_the_process_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_user: bool, is_secured: bool
) -> None:
    """Another process may have the port of one that has ended, and users tell it who they are."""
    for variable in (IN_USE, *OUR_FILES):
        monkeypatch.delenv(variable, raising=False)
    if is_secured:
        monkeypatch.setenv(OUR_FILES[0], str(tmp_path / "certificate"))
    password = tmp_path / "password"
    password.write_text("correct horse")
    login = Login("alice", str(password)) if is_user else NOBODY
    unseen = DriverProcess(machine=f"{HOST} elsewhere", process_id=1, start_ticks=0)
    name(tmp_path)
    assert direct_link(tmp_path, login) is not None
    for process in (unseen, None):
        name(tmp_path, process=process)
        assert (direct_link(tmp_path, login) is None) == (is_user and not is_secured)
    name(tmp_path, process=ended())
    assert direct_link(tmp_path, login) is None


def test_a_password_that_cannot_be_read_is_told_at_once(tmp_path: Path) -> None:
    nobody_knows = Login("alice", str(tmp_path / "missing"))
    assert direct_link(tmp_path, nobody_knows) is None
    name(tmp_path)
    with pytest.raises(InvalidSettingError, match="cannot be read"):
        direct_link(tmp_path, nobody_knows)


def test_another_cluster_or_none_that_serves_is_not_reached(tmp_path: Path) -> None:
    name(tmp_path)
    link = link_on(tmp_path)
    link.check(MetadataReply(cluster_id="c1"))
    with pytest.raises(NotReachedError, match="c2 answers"):
        link.check(MetadataReply(cluster_id="c2"))
    with pytest.raises(NotReachedError, match="NOT_CONTROLLER"):
        link.check(MetadataReply(error=ErrorCode.NOT_CONTROLLER))


def test_a_refusal_is_final_only_if_the_named_process_has_given_it(tmp_path: Path) -> None:
    """At the port of one that has ended, another cluster may refuse whom it does not know."""
    refusal = MetadataReply(error=ErrorCode.SASL_AUTHENTICATION_FAILED)
    name(tmp_path)
    with pytest.raises(SaslAuthenticationFailedError):
        link_on(tmp_path).check(refusal)
    for process in (None, DriverProcess(machine="m", process_id=1, start_ticks=0)):
        name(tmp_path, process=process)
        with pytest.raises(NotReachedError):
            link_on(tmp_path).check(refusal)


def test_a_stale_file_is_known_as_such_and_ray_is_not_joined_for_it(tmp_path: Path) -> None:
    name(tmp_path)
    joined: list[str] = []
    assert client.connect_directly(tmp_path, join=joined.append) is None
    assert joined == []


def test_the_cluster_knows_this_machine_by_the_name_in_the_file(tmp_path: Path) -> None:
    named = name(tmp_path)
    assert link_on(tmp_path).processes.process(os.getpid()) == named.process


def test_the_dashboard_is_where_the_starter_has_written(tmp_path: Path) -> None:
    name(tmp_path)
    assert link_on(tmp_path).dashboard_url == ""
    word = cluster_connection.Discovery(
        address=RAY_ADDRESS, dashboard_url="http://there", process_id=os.getpid()
    )
    cluster_connection.write_discovery(tmp_path, word)
    assert link_on(tmp_path).dashboard_url == "http://there"


def test_ray_is_joined_once_when_something_needs_it(tmp_path: Path) -> None:
    name(tmp_path)
    joined: list[str] = []
    link = direct_link(tmp_path, NOBODY, join=joined.append)
    assert link is not None
    link.join_ray()
    link.join_ray()
    assert joined == [RAY_ADDRESS]


def test_what_a_command_needs_to_ask_imports_neither_ray_nor_arrow() -> None:
    """Each takes longer to import than all the rest of a command."""
    code = (
        "import sys, oncelog.api.client, oncelog.api.cli.connect, oncelog.api.cli.status, "
        "oncelog.api.cli.topics, oncelog.api.cli.groups\n"
        "heavy = {'ray', 'pyarrow', 'numpy', 'grpc', 'oncelog.storage.records.compiled'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
