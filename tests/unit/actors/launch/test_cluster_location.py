"""On which node a log is started, and what its actors are pinned to."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.actors.launch import cluster_location
from oncelog.actors.launch.cluster_location import (
    ClusterLocation,
    DirectoryReport,
    choose_node,
    voters_among,
)
from oncelog.actors.pin import BY_ADDRESS, BY_LABEL, BY_NODE_ID, Pin, pin_of
from oncelog.actors.protocol.cluster.quorum import VoterState
from oncelog.actors.replica.data_directory import DirectoryIdentity
from oncelog.storage.exceptions import ConnectionFailedError

ONE, OTHER = "1" * 32, "2" * 32


def node(name: str, *, address: str = "", label: str = "", is_alive: bool = True) -> dict[str, Any]:
    labels = {"broker": label} if label else {}
    return {
        "NodeID": name,
        "NodeManagerAddress": address or f"10.0.0.{ord(name)}",
        "Labels": labels,
        "Alive": is_alive,
    }


def report(cluster_id: str = "", *, error: str = "", **of_node: Any) -> DirectoryReport:
    identity = DirectoryIdentity(cluster_id=cluster_id, broker_id=1) if cluster_id else None
    return DirectoryReport(node=node(**of_node), identity=identity, error=error)


def chosen(*reports: DirectoryReport, mine: str = "a", expected: str | None = None) -> str | None:
    found = choose_node(reports, "/data", mine=mine, expected=expected)
    return None if found is None else str(found["NodeID"])


def test_a_new_cluster_is_founded_on_broker_1_or_where_the_program_is() -> None:
    assert chosen(report(name="a"), report(name="b"), mine="b") == "b"
    labelled = (report(name="a"), report(name="b", label="2"), report(name="c", label="1"))
    assert chosen(*labelled) == "c"


def test_a_cluster_is_started_where_its_data_is() -> None:
    assert chosen(report(name="a"), report(ONE, name="b")) == "b"
    assert chosen(report(name="a"), report(ONE, name="b"), expected=ONE) == "b"
    assert chosen(report(OTHER, name="a"), report(ONE, name="b"), expected=ONE) == "b"


def test_nothing_is_founded_where_a_cluster_should_be() -> None:
    assert chosen(report(name="a"), report(name="b"), expected=ONE) is None
    assert chosen(report(OTHER, name="a"), expected=ONE) is None


@pytest.mark.parametrize(
    ("reports", "text"),
    [
        ((report(OTHER, name="b"), report(ONE, name="c")), "another cluster on each"),
        ((report(ONE, name="b"), report(ONE, name="c")), "all have /data"),
        ((report(name="a"), report(name="b", error="no answer")), "a cluster may be there"),
        ((report(name="a", label="2"), report(name="b")), "0 of them broker=1"),
        ((report(name="a", label="1"), report(name="b", label="1")), "2 of them broker=1"),
        ((report(name="a", label="1"), report(ONE, name="b")), "label that one instead"),
    ],
)
def test_where_the_data_is_must_be_certain(reports: tuple[DirectoryReport, ...], text: str) -> None:
    with pytest.raises(ConnectionFailedError, match=text):
        chosen(*reports)


def test_of_nodes_on_one_machine_the_own_one_is_taken_then_the_first() -> None:
    reports = [report(ONE, name=name, address="10.0.0.1") for name in "cab"]
    assert chosen(*reports, mine="b") == "b"
    assert chosen(*reports, mine="z") == "a"


def test_a_broker_is_pinned_by_what_lasts() -> None:
    alone, labelled = node("a"), node("b", label="1")
    twins = [node("c", address="10.0.0.1"), node("d", address="10.0.0.1")]
    nodes = [alone, labelled, *twins]
    assert pin_of(alone, nodes) == Pin(BY_ADDRESS, "10.0.0.97")
    assert pin_of(labelled, nodes) == Pin(BY_LABEL, "1")
    assert pin_of(twins[0], nodes) == Pin(BY_NODE_ID, "c")


@pytest.mark.parametrize("kind", [BY_ADDRESS, BY_LABEL, BY_NODE_ID])
def test_a_pin_means_one_living_node(kind: str) -> None:
    value = {BY_ADDRESS: "10.0.0.98", BY_LABEL: "1", BY_NODE_ID: "b"}[kind]
    pin = Pin(kind, value)
    assert pin.is_at(node("b", label="1"))
    assert not pin.is_at(node("b", label="1", is_alive=False))
    assert not pin.is_at(node("a"))
    assert list(pin.options()) == ["resources" if kind == BY_ADDRESS else "label_selector"]
    assert value in str(pin)


def voter(number: int, epoch: int, *, label: str = "", cluster_id: str = ONE) -> DirectoryReport:
    """A node that is labelled as the broker whose copy of the metadata log it has."""
    return DirectoryReport(
        node=node(chr(96 + number), label=label or str(number)),
        identity=DirectoryIdentity(cluster_id=cluster_id, broker_id=number),
        voter=VoterState(epoch=epoch),
    )


def test_of_several_copies_that_of_the_newest_epoch_is_started_and_the_others_vote() -> None:
    reports = [voter(1, 4), voter(2, 6), voter(3, 6), report(name="z", label="9")]
    assert chosen(*reports, expected=ONE) == "b"
    assert chosen(*reports[2:], expected=ONE) == "c"
    assert voters_among(reports, reports[1].node) == [1, 2, 3]
    assert voters_among(reports, reports[3].node) == []


def test_a_copy_counts_only_under_the_number_whose_it_is() -> None:
    reports = [voter(2, 9, label="3"), voter(4, 1)]
    assert chosen(*reports, expected=ONE) == "d"
    assert voters_among(reports, reports[1].node) == [4]


def test_copies_of_another_cluster_do_not_vote() -> None:
    reports = [voter(1, 4), voter(2, 9, cluster_id=OTHER)]
    assert chosen(*reports, expected=ONE) == "a"
    assert voters_among(reports, reports[0].node) == [1]


@pytest.fixture
def locations(monkeypatch: pytest.MonkeyPatch) -> list[ClusterLocation | str]:
    """What each inspection finds, in order, or why it finds nothing; the last one stays."""
    found: list[ClusterLocation | str] = []

    def find_location(*_of_what: Any, **_options: Any) -> ClusterLocation:
        now = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(now, str):
            raise ConnectionFailedError(now)
        return now

    monkeypatch.setattr(cluster_location, "find_location", find_location)
    monkeypatch.setattr(cluster_location, "GATHER_ATTEMPTS", 2)
    monkeypatch.setattr(cluster_location, "GATHER_RETRY_S", 0)
    return found


def location_of(*voters: int) -> ClusterLocation:
    return ClusterLocation(
        cluster_id=ONE, broker_id=2, data_dir="/data", pin=Pin(BY_LABEL, "2"), voters=voters
    )


@pytest.mark.parametrize("cluster_id", [ONE, None])
def test_a_log_is_started_when_two_of_its_voters_are_there(
    locations: list[ClusterLocation | str], cluster_id: str | None
) -> None:
    locations += [location_of(2), location_of(2, 3)]
    assert cluster_location.wait_for_location("/data", None, cluster_id=cluster_id).voters == (2, 3)


def test_a_cluster_that_has_to_be_there_is_waited_for(
    locations: list[ClusterLocation | str],
) -> None:
    locations += ["no node has it", location_of()]
    assert cluster_location.wait_for_location("/data", None, cluster_id=ONE) == location_of()
    locations[:] = ["no node has it", location_of()]
    with pytest.raises(ConnectionFailedError, match="no node has it"):
        cluster_location.wait_for_location("/data", None, cluster_id=None)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (location_of(2), "only broker 2 is up .* it takes 2"),
        ("no node has it", "no node has it"),
    ],
)
def test_who_waits_in_vain_is_told_for_whom(
    locations: list[ClusterLocation | str], found: ClusterLocation | str, text: str
) -> None:
    locations += [found]
    with pytest.raises(ConnectionFailedError, match=text):
        cluster_location.wait_for_location("/data", None, cluster_id=ONE)
