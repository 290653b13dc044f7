"""Records of the cluster metadata log: msgpack maps, each with its kind and version.

A reader skips an unknown kind or version only if the record is marked ``optional``. So far none is,
so an unknown one counts as corrupt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import msgpack
import msgspec
from msgspec import structs

from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.base import ReplyT
from oncelog.storage.exceptions import CorruptDataError

VERSION: Final = 1

SNAPSHOT_PART_BYTES: Final = 65_536
"""Bytes of records in one part of a snapshot, unless a single record is larger."""


_SECRETS: Final = frozenset({"cluster_key", "previous_key", "records", "users"})


class _Secretive(msgspec.Struct, frozen=True, kw_only=True):
    """A record whose text, which may be logged, leaves out keys."""

    def __repr__(self) -> str:
        names = [name for name in self.__struct_fields__ if name not in _SECRETS]
        told = (f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({', '.join(told)})"


class ClusterFounded(_Secretive, frozen=True, kw_only=True):
    """The first record: the cluster's identity and its immutable properties."""

    cluster_id: str
    cluster_key: bytes
    transaction_state_partitions: int
    offsets_partitions: int


class ClusterKeyRotated(_Secretive, frozen=True, kw_only=True):
    """A new ticket key. ``rotated_ms`` is by the controller's clock; versions count from 0."""

    key_version: int
    cluster_key: bytes
    rotated_ms: int


class BrokerRegistered(msgspec.Struct, frozen=True, kw_only=True):
    """A broker and the data directory it writes to; replaces an earlier registration of it.

    ``directory_id`` is in a file there, "" if the record is older than such ids. ``broker_epoch``
    increases over all registrations of all brokers. ``disk_epoch`` is the newest epoch known to be
    written in that directory; an older copy of the directory has an older one. ``boot_id`` is the
    operating system's at that time, "" if unknown.
    """

    broker_id: int
    data_dir: str
    directory_id: str = ""
    rack: str = ""
    broker_epoch: int = 0
    is_fenced: bool = False
    disk_epoch: int = -1
    boot_id: str = ""


class BrokerChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A registered broker was fenced or unfenced, or a drain began or was cancelled.

    ``disk_epoch``: as in ``BrokerRegistered``, if it is newer.
    """

    broker_id: int
    broker_epoch: int
    is_fenced: bool
    is_draining: bool
    disk_epoch: int = -1


class TopicCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, with the replicas (broker ids, preferred leader first) of each partition.

    ``hosts`` are those of the replicas, in the same order; empty: every replica has its own actor.
    ``replication_factor`` is how many replicas each partition gets once there are brokers; 0: as
    many as it has.
    """

    name: str
    topic_id: str
    replicas: tuple[tuple[int, ...], ...]
    settings: tuple[tuple[str, str], ...]
    hosts: tuple[tuple[int, ...], ...] = ()
    replication_factor: int = 0


class TopicConfigured(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a topic that differ from the default; replaces earlier ones."""

    topic_id: str
    settings: tuple[tuple[str, str], ...]


class PartitionsCreated(msgspec.Struct, frozen=True, kw_only=True):
    """More partitions of a topic, from ``first_partition`` on; see ``TopicCreated``."""

    topic_id: str
    first_partition: int
    replicas: tuple[tuple[int, ...], ...]
    hosts: tuple[tuple[int, ...], ...] = ()
    replication_factor: int = 0


class TopicDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted topic; its name may be used again, its id never is."""

    topic_id: str


class LeaderElected(msgspec.Struct, frozen=True, kw_only=True):
    """A new leader epoch of one partition, given to one start of one replica.

    ``incarnation`` is "" if the controller elected by itself. ``leader`` -1: nobody could be
    elected; members of ``isr`` can be when they are back. For ``lost`` see ``IsrChanged``.
    """

    topic_id: str
    partition: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    incarnation: str
    lost: int = -1


class IsrChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The in-sync replicas under the current leader; ``partition_version`` is the new one.

    ``started``, if not -1, is a broker whose replica has started for the first time. ``lost`` is
    one whose replica may have lost data: it leaves the ELR. ``follows_minimum``: the leader uses
    the current ``min_insync_replicas``.
    """

    topic_id: str
    partition: int
    partition_version: int
    isr: tuple[int, ...]
    started: int = -1
    lost: int = -1
    follows_minimum: bool = False


class ReplicasChanged(msgspec.Struct, frozen=True, kw_only=True):
    """All replicas of a partition after a step of a reassignment; see ``TopicCreated``.

    ``adding`` and ``removing`` are among ``replicas`` until the reassignment is complete. For
    ``replication_factor`` see ``TopicCreated``; 0: the number of replicas at its end.
    """

    topic_id: str
    partition: int
    partition_version: int
    replicas: tuple[int, ...]
    hosts: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    replication_factor: int = 0


class ProducerIdsAllocated(msgspec.Struct, frozen=True, kw_only=True):
    """Producer ids below ``next_producer_id`` have been allocated."""

    next_producer_id: int


class ControllerElected(msgspec.Struct, frozen=True, kw_only=True):
    """The first record of an elected controller: once it is committed, so is everything before.

    A controller that is the only voter logs none.
    """

    broker_id: int
    epoch: int


class VotersChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers that replicate this log and elect the controller, from this record on.

    Before the first such record the broker that founded the cluster is the only one.
    """

    voters: tuple[int, ...]


class AccessChanged(_Secretive, frozen=True, kw_only=True):
    """Users and ACLs that were added, changed or removed; ``access_version`` is the new one.

    ``users`` are rows of name, salt, iterations, stored key, server key. ``acls`` are rows of
    principal, kind of resource, name, is a prefix, operation, is allowed, host. ``limits`` are rows
    of principal and the fields of ``Limits``. Unless ``is_on`` is ``None``, it and ``super_users``
    replace the former ones.
    """

    access_version: int
    is_on: bool | None = None
    super_users: tuple[str, ...] = ()
    users: tuple[tuple[str, bytes, int, bytes, bytes], ...] = ()
    removed_users: tuple[str, ...] = ()
    acls: tuple[tuple[Any, ...], ...] = ()
    removed_acls: tuple[tuple[Any, ...], ...] = ()
    limits: tuple[tuple[Any, ...], ...] = ()
    removed_limits: tuple[str, ...] = ()


class TopicSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's state; each row of ``partitions`` has the values of ``fields``, in that order."""

    name: str
    topic_id: str
    settings: tuple[tuple[str, str], ...]
    settings_version: int
    fields: tuple[str, ...]
    partitions: tuple[tuple[Any, ...], ...]


class ClusterSnapshot(_Secretive, frozen=True, kw_only=True):
    """State that no other record of a snapshot has: ticket keys, counters, deleted topics."""

    key_version: int
    cluster_key: bytes
    previous_key: bytes
    rotated_ms: int
    election_count: int
    deleted_topic_ids: tuple[str, ...]


class SnapshotPart(_Secretive, frozen=True, kw_only=True):
    """Part of a snapshot: records that give the state at the offset where part 0 begins.

    The log may begin there. A reader that has applied everything before skips all parts. Parts
    without the last one are from a controller that was interrupted; its successor writes a whole
    snapshot.
    """

    part: int
    is_last: bool
    records: tuple[bytes, ...]


ClusterRecord: TypeAlias = (
    ClusterFounded
    | ClusterKeyRotated
    | BrokerRegistered
    | BrokerChanged
    | TopicCreated
    | TopicConfigured
    | PartitionsCreated
    | TopicDeleted
    | LeaderElected
    | IsrChanged
    | ReplicasChanged
    | ProducerIdsAllocated
    | ControllerElected
    | VotersChanged
    | AccessChanged
    | TopicSnapshot
    | ClusterSnapshot
    | SnapshotPart
)

_KINDS: Final[dict[str, type[ClusterRecord]]] = {
    "cluster_founded": ClusterFounded,
    "cluster_key_rotated": ClusterKeyRotated,
    "broker_registered": BrokerRegistered,
    "broker_changed": BrokerChanged,
    "topic_created": TopicCreated,
    "topic_configured": TopicConfigured,
    "partitions_created": PartitionsCreated,
    "topic_deleted": TopicDeleted,
    "leader_elected": LeaderElected,
    "isr_changed": IsrChanged,
    "replicas_changed": ReplicasChanged,
    "producer_ids_allocated": ProducerIdsAllocated,
    "controller_elected": ControllerElected,
    "voters_changed": VotersChanged,
    "access_changed": AccessChanged,
    "topic_snapshot": TopicSnapshot,
    "cluster_snapshot": ClusterSnapshot,
    "snapshot_part": SnapshotPart,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}

ELECTORATE_KINDS: Final = (b"broker_registered", b"broker_changed", b"voters_changed")
"""Bytes that every record naming voters or disks contains; other records may too."""


def decision(reply: ReplyT, *records: ClusterRecord) -> Decision[ReplyT]:
    """Answer with ``reply`` once ``records`` are committed and applied."""
    return Decision(reply=reply, records=tuple(encode_cluster_record(r) for r in records))


def encode_cluster_record(record: ClusterRecord) -> LogRecord:
    """Encode a record of the metadata log; it has no key, since the log is not compacted."""
    fields = structs.asdict(record)
    value = msgpack.packb({"kind": _NAMES[type(record)], "version": VERSION, **fields})
    return LogRecord(None, value)


def decode_cluster_record(value: bytes) -> ClusterRecord:
    """Read a record back; raises ``CorruptDataError`` for an unknown kind, version or field."""
    try:
        fields: dict[str, Any] = msgpack.unpackb(value, use_list=False)
        kind = _KINDS[fields.pop("kind")]
        version = fields.pop("version")
        if version != VERSION:
            raise CorruptDataError(f"cluster metadata record of version {version}, known is 1")
        return kind(**fields)
    except (ValueError, KeyError, TypeError, AttributeError, msgpack.UnpackException) as error:
        # The text of such an error may have what was read, and so keys.
        reason = type(error).__name__
        raise CorruptDataError(f"cluster metadata record is unreadable: {reason}") from None


def with_parts_opened(record: ClusterRecord) -> Iterator[ClusterRecord]:
    """The record itself, or the records in it if it is part of a snapshot."""
    if isinstance(record, SnapshotPart):
        yield from map(decode_cluster_record, record.records)
    else:
        yield record


def snapshot_parts(records: Iterable[ClusterRecord]) -> list[LogRecord]:
    """The records of a state as parts, each to be a batch of its own."""
    parts: list[list[bytes]] = [[]]
    size_bytes = 0
    for record in records:
        value = encode_cluster_record(record).value or b""
        if parts[-1] and size_bytes + len(value) > SNAPSHOT_PART_BYTES:
            parts.append([])
            size_bytes = 0
        parts[-1].append(value)
        size_bytes += len(value)
    last = len(parts) - 1
    return [
        encode_cluster_record(
            SnapshotPart(part=number, is_last=number == last, records=tuple(part))
        )
        for number, part in enumerate(parts)
    ]
