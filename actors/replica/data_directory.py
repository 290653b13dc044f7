"""The identity of a data directory: its cluster and broker, in ``meta.properties``.

Nothing founds a cluster or leads a partition in a directory of another owner. The launcher prepares
the directory (``prepare``) before any actor runs; an actor only reads the identity. So an actor
that Ray restarts on another disk, or on an unmounted one, finds nothing to lead.

While a cluster is being founded its directory says so (``is_founding``); only then may a metadata
log begin. The mark is removed once the first record of that log is durable.

A second file of the directory has the durable state of a voter of the metadata log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from oncelog.actors.protocol.cluster.cluster_records import ClusterFounded, decode_cluster_record
from oncelog.actors.protocol.cluster.quorum import VoterState
from oncelog.actors.protocol.messages.brokers import Disk
from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.side_files import LOCK_FILE, PARTITION_METADATA_FILE
from oncelog.storage.model import CLUSTER_METADATA_TOPIC
from oncelog.storage.records.batch import iterate_batches
from oncelog.storage.records.codec import decode_records

IDENTITY_FILE: Final = "meta.properties"
"""The identity file of a data directory; Kafka's name and format."""

METADATA_LOG: Final = f"{CLUSTER_METADATA_TOPIC}-0"
LOG_SUFFIX: Final = ".log"
_VERSION: Final = "0"
_FURTHER: Final = "further."
_EPOCH: Final = "broker.epoch"

NO_BROKER_EPOCH: Final = -1
"""The broker epoch of a directory that has none yet."""


class MissingLogError(Exception):
    """The log should be here and is missing; the replica's start is retried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryIdentity:
    """The identity of a data directory. ``is_founding``: its metadata log may begin.

    ``directory_id`` is random and permanent; "" in a directory of an earlier build. ``is_further``:
    it is not the broker's own directory, which lists the further ones in ``further``, as (id,
    path). ``broker_epoch`` is the newest that the controller gave the broker with this directory;
    an older copy has an older one.
    """

    cluster_id: str
    broker_id: int
    directory_id: str = ""
    is_founding: bool = False
    is_further: bool = False
    further: tuple[tuple[str, str], ...] = ()
    broker_epoch: int = NO_BROKER_EPOCH

    @property
    def disk(self) -> Disk:
        """The identity as told to other actors."""
        return Disk(directory_id=self.directory_id, broker_epoch=self.broker_epoch)

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        lines = [
            f"version={_VERSION}",
            f"broker.id={self.broker_id}",
            f"cluster.id={self.cluster_id}",
            *([f"directory.id={self.directory_id}"] if self.directory_id else []),
            *([f"{_EPOCH}={self.broker_epoch}"] if self.broker_epoch != NO_BROKER_EPOCH else []),
            *(["founding=true"] if self.is_founding else []),
            *(["further=true"] if self.is_further else []),
            *(f"{_FURTHER}{one}={quote(path)}" for one, path in self.further),
        ]
        return "".join(f"{line}\n" for line in lines).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> DirectoryIdentity:
        """Read the file's bytes; lines with ``#`` are comments. CorruptDataError if it cannot."""
        try:
            lines = [line.strip() for line in data.decode("ascii").splitlines()]
            fields = dict(line.split("=", 1) for line in lines if line and line[0] != "#")
            if fields["version"] != _VERSION or not fields["cluster.id"]:
                raise CorruptDataError(
                    f"{IDENTITY_FILE} is of another version, or names no cluster"
                )
            return cls(
                cluster_id=fields["cluster.id"],
                broker_id=int(fields["broker.id"]),
                directory_id=fields.get("directory.id", ""),
                broker_epoch=int(fields.get(_EPOCH, NO_BROKER_EPOCH)),
                is_founding=fields.get("founding") == "true",
                is_further=fields.get("further") == "true",
                further=tuple(
                    (name.removeprefix(_FURTHER), unquote(path))
                    for name, path in fields.items()
                    if name.startswith(_FURTHER)
                ),
            )
        except (KeyError, ValueError) as error:
            raise CorruptDataError(f"{IDENTITY_FILE} is unreadable: {error!r}") from None


def read_identity(filesystem: FileSystem, data_dir: Path) -> DirectoryIdentity | None:
    """The directory's identity; ``None`` without the file. OSError, CorruptDataError."""
    try:
        return DirectoryIdentity.from_bytes(filesystem.read_whole(data_dir / IDENTITY_FILE))
    except FileNotFoundError:
        return None


def write_identity(filesystem: FileSystem, data_dir: Path, identity: DirectoryIdentity) -> None:
    """Write the identity, durably."""
    filesystem.write_atomically(data_dir / IDENTITY_FILE, identity.to_bytes())


def prepare(
    filesystem: FileSystem, data_dir: Path, *, broker_id: int, new_cluster_id: str
) -> DirectoryIdentity:
    """The directory's identity; an empty one is claimed for a new cluster, to be founded in it.

    One of an earlier build, without the file, belongs to the cluster named in its metadata log.
    Durable on return. CorruptDataError for a directory that has logs but no metadata log: part of
    it is missing, and a new cluster would mistake the rest for its own. OSError.
    """
    filesystem.make_directory(data_dir)
    lock = filesystem.lock(data_dir / LOCK_FILE)
    try:
        identity = read_identity(filesystem, data_dir)
        if identity is None:
            cluster_id = _founded(filesystem, data_dir)
            if cluster_id is None:
                refuse_leftovers(filesystem, data_dir)
            identity = DirectoryIdentity(
                cluster_id=cluster_id or new_cluster_id,
                broker_id=broker_id,
                directory_id="" if cluster_id else founders_directory(new_cluster_id),
                is_founding=cluster_id is None,
            )
            write_identity(filesystem, data_dir, identity)
        if identity.is_further:
            raise CorruptDataError(further_first(data_dir))
        return identity
    finally:
        lock.release()


def founders_directory(cluster_id: str) -> str:
    """The id of the directory in which a cluster was founded; all others are random."""
    return cluster_id


def join(
    filesystem: FileSystem,
    data_dir: Path,
    *,
    cluster_id: str,
    broker_id: int,
    new_directory_id: str,
) -> DirectoryIdentity:
    """The directory's identity; an empty one is claimed for this broker. Durable on return.

    CorruptDataError for one that has logs but no identity, or another cluster's or broker's.
    OSError.
    """
    filesystem.make_directory(data_dir)
    lock = filesystem.lock(data_dir / LOCK_FILE)
    try:
        identity = read_identity(filesystem, data_dir)
        if identity is None:
            refuse_leftovers(filesystem, data_dir)
            identity = DirectoryIdentity(cluster_id=cluster_id, broker_id=broker_id)
        refused = _difference(data_dir, identity, cluster_id=cluster_id, broker_id=broker_id)
        if refused is not None:
            raise CorruptDataError(refused)
        if not identity.directory_id:
            identity = replace(identity, directory_id=new_directory_id)
            write_identity(filesystem, data_dir, identity)
        return identity
    finally:
        lock.release()


def keep_epoch(filesystem: FileSystem, data_dir: Path, broker_epoch: int) -> Disk:
    """Write down the epoch that the broker got with this directory. Durable on return.

    OSError; CorruptDataError if the directory has no identity.
    """
    lock = filesystem.lock(data_dir / LOCK_FILE)
    try:
        identity = read_identity(filesystem, data_dir)
        if identity is None:
            raise CorruptDataError(f"{data_dir} has no {IDENTITY_FILE} any more")
        if identity.broker_epoch != broker_epoch:
            identity = replace(identity, broker_epoch=broker_epoch)
            write_identity(filesystem, data_dir, identity)
        return identity.disk
    finally:
        lock.release()


def owned(
    filesystem: FileSystem, data_dir: Path, *, cluster_id: str, broker_id: int
) -> DirectoryIdentity:
    """The identity of that broker's own directory; MissingLogError if it is not. OSError."""
    wanted = f"cluster {cluster_id}, broker {broker_id}"
    try:
        identity = read_identity(filesystem, data_dir)
    except CorruptDataError as error:
        raise MissingLogError(
            f"cannot tell whether {data_dir} is that of {wanted}: {error}"
        ) from None
    if identity is None:
        raise MissingLogError(
            f"{data_dir} is not the data directory of {wanted}: it has no {IDENTITY_FILE}. Is its "
            "disk mounted, and is this the right node?"
        )
    refused = _difference(data_dir, identity, cluster_id=cluster_id, broker_id=broker_id)
    if refused is not None:
        raise MissingLogError(refused)
    return identity


def _difference(
    data_dir: Path, identity: DirectoryIdentity, *, cluster_id: str, broker_id: int
) -> str | None:
    """Why a directory is not that broker's own; ``None`` if it is."""
    if (identity.cluster_id, identity.broker_id) == (cluster_id, broker_id):
        return further_first(data_dir) if identity.is_further else None
    wanted = f"cluster {cluster_id}, broker {broker_id}"
    found = f"cluster {identity.cluster_id}, broker {identity.broker_id}"
    return f"{data_dir} is that of {found}, not of {wanted}"


def further_first(data_dir: Path) -> str:
    """Why a further directory cannot be the first that ``data_dir`` names."""
    return (
        f"{data_dir} is a further data directory of its broker: name the broker's own first, which "
        "has the list of them"
    )


def has_log(filesystem: FileSystem, directory: Path) -> bool:
    """Whether a partition's directory has any segment."""
    return any(name.endswith(LOG_SUFFIX) for name in filesystem.list_directory(directory))


def _founded(filesystem: FileSystem, data_dir: Path) -> str | None:
    """The cluster named by the first record of the metadata log."""
    directory = data_dir / METADATA_LOG
    segments = [name for name in filesystem.list_directory(directory) if name.endswith(LOG_SUFFIX)]
    if not segments:
        return None
    data = filesystem.read_whole(directory / segments[0])
    for position, header in iterate_batches(data):
        batch = data[position : position + header.size_bytes]
        for record in decode_records(batch, header):
            if record.value is not None:
                founded = decode_cluster_record(record.value)
                if isinstance(founded, ClusterFounded):
                    return founded.cluster_id
        break
    return None


def refuse_leftovers(filesystem: FileSystem, data_dir: Path) -> None:
    """CorruptDataError if there are logs in a directory that says nothing of itself. OSError."""
    logs = [
        name
        for name in filesystem.list_directory(data_dir)
        if filesystem.exists(data_dir / name / PARTITION_METADATA_FILE)
        and has_log(filesystem, data_dir / name)
        and name != METADATA_LOG
    ]
    if logs:
        raise CorruptDataError(
            f"{data_dir} has logs ({logs[0]}{', ...' if len(logs) > 1 else ''}) but neither "
            f"{IDENTITY_FILE} nor a metadata log ({METADATA_LOG}): put them back, or give an empty "
            "directory"
        )


VOTER_FILE: Final = "quorum-state"
"""The voter file, in the data directory, so on the same disk; Kafka's name."""

_VOTER_FILE_VERSION: Final = 1


class _Contents(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    version: int = _VOTER_FILE_VERSION
    epoch: int
    voted_for: int
    is_copied: bool


def read_voter_state(filesystem: FileSystem, data_dir: Path) -> VoterState | None:
    """The content of the voter file; None without one. OSError, CorruptDataError."""
    try:
        data = filesystem.read_whole(data_dir / VOTER_FILE)
    except FileNotFoundError:
        return None
    try:
        found = msgspec.json.decode(data, type=_Contents)
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"{data_dir / VOTER_FILE} is unreadable: {error}") from None
    if found.version != _VOTER_FILE_VERSION:
        raise CorruptDataError(f"{data_dir / VOTER_FILE} is of version {found.version}")
    return VoterState(epoch=found.epoch, voted_for=found.voted_for, is_copied=found.is_copied)


def write_voter_state(filesystem: FileSystem, data_dir: Path, state: VoterState) -> None:
    """Replace the file, durably. OSError."""
    contents = _Contents(epoch=state.epoch, voted_for=state.voted_for, is_copied=state.is_copied)
    filesystem.write_atomically(data_dir / VOTER_FILE, msgspec.json.encode(contents) + b"\n")
