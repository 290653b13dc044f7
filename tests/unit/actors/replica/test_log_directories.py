"""Several data directories of a broker: what is taken, refused, missed, and where replicas are."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.actors.config import ReplicaConfig
from oncelog.actors.replica.data_directory import (
    IDENTITY_FILE,
    DirectoryIdentity,
    MissingLogError,
    join,
    owned,
    prepare,
    read_identity,
    write_identity,
)
from oncelog.actors.replica.log_directories import (
    ASSIGNED_DIRECTORY,
    LogDirectories,
    join_further,
    offline_directories,
)
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.side_files import write_topic_id

DISK = RealFileSystem()
CLUSTER, TOPIC_ID = "1" * 32, "a" * 32

Disks = Callable[..., str]


class Broker:
    """Its own directory ``0`` and further ones, in a folder; ``join`` is what its start does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ids = itertools.count(1)
        prepare(DISK, root / "0", broker_id=1, new_cluster_id=CLUSTER)

    def data_dir(self, *names: str) -> str:
        return ",".join(str(self.root / name) for name in ("0", *names))

    def join(self, *names: str) -> str:
        data_dir = self.data_dir(*names)
        join_further(DISK, data_dir, new_directory_id=lambda: f"id{next(self._ids)}")
        return data_dir

    def further(self) -> dict[str, str]:
        identity = read_identity(DISK, self.root / "0")
        assert identity is not None
        return {one: Path(path).name for one, path in identity.further}

    def directories(self, data_dir: str, topic: str) -> LogDirectories:
        """Those of one incarnation of a replica."""
        config = ReplicaConfig(
            topic=topic, partition=0, broker_id=1, data_dir=data_dir, cluster_id=CLUSTER
        )
        return LogDirectories(config, DISK)

    def place(
        self,
        data_dir: str,
        topic: str = "t",
        *,
        topic_id: str = TOPIC_ID,
        in_sync: bool = False,
        by: LogDirectories | None = None,
    ) -> str:
        """Where the replica is, its files made there; the name of the directory."""
        directories = by or self.directories(data_dir, topic)
        own = read_identity(DISK, self.root / "0")
        assert own is not None
        path = directories.place(own, topic_id, is_in_sync=in_sync)
        DISK.make_directory(path)
        write_topic_id(DISK, path, topic_id)
        return path.parent.name


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def test_one_directory_is_as_it_always_was(broker: Broker) -> None:
    before = (broker.root / "0" / IDENTITY_FILE).read_text()
    data_dir = broker.join()
    config = ReplicaConfig(
        topic="t", partition=0, broker_id=1, data_dir=data_dir, cluster_id=CLUSTER
    )
    own = read_identity(DISK, broker.root / "0")
    assert own is not None
    assert not LogDirectories(config, DISK).has_several(own)
    assert (broker.root / "0" / IDENTITY_FILE).read_text() == before
    assert sorted(path.name for path in (broker.root / "0").iterdir()) == [".lock", IDENTITY_FILE]
    assert offline_directories(DISK, data_dir) == {}


def test_a_further_directory_is_named_in_both_and_taken_once(broker: Broker) -> None:
    data_dir = broker.join("ä 1", "2")
    assert broker.further() == {"id1": "ä 1", "id2": "2"}
    assert read_identity(DISK, broker.root / "2") == DirectoryIdentity(
        cluster_id=CLUSTER, broker_id=1, directory_id="id2", is_further=True
    )
    broker.join("ä 1", "2")
    assert broker.further() == {"id1": "ä 1", "id2": "2"}
    assert offline_directories(DISK, data_dir) == {}


@pytest.mark.parametrize(
    ("identity", "told"),
    [
        (DirectoryIdentity(cluster_id="2" * 32, broker_id=1, is_further=True), "2" * 32),
        (DirectoryIdentity(cluster_id=CLUSTER, broker_id=7, is_further=True), "broker 7"),
        (DirectoryIdentity(cluster_id=CLUSTER, broker_id=1), "own data directory of broker 1"),
    ],
)
def test_anothers_directory_is_refused_by_name(
    broker: Broker, identity: DirectoryIdentity, told: str
) -> None:
    (broker.root / "1").mkdir()
    write_identity(DISK, broker.root / "1", identity)
    with pytest.raises(CorruptDataError, match=told) as refused:
        broker.join("1")
    assert str(broker.root / "1") in str(refused.value)
    assert broker.further() == {}


def test_logs_of_nobody_are_refused(broker: Broker) -> None:
    partition = broker.root / "1" / "t-0"
    partition.mkdir(parents=True)
    write_topic_id(DISK, partition, TOPIC_ID)
    (partition / f"{0:020d}.log").write_bytes(b"")
    with pytest.raises(CorruptDataError, match="t-0"):
        broker.join("1")


@pytest.mark.parametrize("other", ["2", "0"])
def test_two_names_of_one_directory_are_refused(broker: Broker, other: str) -> None:
    (broker.root / "2").mkdir()
    (broker.root / "1").symlink_to(broker.root / other)
    with pytest.raises(CorruptDataError, match=str(broker.root / "1")):
        broker.join("2", "1")


def test_a_further_directory_cannot_be_named_first(broker: Broker) -> None:
    broker.join("1")
    path = broker.root / "1"
    with pytest.raises(CorruptDataError, match="own first"):
        prepare(DISK, path, broker_id=1, new_cluster_id=CLUSTER)
    with pytest.raises(CorruptDataError, match="own first"):
        join(DISK, path, cluster_id=CLUSTER, broker_id=1, new_directory_id="x")
    with pytest.raises(MissingLogError, match="own first"):
        owned(DISK, path, cluster_id=CLUSTER, broker_id=1)


def test_new_replicas_are_spread_and_found_again(broker: Broker) -> None:
    alone = broker.join()
    for internal in ("__transaction_state-0", "__consumer_offsets-0", "__cluster_metadata-0"):
        (broker.root / "0" / internal).mkdir()
    for topic in ("a", "b"):
        assert broker.place(alone, topic) == "0"
    data_dir = broker.join("1", "2")
    placed = {topic: broker.place(data_dir, topic) for topic in ("c", "d", "e", "f", "g")}
    assert placed == {"c": "1", "d": "2", "e": "1", "f": "2", "g": "0"}
    again = {topic: broker.place(data_dir, topic, in_sync=True) for topic in placed}
    assert again == placed
    assert broker.place(data_dir, "a", in_sync=True) == "0"
    names = sorted(path.name for path in (broker.root / "0" / ASSIGNED_DIRECTORY).iterdir())
    assert names == ["c-0", "d-0", "e-0", "f-0"]


@pytest.mark.parametrize("failure", ["is gone", "is a file", "has lost its identity"])
def test_a_directory_that_fails_takes_only_what_is_in_it(broker: Broker, failure: str) -> None:
    """Also what is not in sync, as a new copy would be beside the old one once that is back."""
    data_dir = broker.join("1")
    assert [broker.place(data_dir, topic) for topic in ("a", "b")] == ["0", "1"]
    kept = broker.root / "kept"
    (broker.root / "1").rename(kept)
    if failure == "is a file":
        (broker.root / "1").write_text("")
    elif failure == "has lost its identity":
        (broker.root / "1").mkdir()
    if failure != "has lost its identity":
        # An empty directory in its place is another disk, once the broker starts.
        broker.join("1")
    for in_sync in (False, True):
        with pytest.raises(MissingLogError, match=str(broker.root / "1")):
            broker.place(data_dir, "b", in_sync=in_sync)
        assert broker.place(data_dir, "a", in_sync=True) == "0"
    assert list(offline_directories(DISK, data_dir)) == [broker.root / "1"]
    assert broker.place(data_dir, "new") == "0"
    if failure == "is a file":
        (broker.root / "1").unlink()
    elif failure == "has lost its identity":
        shutil.rmtree(broker.root / "1")
    kept.rename(broker.root / "1")
    assert broker.place(data_dir, "b", in_sync=True) == "1"


def test_an_empty_disk_in_its_place_gets_copies_but_no_empty_leader(broker: Broker) -> None:
    """1. Disk 1 is replaced. 2. What is in sync elsewhere is copied. 3. The old disk is back."""
    data_dir = broker.join("1")
    assert [broker.place(data_dir, one) for one in ("a", "b", "c", "d")] == ["0", "1", "0", "1"]
    kept = broker.root / "kept"
    (broker.root / "1").rename(kept)
    (broker.root / "1").mkdir()
    broker.join("1")
    assert broker.further() == {"id2": "1"}
    with pytest.raises(MissingLogError, match="id1"):
        broker.place(data_dir, "b", in_sync=True)
    assert broker.place(data_dir, "d") == "1"
    shutil.rmtree(broker.root / "1")
    kept.rename(broker.root / "1")
    broker.join("1")
    assert broker.place(data_dir, "b", in_sync=True) == "1"
    with pytest.raises(MissingLogError, match="id2"):
        broker.place(data_dir, "d", in_sync=True)


def test_a_directory_that_is_left_out_is_kept_on_the_list_while_it_has_replicas(
    broker: Broker,
) -> None:
    data_dir = broker.join("1", "2")
    assert [broker.place(data_dir, topic) for topic in ("a", "b")] == ["0", "1"]
    shorter = broker.join()
    assert broker.further() == {"id1": "1"}
    with pytest.raises(MissingLogError, match="does not name it"):
        broker.place(shorter, "b")
    (broker.root / "1").rename(broker.root / "3")
    moved = broker.join("3")
    assert broker.place(moved, "b", in_sync=True) == "3"
    assert broker.further() == {"id1": "3"}


@pytest.mark.parametrize(
    ("topic", "wanted"), [("t", True), ("__consumer_offsets", False), ("__cluster_metadata", False)]
)
def test_what_a_program_needs_to_connect_is_in_the_own_directory(
    broker: Broker, topic: str, wanted: bool
) -> None:
    config = ReplicaConfig(
        topic=topic, partition=0, broker_id=1, data_dir=broker.join("1"), cluster_id=CLUSTER
    )
    own = read_identity(DISK, broker.root / "0")
    assert own is not None
    assert LogDirectories(config, DISK).has_several(own) == wanted


def test_what_was_removed_is_assigned_nowhere(broker: Broker) -> None:
    data_dir = broker.join("1")
    assert broker.place(data_dir, "a") == "0"
    placed = broker.directories(data_dir, "b")
    assert broker.place(data_dir, "b", by=placed) == "1"
    assert (placed.is_in_further, placed.is_in_assigned_directory()) == (True, True)
    placed.forget()
    assert list((broker.root / "0" / ASSIGNED_DIRECTORY).iterdir()) == []
    assert not placed.is_in_assigned_directory()
    placed.forget()


def test_a_replica_forgets_nothing_of_where_its_successor_is(broker: Broker) -> None:
    """1. A zombie removes its files. 2. The next topic of the name is placed. 3. It forgets."""
    data_dir = broker.join("1", "2")
    assert broker.place(data_dir, "a") == "0"
    zombie, successor = (broker.directories(data_dir, "b") for _ in range(2))
    assert broker.place(data_dir, "b", by=zombie) == "1"
    shutil.rmtree(broker.root / "1" / "b-0")
    (broker.root / "1" / "c-0").mkdir()
    assert broker.place(data_dir, "b", by=successor, topic_id="b" * 32) == "2"
    zombie.forget()
    assert (zombie.is_in_assigned_directory(), successor.is_in_assigned_directory()) == (
        False,
        True,
    )


def test_what_is_in_the_own_directory_is_assigned_nowhere_and_forgets_nothing(
    broker: Broker,
) -> None:
    data_dir = broker.join("1")
    zombie = broker.directories(data_dir, "a")
    assert broker.place(data_dir, "a", by=zombie) == "0"
    assert (zombie.is_in_further, zombie.is_in_assigned_directory()) == (False, True)
    shutil.rmtree(broker.root / "0" / "a-0")
    (broker.root / "0" / "c-0").mkdir()
    assert broker.place(data_dir, "a", topic_id="b" * 32) == "1"
    zombie.forget()
    assert len(list((broker.root / "0" / ASSIGNED_DIRECTORY).iterdir())) == 1


def test_an_assignment_that_cannot_be_read_is_not_guessed(broker: Broker) -> None:
    data_dir = broker.join("1")
    assert [broker.place(data_dir, topic) for topic in ("a", "b")] == ["0", "1"]
    (broker.root / "0" / ASSIGNED_DIRECTORY / "b-0").write_bytes(b"\xff")
    with pytest.raises(CorruptDataError, match="b-0"):
        broker.place(data_dir, "b")
    broker.join("1")
    assert broker.further() == {"id1": "1"}


def test_disks_that_are_mounted_in_each_others_place_are_known_by_their_ids(
    broker: Broker,
) -> None:
    data_dir = broker.join("1", "2")
    assert [broker.place(data_dir, topic) for topic in ("a", "b", "c")] == ["0", "1", "2"]
    (broker.root / "2").rename(broker.root / "kept")
    (broker.root / "1").rename(broker.root / "2")
    broker.join("1", "2")
    assert broker.place(data_dir, "b", in_sync=True) == "2"
    (broker.root / "kept").rename(broker.root / "1")
    broker.join("1", "2")
    assert broker.place(data_dir, "c", in_sync=True) == "1"
