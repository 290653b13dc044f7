"""On which node a log is started, and what its actors are pinned to."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.actors.launch import home
from oncelog.actors.launch.home import Home, Look, choose_node, voters_among
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


def look(cluster_id: str = "", *, error: str = "", **of_node: Any) -> Look:
    identity = DirectoryIdentity(cluster_id=cluster_id, broker_id=1) if cluster_id else None
    return Look(node=node(**of_node), identity=identity, error=error)


def chosen(*looks: Look, mine: str = "a", expected: str | None = None) -> str | None:
    found = choose_node(looks, "/data", mine=mine, expected=expected)
    return None if found is None else str(found["NodeID"])


def test_a_new_cluster_is_founded_on_broker_1_or_where_the_program_is() -> None:
    assert chosen(look(name="a"), look(name="b"), mine="b") == "b"
    labelled = (look(name="a"), look(name="b", label="2"), look(name="c", label="1"))
    assert chosen(*labelled) == "c"


def test_a_cluster_is_started_where_its_data_is() -> None:
    assert chosen(look(name="a"), look(ONE, name="b")) == "b"
    assert chosen(look(name="a"), look(ONE, name="b"), expected=ONE) == "b"
    assert chosen(look(OTHER, name="a"), look(ONE, name="b"), expected=ONE) == "b"


def test_nothing_is_founded_where_a_cluster_should_be() -> None:
    assert chosen(look(name="a"), look(name="b"), expected=ONE) is None
    assert chosen(look(OTHER, name="a"), expected=ONE) is None


@pytest.mark.parametrize(
    ("looks", "text"),
    [
        ((look(OTHER, name="b"), look(ONE, name="c")), "another cluster on each"),
        ((look(ONE, name="b"), look(ONE, name="c")), "all have /data"),
        ((look(name="a"), look(name="b", error="no answer")), "a cluster may be there"),
        ((look(name="a", label="2"), look(name="b")), "0 of them broker=1"),
        ((look(name="a", label="1"), look(name="b", label="1")), "2 of them broker=1"),
        ((look(name="a", label="1"), look(ONE, name="b")), "label that one instead"),
    ],
)
def test_where_the_data_is_must_be_certain(looks: tuple[Look, ...], text: str) -> None:
    with pytest.raises(ConnectionFailedError, match=text):
        chosen(*looks)


def test_of_nodes_on_one_machine_the_own_one_is_taken_then_the_first() -> None:
    looks = [look(ONE, name=name, address="10.0.0.1") for name in "cab"]
    assert chosen(*looks, mine="b") == "b"
    assert chosen(*looks, mine="z") == "a"


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


def voter(number: int, epoch: int, *, label: str = "", cluster_id: str = ONE) -> Look:
    """A node that is labelled as the broker whose copy of the metadata log it has."""
    return Look(
        node=node(chr(96 + number), label=label or str(number)),
        identity=DirectoryIdentity(cluster_id=cluster_id, broker_id=number),
        voter=VoterState(epoch=epoch),
    )


def test_of_several_copies_that_of_the_newest_epoch_is_started_and_the_others_vote() -> None:
    looks = [voter(1, 4), voter(2, 6), voter(3, 6), look(name="z", label="9")]
    assert chosen(*looks, expected=ONE) == "b"
    assert chosen(*looks[2:], expected=ONE) == "c"
    assert voters_among(looks, looks[1].node) == [1, 2, 3]
    assert voters_among(looks, looks[3].node) == []


def test_a_copy_counts_only_under_the_number_whose_it_is() -> None:
    looks = [voter(2, 9, label="3"), voter(4, 1)]
    assert chosen(*looks, expected=ONE) == "d"
    assert voters_among(looks, looks[1].node) == [4]


def test_copies_of_another_cluster_do_not_vote() -> None:
    looks = [voter(1, 4), voter(2, 9, cluster_id=OTHER)]
    assert chosen(*looks, expected=ONE) == "a"
    assert voters_among(looks, looks[0].node) == [1]


@pytest.fixture
def homes(monkeypatch: pytest.MonkeyPatch) -> list[Home | str]:
    """What each look at the nodes finds, in order, or why it finds nothing; the last one stays."""
    found: list[Home | str] = []

    def look_at_nodes(*_of_what: Any, **_options: Any) -> Home:
        now = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(now, str):
            raise ConnectionFailedError(now)
        return now

    monkeypatch.setattr(home, "find_home", look_at_nodes)
    monkeypatch.setattr(home, "GATHER_ATTEMPTS", 2)
    monkeypatch.setattr(home, "GATHER_RETRY_S", 0)
    return found


def home_of(*voters: int) -> Home:
    return Home(
        cluster_id=ONE, broker_id=2, data_dir="/data", pin=Pin(BY_LABEL, "2"), voters=voters
    )


@pytest.mark.parametrize("cluster_id", [ONE, None])
def test_a_log_is_started_when_two_of_its_voters_are_there(
    homes: list[Home | str], cluster_id: str | None
) -> None:
    homes += [home_of(2), home_of(2, 3)]
    assert home.wait_for_home("/data", None, cluster_id=cluster_id).voters == (2, 3)


def test_a_cluster_that_has_to_be_there_is_waited_for(homes: list[Home | str]) -> None:
    homes += ["no node has it", home_of()]
    assert home.wait_for_home("/data", None, cluster_id=ONE) == home_of()
    homes[:] = ["no node has it", home_of()]
    with pytest.raises(ConnectionFailedError, match="no node has it"):
        home.wait_for_home("/data", None, cluster_id=None)


@pytest.mark.parametrize(
    ("found", "text"),
    [(home_of(2), "only broker 2 is up .* it takes 2"), ("no node has it", "no node has it")],
)
def test_who_waits_in_vain_is_told_for_whom(
    homes: list[Home | str], found: Home | str, text: str
) -> None:
    homes += [found]
    with pytest.raises(ConnectionFailedError, match=text):
        home.wait_for_home("/data", None, cluster_id=ONE)
