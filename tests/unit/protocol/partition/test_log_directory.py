"""In which data directory a replica is: the table of the module, row by row."""

from __future__ import annotations

import pytest

from oncelog.actors.protocol.partition.log_directory import (
    Assignment,
    LogDirectory,
    NoDirectory,
    choose_directory,
)

OURS, DELETED = "a" * 32, "d" * 32


def directory(one: str, topic_id: str | None = None, count: int = 0) -> LogDirectory:
    return LogDirectory(directory_id=one, topic_id=topic_id, replica_count=count)


def chosen(
    *directories: LogDirectory,
    away: set[str] = frozenset(),  # type: ignore[assignment]
    assigned: str = "",
    of: str = OURS,
    is_in_sync: bool = False,
) -> str | NoDirectory:
    found = choose_directory(
        directories,
        away,
        Assignment(directory_id=assigned, topic_id=of) if assigned else None,
        topic_id=OURS,
        is_in_sync=is_in_sync,
    )
    return found if isinstance(found, NoDirectory) else found.directory_id


@pytest.mark.parametrize("is_in_sync", [False, True])
def test_a_replica_stays_where_it_was_assigned(is_in_sync: bool) -> None:
    both = directory("x", OURS), directory("y", count=9)
    assert chosen(*both, assigned="y", is_in_sync=is_in_sync) == "y"


@pytest.mark.parametrize("is_in_sync", [False, True])
def test_what_is_in_a_directory_that_is_away_is_made_nowhere_else(is_in_sync: bool) -> None:
    there = directory("x"), directory("z", OURS)
    found = chosen(*there, away={"y"}, assigned="y", is_in_sync=is_in_sync)
    assert found is NoDirectory.AWAY


def test_what_was_on_a_disk_that_was_replaced_is_copied_anew_unless_it_is_in_sync() -> None:
    there = directory("x", count=2), directory("z", count=1)
    assert chosen(*there, assigned="y") == "z"
    assert chosen(*there, assigned="y", is_in_sync=True) is NoDirectory.LOST
    stale = directory("x"), directory("z", OURS)
    assert chosen(*stale, assigned="y", is_in_sync=True) is NoDirectory.LOST
    assert chosen(*stale, assigned="y") == "z"


@pytest.mark.parametrize("is_in_sync", [False, True])
def test_an_unassigned_replica_is_where_its_files_are(is_in_sync: bool) -> None:
    there = directory("x"), directory("y", OURS, 9), directory("z", OURS)
    assert chosen(*there, is_in_sync=is_in_sync) == "y"


def test_a_log_that_was_in_sync_and_is_nowhere_is_lost() -> None:
    assert chosen(directory("x"), directory("y", DELETED), is_in_sync=True) is NoDirectory.LOST


@pytest.mark.parametrize(("counts", "wanted"), [((1, 1), "x"), ((2, 1), "y"), ((0, 5), "x")])
def test_a_new_replica_goes_where_the_fewest_are(counts: tuple[int, int], wanted: str) -> None:
    there = directory("x", count=counts[0]), directory("y", count=counts[1])
    assert chosen(*there) == wanted
    assert chosen(*there, away={"z"}) == wanted


def test_a_deleted_topic_of_its_name_is_followed_where_that_was() -> None:
    there = directory("x"), directory("y", DELETED, 9)
    assert chosen(*there) == "y"
    assert chosen(*there, away={"z"}, assigned="z", of=DELETED) == "y"
    assert chosen(directory("x"), assigned="y", of=DELETED, is_in_sync=True) is NoDirectory.LOST
