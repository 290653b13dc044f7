"""The helper that damages directories does what it says, to one file, on any file system."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from crash_disk import CrashDisk
from file_damage import Damage, DamagedKind, contents, damage, names_of

from oncelog.storage.disk.file_system import RealFileSystem

NAMES = ["00000000000000000000", "00000000000000000040"]


def fill(filesystem, directory: Path) -> dict[str, bytes]:
    filesystem.make_directory(directory)
    names = [stem + suffix for stem in NAMES for suffix in (".log", ".index")]
    for name in [*names, "leader-epoch-checkpoint"]:
        filesystem.write_atomically(directory / name, name.encode() * 400)
    return contents(filesystem, directory)


@pytest.mark.parametrize("how", Damage)
@pytest.mark.parametrize("is_real", [True, False])
def test_one_file_is_damaged_and_no_other(how, is_real, tmp_path, seed):
    filesystem = RealFileSystem() if is_real else CrashDisk()
    directory = (tmp_path if is_real else Path("/data")) / "flights-0"
    before = fill(filesystem, directory)
    older = {name: data[:7] for name, data in before.items()}
    done = damage(filesystem, directory, DamagedKind.INDEX, how, Random(seed), older=older)
    if how is Damage.UNREADABLE:
        assert (done is None) is is_real
        assert contents(filesystem, directory) == before
        return
    assert done is not None
    after = contents(filesystem, directory)
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed == {done.path.name}
    assert done.path.suffix == ".index"


def test_what_is_not_there_is_not_damaged():
    disk, directory = CrashDisk(), Path("/data/flights-0")
    before = fill(disk, directory)
    assert damage(disk, directory, DamagedKind.TXN_INDEX, Damage.FLIPPED, Random(0)) is None
    assert contents(disk, directory) == before


def test_sealed_and_active_segments_are_told_apart():
    names = [stem + ".log" for stem in NAMES]
    assert names_of(names, DamagedKind.INDEX, is_sealed=True) == [NAMES[0] + ".index"]
    assert names_of(names, DamagedKind.INDEX, is_sealed=False) == [NAMES[1] + ".index"]


def test_what_cannot_be_read_is_so_in_later_lives_until_it_is_written_again():
    disk, directory = CrashDisk(), Path("/data/flights-0")
    fill(disk, directory)
    done = damage(disk, directory, DamagedKind.INDEX, Damage.UNREADABLE, Random(0))
    assert done is not None
    later = disk.after_kill()
    handle = later.open(done.path, create=False)
    with pytest.raises(OSError, match="bad sector"):
        handle.read(done.position, 1)
    with pytest.raises(OSError, match="bad sector"):
        later.read_whole(done.path)
    handle.truncate(0)
    handle.append((b"again",))
    assert later.read_whole(done.path) == b"again"
