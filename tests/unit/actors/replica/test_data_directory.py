"""Whose a data directory is: what is prepared, what is refused, and what is never made."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.actors.protocol.cluster.cluster_records import ClusterFounded, encode_cluster_record
from oncelog.actors.replica.data_directory import (
    IDENTITY_FILE,
    DirectoryIdentity,
    MissingLogError,
    owned,
    prepare,
    read_identity,
    write_identity,
)
from oncelog.storage.disk.file_system import DirectoryLockedError, RealFileSystem
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.codec import encode_records

DISK = RealFileSystem()
ONE, OTHER = "1" * 32, "2" * 32


def prepared(directory: Path, new_cluster_id: str = ONE) -> DirectoryIdentity:
    return prepare(DISK, directory, broker_id=1, new_cluster_id=new_cluster_id)


def refused(directory: Path) -> str | None:
    try:
        owned(DISK, directory, cluster_id=ONE, broker_id=1)
    except MissingLogError as error:
        return str(error)
    return None


def test_an_empty_directory_becomes_that_of_a_cluster_to_be_founded(tmp_path: Path) -> None:
    directory = tmp_path / "new"
    identity = prepared(directory)
    assert identity == DirectoryIdentity(
        cluster_id=ONE, broker_id=1, directory_id=ONE, is_founding=True
    )
    assert prepared(directory, OTHER) == identity
    assert refused(directory) is None
    text = f"version=0\nbroker.id=1\ncluster.id={ONE}\ndirectory.id={ONE}\nfounding=true\n"
    assert (directory / IDENTITY_FILE).read_text() == text


def test_a_directory_of_an_earlier_build_is_that_of_the_cluster_its_log_tells_of(
    tmp_path: Path,
) -> None:
    founded = ClusterFounded(
        cluster_id=OTHER,
        cluster_key=b"k" * 32,
        transaction_state_partitions=1,
        offsets_partitions=1,
    )
    record = encode_cluster_record(founded)
    batch = encode_records(
        [(record.key, record.value, 0, ())],
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        is_transactional=False,
    )
    log = tmp_path / "__cluster_metadata-0" / f"{0:020d}.log"
    log.parent.mkdir()
    log.write_bytes(bytes(batch))
    assert prepared(tmp_path) == DirectoryIdentity(cluster_id=OTHER, broker_id=1)
    log.write_bytes(b"\0" * 200)
    (tmp_path / IDENTITY_FILE).unlink()
    with pytest.raises(CorruptDataError):
        prepared(tmp_path)


def test_logs_without_a_metadata_log_are_not_made_another_clusters(tmp_path: Path) -> None:
    partition = tmp_path / "flights-0"
    partition.mkdir()
    (partition / "partition.metadata").write_text("version: 0\ntopic_id: a\n")
    (partition / f"{0:020d}.log").write_bytes(b"")
    with pytest.raises(CorruptDataError, match="flights-0"):
        prepared(tmp_path)
    assert not (tmp_path / IDENTITY_FILE).exists()


def test_only_one_program_prepares_a_directory(tmp_path: Path) -> None:
    lock = DISK.lock(tmp_path / ".lock")
    with pytest.raises(DirectoryLockedError):
        prepared(tmp_path)
    lock.release()
    assert prepared(tmp_path).is_founding


def test_a_directory_that_is_missing_empty_or_anothers_is_refused(tmp_path: Path) -> None:
    assert f"no {IDENTITY_FILE}" in str(refused(tmp_path / "not-mounted"))
    assert f"no {IDENTITY_FILE}" in str(refused(tmp_path))
    assert not (tmp_path / "not-mounted").exists()
    for found in (
        DirectoryIdentity(cluster_id=OTHER, broker_id=1),
        DirectoryIdentity(cluster_id=ONE, broker_id=2),
    ):
        write_identity(DISK, tmp_path, found)
        assert f"cluster {found.cluster_id}, broker {found.broker_id}, not of" in str(
            refused(tmp_path)
        )


@pytest.mark.parametrize(
    "text", ["", "\0" * 60, "version=1\nnode.id=1\ncluster.id=a\n", "version=0\nbroker.id=x\n", "é"]
)
def test_an_unreadable_identity_is_refused_and_not_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / IDENTITY_FILE).write_text(text)
    assert "cannot tell whether" in str(refused(tmp_path))
    with pytest.raises(CorruptDataError):
        prepared(tmp_path)
    assert (tmp_path / IDENTITY_FILE).read_text() == text


def test_comments_and_a_founded_cluster_are_read_back(tmp_path: Path) -> None:
    identity = DirectoryIdentity(cluster_id=ONE, broker_id=1)
    write_identity(DISK, tmp_path, identity)
    path = tmp_path / IDENTITY_FILE
    path.write_text("# by hand\n" + path.read_text())
    assert read_identity(DISK, tmp_path) == identity
