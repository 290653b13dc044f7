"""What the next open makes of each state that a replacement can be left in."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.segments.swap import complete_swaps

FINAL = {
    "00000000000000000000.index",
    "00000000000000000000.log",
    "00000000000000000000.timeindex",
    "00000000000000000000.txnindex",
    "00000000000000000030.log",
    "leader-epoch-checkpoint",
}


@pytest.fixture
def directory(tmp_path: Path, make_batch) -> Path:
    """Segments 0, 10 and 20, of which a cleaned one has been made, and 30."""
    for base in (0, 10, 20, 30):
        (tmp_path / f"{base:020d}.log").write_bytes(make_batch(base, 10))
        if base < 30:
            for suffix in ("index", "timeindex", "txnindex"):
                (tmp_path / f"{base:020d}.{suffix}").write_bytes(b"old")
    (tmp_path / "leader-epoch-checkpoint").write_bytes(b"")
    return tmp_path


def place(directory: Path, make_batch, *, log: str, indexes: str) -> None:
    name = directory / f"{0:020d}"
    Path(f"{name}.log{log}").write_bytes(make_batch(5, 5) + make_batch(20, 10))
    for suffix in ("index", "timeindex", "txnindex"):
        Path(f"{name}.{suffix}{indexes}").write_bytes(b"new")


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.parametrize("indexes", [".cleaned", ".swap"])
def test_cleaned_segment_before_the_commit_is_removed(directory, filesystem, make_batch, indexes):
    before = names(directory)
    place(directory, make_batch, log=".cleaned", indexes=indexes)
    complete_swaps(filesystem, directory)
    assert names(directory) == before
    assert (directory / f"{0:020d}.txnindex").read_bytes() == b"old"


@pytest.mark.parametrize("deleted", [[], [10], [10, 20]])
@pytest.mark.parametrize("indexes", [".swap", ""])
def test_committed_replacement_is_finished(directory, filesystem, make_batch, deleted, indexes):
    place(directory, make_batch, log=".swap", indexes=indexes)
    for base in deleted:
        path = directory / f"{base:020d}.log"
        path.rename(f"{path}.deleted")
    complete_swaps(filesystem, directory)
    assert names(directory) == FINAL
    assert (directory / f"{0:020d}.txnindex").read_bytes() == b"new"
    assert (directory / f"{0:020d}.log").stat().st_size == 200


def test_left_over_deleted_files_are_removed(directory, filesystem):
    before = names(directory)
    (directory / f"{5:020d}.log.deleted").write_bytes(b"x")
    complete_swaps(filesystem, directory)
    assert names(directory) == before


def test_damaged_swap_is_refused_by_name(directory, filesystem, make_batch):
    place(directory, make_batch, log=".swap", indexes=".swap")
    path = directory / f"{0:020d}.log.swap"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptDataError, match=path.name):
        complete_swaps(filesystem, directory)
    assert (directory / f"{10:020d}.log").exists()
