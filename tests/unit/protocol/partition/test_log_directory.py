"""In which data directory a replica is: the table of the module, row by row."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from oncelog.actors.protocol.partition.log_directory import (
    DirectoryAssignment,
    NoDirectory,
    emptiest,
    possible_directories,
)

OURS, DELETED = "a" * 32, "d" * 32


def chosen(
    found: dict[str, str | None],
    *,
    away: Collection[str] = (),
    assigned: str = "",
    of: str = OURS,
    is_in_sync: bool = False,
) -> str | NoDirectory:
    """The ids that are possible, as one text."""
    possible = possible_directories(
        found,
        away,
        DirectoryAssignment(directory_id=assigned, topic_id=of) if assigned else None,
        topic_id=OURS,
        is_in_sync=is_in_sync,
    )
    return possible if isinstance(possible, NoDirectory) else "".join(possible)


@pytest.mark.parametrize("is_in_sync", [False, True])
def test_a_replica_stays_where_it_was_assigned(is_in_sync: bool) -> None:
    assert chosen({"x": OURS, "y": None}, assigned="y", is_in_sync=is_in_sync) == "y"


@pytest.mark.parametrize("is_in_sync", [False, True])
def test_what_is_in_a_directory_that_is_away_is_made_nowhere_else(is_in_sync: bool) -> None:
    there = {"x": None, "z": OURS}
    found = chosen(there, away={"y"}, assigned="y", is_in_sync=is_in_sync)
    assert found is NoDirectory.AWAY


def test_what_was_on_a_disk_that_was_replaced_is_copied_anew_unless_it_is_in_sync() -> None:
    there = {"x": None, "z": None}
    assert chosen(there, assigned="y") == "xz"
    assert chosen(there, assigned="y", is_in_sync=True) is NoDirectory.LOST
    stale = {"x": None, "z": OURS}
    assert chosen(stale, assigned="y") == "z"
    assert chosen(stale, assigned="y", is_in_sync=True) is NoDirectory.LOST


@pytest.mark.parametrize("is_in_sync", [False, True])
def test_an_unassigned_replica_is_where_its_files_are(is_in_sync: bool) -> None:
    assert chosen({"x": None, "y": OURS, "z": OURS}, is_in_sync=is_in_sync) == "y"


def test_a_log_that_was_in_sync_and_is_nowhere_is_lost() -> None:
    assert chosen({"x": None, "y": DELETED}, is_in_sync=True) is NoDirectory.LOST


def test_a_new_replica_may_be_in_any_directory_that_is_there() -> None:
    assert chosen({"x": None, "y": None}) == "xy"
    assert chosen({"x": None, "y": None}, away={"z"}) == "xy"


@pytest.mark.parametrize(("counts", "wanted"), [((1, 1), "x"), ((2, 1), "y"), ((0, 5), "x")])
def test_the_first_of_those_with_the_fewest_replicas_is_taken(
    counts: tuple[int, int], wanted: str
) -> None:
    assert emptiest(dict(zip("xy", counts, strict=True))) == wanted


def test_a_deleted_topic_of_its_name_is_followed_where_that_was() -> None:
    there = {"x": None, "y": DELETED}
    assert chosen(there) == "y"
    assert chosen(there, away={"z"}, assigned="z", of=DELETED) == "y"
    assert chosen({"x": None}, assigned="y", of=DELETED, is_in_sync=True) is NoDirectory.LOST
