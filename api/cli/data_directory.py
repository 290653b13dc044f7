"""``oncelog dump``, ``accept-cut`` and ``broker-id``: work on a data directory, without a cluster.

``dump`` shows what is in the files of a log, and whether they are consistent. It takes a data
directory, the directory of one partition, or one file. It only reads, needs no cluster and no lock,
and works on the directory of a running actor. Records of internal topics are decoded; the topic
follows from the name of the directory. The cluster key is never shown.

``accept-cut``: an operator lets recovery truncate the end of a log that it refuses to truncate.

``broker-id``: the broker id of a host, chosen once and kept in its data directory. The id must
survive every restart of Ray, and no two hosts may share one. A host without an id derives it from
its own address, which is unique whatever the order in which hosts come and go.

One file: three commands on the same files, none of which calls a cluster.
"""

from __future__ import annotations

import contextlib
import enum
import ipaddress
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec import structs

from oncelog.actors.pin import LOCAL_BROKER_ID
from oncelog.actors.protocol.cluster.cluster_records import (
    AccessChanged,
    SnapshotPart,
    decode_cluster_record,
)
from oncelog.actors.protocol.group import group_records
from oncelog.actors.protocol.group.consumer_protocol import decode_assignment, decode_subscription
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.actors.protocol.queue import share_records
from oncelog.actors.protocol.transaction import transaction_records
from oncelog.actors.protocol.transaction.transaction_state import TransactionMetadata
from oncelog.actors.replica.data_directory import read_identity
from oncelog.api.cli.arguments import Arguments, Command, WholeNumber, argument, flag, option
from oncelog.api.cli.terminal import STATUS_ERROR, CliError, bytes_as_json, progress, say
from oncelog.api.session.cluster_connection import DISCOVERY_FILE
from oncelog.storage.disk.file_system import FileSystem, ReadOnlyFileSystem, RealFileSystem
from oncelog.storage.dump.checks import Finding
from oncelog.storage.dump.contents import (
    FileKind,
    LogEnd,
    Row,
    batch_row,
    is_partition_directory,
    kind_of,
    leftover_kind_of,
    records_of,
    rows_of,
    scan_log,
)
from oncelog.storage.dump.verify import verify_directory
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.side_files import accept_cut as write_accepted_cut
from oncelog.storage.model import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    INT64_MAX,
    TRANSACTION_STATE_TOPIC,
    ProducerSnapshotEntry,
    TopicPartition,
)
from oncelog.storage.records.batch import BatchHeader
from oncelog.storage.records.codec import Record
from oncelog.storage.records.control import ControlRecord
from oncelog.storage.segments.aborted_index import AbortedIndexEntry
from oncelog.storage.segments.inspection import TailDefect
from oncelog.storage.segments.segment import LOG_SUFFIX
from oncelog.storage.segments.swap import SWAP_SUFFIX

# --- dump -------------------------------------------------------------------------------------

VERIFY_ATTEMPTS_MAX: Final = 10
"""Reads of a partition whose segments are being replaced, before a check gives up."""

_SEGMENT_FILES: Final = frozenset(
    {FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX}
)

TEXT_LENGTH_MAX: Final = 120
"""A value is cut to this many characters for people; ``--json`` shows all of it."""


@click.command(cls=Command)
@argument("path", "a data directory, a partition's, or a file")
@flag("--deep", "the records too")
@flag("--verify", "check instead: CRCs, indexes, snapshots; exit status 1 if anything is wrong")
@flag("--json", "one JSON object per line")
def dump(args: Arguments) -> int:
    """Print the files, or with ``--verify`` their inconsistencies; exit status 1 if any."""
    path = Path(args.path)
    filesystem = ReadOnlyFileSystem()
    if not path.exists():
        raise CliError(f"there is no {str(path)!r}", "give a data directory, a partition or a file")
    printer = _Printer(filesystem, is_json=args.json, is_deep=args.deep)
    try:
        if args.verify:
            return printer.verify(path)
        for file in files_of(filesystem, path):
            printer.dump_file(file)
    except BrokenPipeError:
        raise  # An error of standard output, not of a file.
    except OSError as error:
        raise CliError(
            f"{error.filename or path}: {error.strerror}", "give a path that can be read"
        ) from error
    return STATUS_ERROR if printer.problem_count else 0


def files_of(filesystem: ReadOnlyFileSystem, path: Path) -> Iterator[Path]:
    """The files of the log at or below ``path``, by partition, sorted by name."""
    if not path.is_dir():
        if not _is_known(path.name):
            raise CliError(
                f"{path.name!r} is not a file of a log",
                "give a file of a partition directory, or the directory",
            )
        yield path
        return
    found = False
    for directory in [path, *directories_of(filesystem, path)]:
        for name in filesystem.list_directory(directory):
            if _is_known(name) and not (directory / name).is_dir():
                found = True
                yield directory / name
    if not found:
        raise _no_log(path)


def directories_of(filesystem: ReadOnlyFileSystem, path: Path) -> list[Path]:
    """The partition directories below a data directory."""
    return [
        path / name
        for name in filesystem.list_directory(path)
        if (path / name).is_dir() and is_partition_directory(filesystem, path / name)
    ]


def _is_known(name: str) -> bool:
    return name == DISCOVERY_FILE or _kind_of(name) is not None


def _kind_of(name: str) -> FileKind | None:
    return kind_of(name) or leftover_kind_of(name)


def _no_log(path: Path) -> CliError:
    return CliError(f"no log is in {str(path)!r}", "give a data directory or one of a partition")


class _Printer:
    """Writes rows and findings, for people or as one JSON object per line."""

    def __init__(self, filesystem: ReadOnlyFileSystem, *, is_json: bool, is_deep: bool) -> None:
        self._filesystem = filesystem
        self._is_json = is_json
        self._is_deep = is_deep
        self.problem_count = 0

    # Dumping

    def dump_file(self, path: Path) -> None:
        """Print one file; damage is printed where it is found."""
        kind = _kind_of(path.name)
        if not self._is_json:
            say(f"{path} ({kind.value if kind else 'cluster'})")
        try:
            if kind is FileKind.LOG:
                self._dump_log(path)
            elif kind is None:
                self._row(path, json.loads(self._filesystem.read_whole(path)))
            else:
                for row in rows_of(self._filesystem, path):
                    self._row(path, row)
        except (CorruptDataError, ValueError) as error:
            self._damage(path, str(error).removeprefix(f"{path} "))
        except FileNotFoundError:
            self._damage(path, "it was removed meanwhile", is_problem=False)

    def _dump_log(self, path: Path) -> None:
        topic = path.absolute().parent.name.rpartition("-")[0]
        for found in scan_log(self._filesystem, path):
            if isinstance(found, LogEnd):
                if found.defect is not TailDefect.NONE:
                    # Whether it is data loss depends on the checkpoint, which ``--verify`` reads.
                    text = f"at byte {found.position}: {found.defect.value}"
                    self._damage(path, f"{text}; {found.unread_bytes} bytes", is_problem=False)
                return
            self._row(path, batch_row(found))
            if not found.is_intact:
                self._damage(path, f"at byte {found.position}: {TailDefect.BAD_CRC.value}")
            elif self._is_deep:
                try:
                    for record in records_of(found):
                        self._row(path, record_fields(topic, record), indent="  ")
                except CorruptDataError as error:
                    self._damage(path, f"at byte {found.position}: {error}")

    def _row(self, path: Path, row: Row, indent: str = "") -> None:
        if self._is_json:
            say(json.dumps({"file": str(path), **row}))
        else:
            say(f"{indent}  " + " ".join(f"{name}={_shown(value)}" for name, value in row.items()))

    def _damage(self, path: Path, text: str, *, is_problem: bool = True) -> None:
        self.problem_count += is_problem
        word = "problem" if is_problem else "note"
        if self._is_json:
            say(json.dumps({"file": str(path), word: text}))
        else:
            say(f"  {word}: {text}")

    # Verifying

    def verify(self, path: Path) -> int:
        """Print every inconsistency, or only those of one file."""
        directory = path if path.is_dir() else path.parent
        if is_partition_directory(self._filesystem, directory):
            directories = [directory]
        else:
            directories = directories_of(self._filesystem, directory)
        if not directories:
            raise _no_log(path)
        with progress("verifying", len(directories)) as reached:
            for number, each in enumerate(directories):
                reached(number)
                for finding in self._findings(each):
                    if path.is_dir() or finding.path == path:
                        self._finding(finding)
        if not self._is_json:
            count = self.problem_count
            say(f"{path}: {f'{count} problems' if count != 1 else '1 problem'}")
        return STATUS_ERROR if self.problem_count else 0

    def _findings(self, directory: Path) -> Sequence[Finding]:
        """The inconsistencies of one partition.

        Compaction may replace the files of a segment while they are read. The findings then mean
        nothing, and everything is read again. The log of a segment is replaced last: until then it
        has the others' new files beside it.
        """
        for _ in range(VERIFY_ATTEMPTS_MAX):
            before = self._sealed_files(directory)
            findings = list(
                verify_directory(
                    self._filesystem, directory, MachineReplay(directory), is_deep=self._is_deep
                )
            )
            after = self._sealed_files(directory)
            is_changed = self._is_swapping(directory) or any(
                after.get(name) != found for name, found in before.items()
            )
            if not is_changed or not any(finding.is_problem for finding in findings):
                return findings
        reason = (
            f"its segments were replaced during each of {VERIFY_ATTEMPTS_MAX} attempts to look at "
            "them: try again when compaction has less to do"
        )
        return [Finding(path=directory, position=0, reason=reason, is_problem=False)]

    def _is_swapping(self, directory: Path) -> bool:
        """Whether a segment is being replaced; after a crash the next open ends that."""
        names = self._filesystem.list_directory(directory)
        return any(name.endswith(LOG_SUFFIX + SWAP_SUFFIX) for name in names)

    def _sealed_files(self, directory: Path) -> dict[str, tuple[int, int]]:
        """The files of all segments but the active one, with what identifies each."""
        names = [
            name
            for name in self._filesystem.list_directory(directory)
            if kind_of(name) in _SEGMENT_FILES
        ]
        active = max(names, default="").partition(".")[0]
        found = {}
        for name in names:
            if not name.startswith(active):
                with contextlib.suppress(FileNotFoundError):
                    found[name] = self._filesystem.identity(directory / name)
        return found

    def _finding(self, finding: Finding) -> None:
        self.problem_count += finding.is_problem
        word = "problem" if finding.is_problem else "note"
        if self._is_json:
            place = {"file": str(finding.path), "position": finding.position}
            say(json.dumps({**place, word: finding.reason}))
        else:
            say(f"{word}: {finding.path} at byte {finding.position}: {finding.reason}")


class MachineReplay:
    """The partition's own state machine, fed from files: verification replays by its rules."""

    def __init__(self, directory: Path) -> None:
        topic, _, number = directory.absolute().name.rpartition("-")
        partition = int(number) if number.isdecimal() else 0
        self._machine = PartitionMachine(TopicPartition(topic, partition))

    def begin(self, offset: int, entries: Sequence[ProducerSnapshotEntry]) -> None:
        """Start at ``offset`` with the state before it."""
        self._machine.load(offset, offset, entries)

    def apply(self, header: BatchHeader, control: ControlRecord | None) -> AbortedIndexEntry | None:
        """Apply a batch; return the aborted-index entry of a transaction that it aborts."""
        completed = self._machine.apply(header, control)
        # There are no readers here, so completed transactions need not wait for replication.
        self._machine.advance_high_watermark(self._machine.log_end_offset)
        if completed is None or not completed.is_aborted:
            return None
        return AbortedIndexEntry(
            producer_id=completed.producer_id,
            first_offset=completed.first_offset,
            last_offset=completed.last_offset,
            last_stable_offset=completed.last_stable_offset,
        )

    def snapshot(self) -> list[ProducerSnapshotEntry]:
        """The state after the last batch."""
        return self._machine.snapshot()


def _shown(value: Any) -> str:
    """A value for people: quoted where it would be misread, and cut if long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and (not text.isprintable() or " " in text or not text):
        text = json.dumps(text, ensure_ascii=False)
    return text if len(text) <= TEXT_LENGTH_MAX else f"{text[:TEXT_LENGTH_MAX]}…"


# --- records of internal logs -----------------------------------------------------------------

_SECRETS: Final = frozenset({"cluster_key", "previous_key"})


def record_fields(topic: str, record: Record) -> dict[str, Any]:
    """A record as JSON values, decoded if ``topic`` is internal.

    An internal record that cannot be decoded is shown as bytes, and ``undecoded`` says why. Of one
    of the cluster only the size is shown: it may have keys, and what is kept of passwords.
    """
    fields: dict[str, Any] = {"offset": record.offset, "timestamp_ms": record.timestamp_ms}
    decoder = _DECODERS.get(topic)
    if decoder is not None:
        try:
            decoded = decoder(record)
        except CorruptDataError as error:
            fields["undecoded"] = str(error)
        else:
            if decoded is not None:
                return fields | decoded
            fields["undecoded"] = "a key or value of another version"
    if topic == CLUSTER_METADATA_TOPIC:
        return fields | {"value_bytes": len(record.value or b"")}
    fields["key"] = bytes_as_json(record.key)
    fields["value"] = bytes_as_json(record.value)
    if record.headers:
        fields["headers"] = [[name, bytes_as_json(value)] for name, value in record.headers]
    return fields


def _transaction(record: Record) -> dict[str, Any] | None:
    transactional_id = transaction_records.decode_key(record.key or b"")
    if transactional_id is None:
        return _member(record)
    if record.value is None:
        return {"transactional_id": transactional_id, "is_tombstone": True}
    metadata = transaction_records.decode_value(transactional_id, record.value)
    return None if metadata is None else _metadata_fields(metadata)


def _member(record: Record) -> dict[str, Any] | None:
    """A member of an open run, or the end of a run."""
    key = transaction_records.decode_member_key(record.key or b"")
    if key is None:
        return None
    named = {"transactional_id": key.transactional_id, "member_producer_id": key.producer_id}
    if record.value is None:
        return {**named, "is_tombstone": True}
    value = transaction_records.decode_member_value(key.producer_id, record.value)
    return None if value is None else {**named, **_plain(value)}


def _metadata_fields(metadata: TransactionMetadata) -> dict[str, Any]:
    """The fields of a transactional id, without empty ones."""
    fields: dict[str, Any] = _plain(metadata)
    fields["members"] = list(fields["members"].values())
    for name in ("previous_producer_id", "next_producer_id", "last_producer_epoch"):
        if fields[name] == -1:
            del fields[name]
    for name in ("commit_token", "run", "members"):
        if not fields[name]:
            del fields[name]
    if metadata.run is None:
        del fields["is_run_current"]
    return fields


def _offsets(record: Record) -> dict[str, Any] | None:
    key = group_records.decode_key(record.key or b"")
    if key is None:
        return _share_group(record)
    if isinstance(key, group_records.OffsetKey):
        named = {"group_id": key.group_id, "topic_partition": str(key.topic_partition)}
        if record.value is None:
            return {**named, "is_tombstone": True}
        # The record's own offset is already in ``offset``.
        value: dict[str, Any] = _plain(group_records.decode_offset_value(record.value))
        value["committed_offset"] = value.pop("offset")
        if value["expire_timestamp_ms"] == -1:
            del value["expire_timestamp_ms"]
        return {**named, **value}
    if record.value is None:
        return {"group_id": key.group_id, "is_tombstone": True}
    group = group_records.decode_group_value(record.value)
    fields = _plain(group)
    if group.protocol_type == "consumer":
        for member, shown in zip(group.members, fields["members"], strict=True):
            shown["subscription"] = list(decode_subscription(member.subscription).topics)
            shown["assignment"] = _plain(decode_assignment(member.assignment).partitions)
    return {"group_id": key.group_id, **fields}


def _share_group(record: Record) -> dict[str, Any] | None:
    key = share_records.decode_key(record.key or b"")
    if key is None:
        return None
    if record.value is None:
        return {**_plain(key), "is_tombstone": True}
    kind = share_records.VALUES[type(key)]
    return {**_plain(key), **_plain(share_records.decode_value(record.value, kind))}


def _cluster(record: Record) -> dict[str, Any]:
    return _cluster_fields(record.value or b"")


def _cluster_fields(value: bytes) -> dict[str, Any]:
    decoded = decode_cluster_record(value)
    fields = {name: each for name, each in _plain(decoded).items() if name not in _SECRETS}
    if isinstance(decoded, AccessChanged):
        # Without what is kept of their passwords.
        fields["users"] = [name for name, *_ in decoded.users]
    if isinstance(decoded, SnapshotPart):
        fields["records"] = [_cluster_fields(one) for one in decoded.records]
    return {"kind": type(decoded).__name__, **fields}


_DECODERS: Final = {
    TRANSACTION_STATE_TOPIC: _transaction,
    CONSUMER_OFFSETS_TOPIC: _offsets,
    CLUSTER_METADATA_TOPIC: _cluster,
}


def _plain(value: Any) -> Any:
    """Convert structs, enums, sets and bytes to JSON values."""
    if isinstance(value, TopicPartition):
        return str(value)
    if isinstance(value, msgspec.Struct):
        return {name: _plain(each) for name, each in structs.asdict(value).items()}
    if isinstance(value, enum.Enum):
        return value.name if isinstance(value.value, int) else value.value
    if isinstance(value, bytes):
        return bytes_as_json(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value


# --- accept-cut -------------------------------------------------------------------------------


@click.command(cls=Command)
@argument("directory", "the partition's, as in the error")
@argument(
    "offset", "where to truncate, as in the error", type=WholeNumber(0, INT64_MAX), metavar="OFFSET"
)
def accept_cut(args: Arguments) -> int:
    """Store the operator's decision beside the log; the replica's next start acts on it."""
    directory = Path(args.directory)
    filesystem = RealFileSystem()
    if not is_partition_directory(filesystem, directory):
        raise CliError(
            f"{args.directory!r} is not the directory of a partition",
            "give the directory and the offset that the error names",
        )
    try:
        write_accepted_cut(filesystem, directory, args.offset)
    except OSError as error:
        raise CliError(f"cannot write in {directory}: {error}", "repair the disk first") from error
    say(
        f"The next start of this replica truncates its log at offset {args.offset}, if recovery "
        f"stopped there. End its process (`oncelog status` has the id) or start the cluster."
    )
    return 0


# --- broker-id --------------------------------------------------------------------------------

NUMBER_FILE: Final = "broker.id"
"""In the data directory: the id of a broker that has not joined a cluster yet."""

PRIVATE_NETWORKS: Final = (
    ipaddress.IPv4Network("192.168.0.0/16"),
    ipaddress.IPv4Network("172.16.0.0/12"),
)
"""Ids of hosts in these networks count from the network address, others from their /8."""

FIRST_NUMBER: Final = LOCAL_BROKER_ID + 1
_ANY_PORT: Final = 9


@click.command(cls=Command)
@argument("directory", "the data directory of this host", metavar="DIR")
@option(
    "--head",
    metavar="HOST",
    help="the head of the cluster, whose broker id is 1; needed to choose an id",
)
def broker_id(args: Arguments) -> int:
    """Print the id of this host's broker."""
    directory = Path(args.directory).expanduser().absolute()
    try:
        number = number_of(RealFileSystem(), directory, args.head)
    except (OSError, CorruptDataError) as error:
        raise CliError(
            f"cannot tell which broker has its data in {directory} ({error})",
            "repair the directory first: another id would be another broker",
        ) from error
    say(str(number))
    return 0


def number_of(filesystem: FileSystem, directory: Path, head: str | None) -> int:
    """The id in ``directory``; a new one is chosen, durably, if it has none. ``head`` gets 1."""
    kept = _kept(filesystem, directory)
    if kept is None:
        if head is None:
            raise CliError(
                f"{directory} has no broker id yet", "give --head HOST to have one chosen"
            )
        own, first = addresses(head)
        kept = LOCAL_BROKER_ID if own == first else derived(own, first, directory)
        filesystem.make_directory(directory)
        filesystem.write_atomically(directory / NUMBER_FILE, b"%d\n" % kept)
    return kept


def derived(own: str, first: str, directory: Path) -> int:
    """The id of the host with the address ``own``, unique within its network."""
    try:
        address, head = ipaddress.IPv4Address(own), ipaddress.IPv4Address(first)
    except ipaddress.AddressValueError:
        raise _unclear(own, first, directory) from None
    whole = ipaddress.IPv4Network((first, 8), strict=False)
    network = next((private for private in PRIVATE_NETWORKS if head in private), whole)
    if address not in network:
        raise _unclear(own, first, directory)
    return FIRST_NUMBER + int(address) - int(network.network_address)


def addresses(head: str) -> tuple[str, str]:
    """Our address on the route to the host ``head``, and the address of ``head``."""
    try:
        found = socket.getaddrinfo(head, _ANY_PORT, type=socket.SOCK_DGRAM)
        family, _, _, _, target = found[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # Sends nothing: it only selects the route.
            return str(probe.getsockname()[0]), str(target[0])
    except OSError as error:
        raise CliError(
            f"this host has no route to the head {head!r} ({error.strerror or error})",
            "check the name and the network",
        ) from error


def _kept(filesystem: FileSystem, directory: Path) -> int | None:
    identity = read_identity(filesystem, directory)
    if identity is not None:
        return identity.broker_id
    path = directory / NUMBER_FILE
    try:
        text = filesystem.read_whole(path).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    if not text.isdecimal() or int(text) < LOCAL_BROKER_ID:
        raise CliError(
            f"{path} holds {text!r}", f"write an id of at least {LOCAL_BROKER_ID}, or remove it"
        )
    return int(text)


def _unclear(own: str, first: str, directory: Path) -> CliError:
    return CliError(
        f"cannot derive a broker id from the address {own}: it is in another network than the "
        f"head's ({first}), or not IPv4",
        f"write an id that no other host has to {directory / NUMBER_FILE}",
    )
