"""The records of ``__transaction_state``: Kafka's bytes, with oncelog's additions in tagged fields.

Key: version int16 = 0, transactional id. Value, version 1 (flexible; big-endian):

| field | type |
|---|---|
| version | int16 |
| producer id | int64 |
| producer epoch | int16 |
| transaction timeout, ms | int32 |
| status | int8: 0 Empty … 5 CompleteAbort |
| partitions | compact array of (topic compact string, compact array of int32); null when Empty |
| last update, ms | int64 |
| transaction start, ms | int64, -1 when there is none |

| tag | field | type |
|---|---|---|
| 0 | previous producer id | int64 |
| 1 | next producer id | int64 |
| 2 | client transaction version | int16, always 2 |
| 10000 | last producer epoch | int16 |
| 10001 | newest run | number int64, id compact string, int8: 0, or 1, 2, 3 as below |
| 10002 | commit token of the last committed transaction | the bytes |
| 10003 | members | compact array of (producer id int64, epoch int16, status int8, compact bytes) |
| 10004 | partitions enrolled ahead | as the partitions above |
| 10005 | why the epoch rose last | int8: 0 owner … 6 members, as ``EpochCause`` |
| 10006 | driver of the run | machine compact string, process id int64, start in clock ticks int64 |
| 10007 | what is prepared | its producer id int64, its epoch int16, since when in ms int64 |
| 10008 | owner that sends heartbeats | its id compact string, its timeout in ms int32 |
| 10009 | process of that owner | as the driver above |
| 10010 | what a version 1 client knows | its producer id int64, its epoch int16; the same of the \
pair before, or -1; label: coordinator epoch int32 (-1: none), incarnation, number, request int64; \
aborts int64 |

With tag 10007 the status Ongoing means Prepared: Kafka's reader sees an open transaction. The tag
stays until the transaction is complete.

The int8 of a run is 1 if the current or last transaction is the run's, 2 while it waits for its
first member, 3 if it waits again. In builds before runs had numbers, the number was the driver's
time in ns; the next number is higher.

The bytes of a member are a bitmap, low bit first, over ``partitions`` in order. Of a run,
``partitions`` are those of all members, which is the list of markers to write.

While a run is open each member has its own record beside the id's, so that a thousand tasks do not
rewrite the id a thousand times. PREPARE contains all members, so it is complete by itself. Key:
version int16 = 10000, transactional id, producer id of the member int64. Value, version 0
(flexible):

| field | type |
|---|---|
| version | int16 |
| producer id of the id, in this run | int64 |
| producer epoch of the id, in this run | int16 |
| producer epoch of the member | int16 |
| status | int8, as in tag 10003 |
| partitions | as above |
| last update, ms | int64 |

It is valid only while its id is Ongoing with that producer id and epoch; compaction may leave one
of a run that is over. A null value is a tombstone; tombstones of members are written with COMPLETE.
Unknown key and value versions and unknown tags are skipped.

One file: two kinds of records, each way.

Source: KIP-98, "Transaction Log";
TransactionLogValue of Kafka; KIP-890 for tags 0 to 2.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from oncelog.actors.protocol.messages.transaction import (
    NO_COORDINATOR_EPOCH,
    ConnectionLabel,
    DriverProcess,
    Holder,
    PreparedTxn,
    Run,
)
from oncelog.actors.protocol.transaction.members import Members, MemberStatus, RunMember
from oncelog.actors.protocol.transaction.told import ToldPair
from oncelog.actors.protocol.transaction.transaction_state import (
    EpochCause,
    TransactionMetadata,
    TransactionState,
)
from oncelog.actors.protocol.wire import WireReader, WireWriter
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

KEY_VERSION: Final = 0
MEMBER_KEY_VERSION: Final = 10_000
"""oncelog's own: Kafka's reader knows key version 0 and skips any other."""

MEMBER_VALUE_VERSION: Final = 0
VALUE_VERSION: Final = 1
CLIENT_TRANSACTION_VERSION: Final = 2

TAG_PREVIOUS_PRODUCER_ID: Final = 0
TAG_NEXT_PRODUCER_ID: Final = 1
TAG_CLIENT_TRANSACTION_VERSION: Final = 2
TAG_LAST_PRODUCER_EPOCH: Final = 10_000
TAG_RUN: Final = 10_001
TAG_COMMIT_TOKEN: Final = 10_002
TAG_MEMBERS: Final = 10_003
TAG_AHEAD_PARTITIONS: Final = 10_004
TAG_EPOCH_CAUSE: Final = 10_005
TAG_DRIVER: Final = 10_006
TAG_PREPARED: Final = 10_007
TAG_HOLDER: Final = 10_008
TAG_HOLDER_PROCESS: Final = 10_009
TAG_TOLD: Final = 10_010

_RUN_CURRENT: Final = 1
_RUN_WAITING: Final = 2
_RUN_WAITING_AGAIN: Final = _RUN_CURRENT | _RUN_WAITING

_STATUS: Final = {
    TransactionState.EMPTY: 0,
    TransactionState.ONGOING: 1,
    TransactionState.PREPARED: 1,
    TransactionState.PREPARE_COMMIT: 2,
    TransactionState.PREPARE_ABORT: 3,
    TransactionState.COMPLETE_COMMIT: 4,
    TransactionState.COMPLETE_ABORT: 5,
}
_STATE_OF_STATUS: Final[dict[int, TransactionState]] = {
    number: state for state, number in _STATUS.items() if state is not TransactionState.PREPARED
}

_INT16 = struct.Struct(">h")
_INT64 = struct.Struct(">q")
_PREPARED = struct.Struct(">qhq")
_TOLD = struct.Struct(">qhqhiqqqq")

_NO_PAIR: Final = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
_NO_LABEL: Final = ConnectionLabel(
    coordinator_epoch=NO_COORDINATOR_EPOCH, incarnation=-1, number=-1, request=-1
)


class _TransactionReader(WireReader):
    """Adds the types that only these records have."""

    __slots__ = ()

    def nullable_array_of_partitions(self) -> list[TopicPartition]:
        """Topics with their partitions, flattened in order; null is empty."""
        count = self._unsigned_varint() - 1 if self.flexible else self.int32()
        partitions: list[TopicPartition] = []
        for _ in range(max(count, 0)):
            topic = self.string()
            partitions += [TopicPartition(topic, number) for number in self.array(self.int32)]
            self.skip_tagged_fields()
        return partitions


class RunMemberKey(msgspec.Struct, frozen=True):
    """The key of a member's record: member ``producer_id`` of ``transactional_id``."""

    transactional_id: str
    producer_id: int


class RunMemberValue(msgspec.Struct, frozen=True, kw_only=True):
    """One member of the run in which the id has ``owner_producer_id`` and ``owner_epoch``."""

    owner_producer_id: int
    owner_epoch: int
    member: RunMember
    last_update_ms: int


def encode_key(transactional_id: str) -> bytes:
    """The key of the record of ``transactional_id``."""
    writer = WireWriter()
    writer.int16(KEY_VERSION)
    writer.string(transactional_id)
    return bytes(writer.buffer)


def decode_key(key: bytes) -> str | None:
    """The transactional id, or ``None`` for a version this code does not know.

    Raises ``CorruptDataError`` when the bytes do not fit their version.
    """
    reader = WireReader(key)
    if reader.int16() != KEY_VERSION:
        return None
    transactional_id = reader.string()
    reader.expect_end()
    return transactional_id


def encode_member_key(transactional_id: str, producer_id: int) -> bytes:
    """The key of the record of one member of ``transactional_id``."""
    writer = WireWriter()
    writer.int16(MEMBER_KEY_VERSION)
    writer.string(transactional_id)
    writer.int64(producer_id)
    return bytes(writer.buffer)


def decode_member_key(key: bytes) -> RunMemberKey | None:
    """Decode the key of a member's record; ``None`` if it is another kind of key.

    Raises ``CorruptDataError`` when the bytes do not fit their version.
    """
    reader = WireReader(key)
    if reader.int16() != MEMBER_KEY_VERSION:
        return None
    found = RunMemberKey(reader.string(), reader.int64())
    reader.expect_end()
    return found


def encode_member_value(metadata: TransactionMetadata, member: RunMember, now_ms: int) -> bytes:
    """The record value that makes ``member`` one of the open run of ``metadata``."""
    writer = WireWriter()
    writer.int16(MEMBER_VALUE_VERSION)
    writer.int64(metadata.producer_id)
    writer.int16(metadata.producer_epoch)
    writer.int16(member.producer_epoch)
    writer.int8(member.status.value)
    _write_partitions(writer, sorted(member.partitions))
    writer.int64(now_ms)
    writer.tagged_fields(())
    return bytes(writer.buffer)


def decode_member_value(producer_id: int, value: bytes) -> RunMemberValue | None:
    """What ``encode_member_value`` wrote, or ``None`` for an unknown version.

    Raises ``CorruptDataError`` when the bytes do not fit their version.
    """
    reader = _TransactionReader(value)
    if reader.int16() != MEMBER_VALUE_VERSION:
        return None
    reader.flexible = True
    owner_producer_id, owner_epoch = reader.int64(), reader.int16()
    producer_epoch, status = reader.int16(), reader.int8()
    if status > MemberStatus.LEFT.value:
        raise CorruptDataError(f"status {status} of member {producer_id} is unknown")
    partitions = reader.nullable_array_of_partitions()
    last_update_ms = reader.int64()
    reader.skip_tagged_fields()
    reader.expect_end()
    return RunMemberValue(
        owner_producer_id=owner_producer_id,
        owner_epoch=owner_epoch,
        member=RunMember(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            status=MemberStatus(status),
            partitions=frozenset(partitions),
        ),
        last_update_ms=last_update_ms,
    )


def encode_value(metadata: TransactionMetadata) -> bytes:
    """The record value that makes ``metadata`` the state of its transactional id."""
    partitions = sorted(metadata.all_partitions)
    writer = WireWriter()
    writer.int16(VALUE_VERSION)
    writer.int64(metadata.producer_id)
    writer.int16(metadata.producer_epoch)
    writer.int32(metadata.transaction_timeout_ms)
    writer.int8(_STATUS[metadata.state])
    if metadata.state is TransactionState.EMPTY:
        writer.unsigned_varint(0)
    else:
        _write_partitions(writer, partitions)
    writer.int64(metadata.last_update_ms)
    writer.int64(metadata.start_ms)
    writer.tagged_fields(_tagged(metadata, partitions))
    return bytes(writer.buffer)


def decode_value(transactional_id: str, value: bytes) -> TransactionMetadata | None:
    """The metadata that ``encode_value`` wrote, or ``None`` for an unknown version.

    Raises ``CorruptDataError`` when the bytes do not fit their version.
    """
    reader = _TransactionReader(value)
    version = reader.int16()
    if not 0 <= version <= VALUE_VERSION:
        return None
    reader.flexible = version >= 1
    producer_id = reader.int64()
    producer_epoch = reader.int16()
    transaction_timeout_ms = reader.int32()
    status = reader.int8()
    state = _STATE_OF_STATUS.get(status)
    if state is None:
        raise CorruptDataError(f"transaction status {status} of {transactional_id!r} is unknown")
    partitions = reader.nullable_array_of_partitions()
    last_update_ms = reader.int64()
    start_ms = reader.int64()
    tags = reader.tagged_fields()
    reader.expect_end()
    prepared_txn = _decode_prepared(tags.get(TAG_PREPARED))
    if prepared_txn is not None and state is TransactionState.ONGOING:
        state = TransactionState.PREPARED
    run, run_state = _decode_run(tags.get(TAG_RUN))
    is_run_current = run_state in (_RUN_CURRENT, _RUN_WAITING_AGAIN)
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_timeout_ms=transaction_timeout_ms,
        state=state,
        last_update_ms=last_update_ms,
        start_ms=start_ms,
        partitions=frozenset() if is_run_current else frozenset(partitions),
        previous_producer_id=_number(tags, TAG_PREVIOUS_PRODUCER_ID, _INT64, NO_PRODUCER_ID),
        next_producer_id=_number(tags, TAG_NEXT_PRODUCER_ID, _INT64, NO_PRODUCER_ID),
        last_producer_epoch=_number(tags, TAG_LAST_PRODUCER_EPOCH, _INT16, NO_PRODUCER_EPOCH),
        commit_token=tags.get(TAG_COMMIT_TOKEN),
        run=run,
        is_run_current=is_run_current,
        is_run_waiting=run_state in (_RUN_WAITING, _RUN_WAITING_AGAIN),
        driver=_decode_process(tags.get(TAG_DRIVER)),
        members=_decode_members(tags.get(TAG_MEMBERS), partitions),
        ahead_partitions=_decode_partitions(tags.get(TAG_AHEAD_PARTITIONS)),
        epoch_cause=_decode_cause(tags.get(TAG_EPOCH_CAUSE)),
        prepared_txn=prepared_txn,
        holder=_decode_holder(tags.get(TAG_HOLDER), tags.get(TAG_HOLDER_PROCESS)),
        told=_decode_told(tags.get(TAG_TOLD)),
    )


def _write_partitions(writer: WireWriter, partitions: Sequence[TopicPartition]) -> None:
    topics = [
        (topic, [tp.partition for tp in group])
        for topic, group in itertools.groupby(partitions, key=lambda tp: tp.topic)
    ]
    writer.unsigned_varint(len(topics) + 1)
    for topic, numbers in topics:
        writer.compact_bytes(topic.encode())
        writer.unsigned_varint(len(numbers) + 1)
        for number in numbers:
            writer.int32(number)
        writer.tagged_fields(())


def _tagged(
    metadata: TransactionMetadata, partitions: Sequence[TopicPartition]
) -> list[tuple[int, bytes]]:
    """The tagged fields that differ from their defaults, in ascending order."""
    fields = []
    if metadata.previous_producer_id != NO_PRODUCER_ID:
        fields.append((TAG_PREVIOUS_PRODUCER_ID, _INT64.pack(metadata.previous_producer_id)))
    if metadata.next_producer_id != NO_PRODUCER_ID:
        fields.append((TAG_NEXT_PRODUCER_ID, _INT64.pack(metadata.next_producer_id)))
    fields.append((TAG_CLIENT_TRANSACTION_VERSION, _INT16.pack(CLIENT_TRANSACTION_VERSION)))
    if metadata.last_producer_epoch != NO_PRODUCER_EPOCH:
        fields.append((TAG_LAST_PRODUCER_EPOCH, _INT16.pack(metadata.last_producer_epoch)))
    if metadata.run is not None:
        writer = WireWriter()
        writer.int64(metadata.run.number)
        writer.compact_bytes(metadata.run.id.encode())
        writer.int8(
            (_RUN_CURRENT if metadata.is_run_current else 0)
            | (_RUN_WAITING if metadata.is_run_waiting else 0)
        )
        fields.append((TAG_RUN, bytes(writer.buffer)))
    if metadata.commit_token is not None:
        fields.append((TAG_COMMIT_TOKEN, metadata.commit_token))
    if metadata.members:
        fields.append((TAG_MEMBERS, _encode_members(metadata.members, partitions)))
    if metadata.ahead_partitions:
        writer = WireWriter()
        _write_partitions(writer, sorted(metadata.ahead_partitions))
        fields.append((TAG_AHEAD_PARTITIONS, bytes(writer.buffer)))
    if metadata.epoch_cause is not EpochCause.OWNER:
        fields.append((TAG_EPOCH_CAUSE, bytes((metadata.epoch_cause.value,))))
    if metadata.driver is not None:
        fields.append((TAG_DRIVER, _encode_process(metadata.driver)))
    if (found := metadata.prepared_txn) is not None:
        packed = _PREPARED.pack(found.producer_id, found.producer_epoch, found.prepared_ms)
        fields.append((TAG_PREPARED, packed))
    if metadata.holder is not None:
        writer = WireWriter()
        writer.compact_bytes(metadata.holder.id.encode())
        writer.int32(metadata.holder.timeout_ms)
        fields.append((TAG_HOLDER, bytes(writer.buffer)))
        if metadata.holder.process is not None:
            fields.append((TAG_HOLDER_PROCESS, _encode_process(metadata.holder.process)))
    if metadata.told is not None:
        fields.append((TAG_TOLD, _encode_told(metadata.told)))
    return fields


def _encode_process(process: DriverProcess) -> bytes:
    writer = WireWriter()
    writer.compact_bytes(process.machine.encode())
    writer.int64(process.process_id)
    writer.int64(process.start_ticks)
    return bytes(writer.buffer)


def _encode_members(members: Members, partitions: Sequence[TopicPartition]) -> bytes:
    bit_of = {tp: 1 << index for index, tp in enumerate(partitions)}
    writer = WireWriter()
    writer.unsigned_varint(len(members) + 1)
    for producer_id, member in sorted(members.items()):
        bitmap = sum(bit_of[tp] for tp in member.partitions)
        writer.int64(producer_id)
        writer.int16(member.producer_epoch)
        writer.int8(member.status.value)
        writer.compact_bytes(bitmap.to_bytes((bitmap.bit_length() + 7) // 8, "little"))
        writer.tagged_fields(())
    return bytes(writer.buffer)


def _decode_members(encoded: bytes | None, partitions: Sequence[TopicPartition]) -> Members:
    if encoded is None:
        return {}
    reader = _TransactionReader(encoded)
    reader.flexible = True

    def read_member() -> RunMember:
        producer_id, producer_epoch, status = reader.int64(), reader.int16(), reader.int8()
        bitmap = int.from_bytes(reader.blob(), "little")
        reader.skip_tagged_fields()
        if bitmap >> len(partitions) or status > MemberStatus.LEFT.value:
            raise CorruptDataError(f"member {producer_id} has an impossible status or partition")
        return RunMember(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            status=MemberStatus(status),
            partitions=frozenset(tp for index, tp in enumerate(partitions) if bitmap >> index & 1),
        )

    members = {member.producer_id: member for member in reader.array(read_member)}
    reader.expect_end()
    return members


def _decode_partitions(encoded: bytes | None) -> frozenset[TopicPartition]:
    if encoded is None:
        return frozenset()
    reader = _TransactionReader(encoded)
    reader.flexible = True
    partitions = reader.nullable_array_of_partitions()
    reader.expect_end()
    return frozenset(partitions)


def _decode_cause(encoded: bytes | None) -> EpochCause:
    if encoded is None:
        return EpochCause.OWNER
    number = int.from_bytes(encoded, "big")
    if len(encoded) != 1 or number > EpochCause.MEMBERS.value:
        raise CorruptDataError(f"tagged field {TAG_EPOCH_CAUSE} has the unknown value {number}")
    return EpochCause(number)


def _decode_run(encoded: bytes | None) -> tuple[Run | None, int]:
    if encoded is None:
        return None, 0
    reader = _TransactionReader(encoded)
    reader.flexible = True
    run = Run(number=reader.int64(), id=reader.string())
    run_state = reader.int8()
    reader.expect_end()
    return run, run_state


def _decode_process(encoded: bytes | None) -> DriverProcess | None:
    if encoded is None:
        return None
    reader = _TransactionReader(encoded)
    reader.flexible = True
    process = DriverProcess(
        machine=reader.string(), process_id=reader.int64(), start_ticks=reader.int64()
    )
    reader.expect_end()
    return process


def _decode_prepared(encoded: bytes | None) -> PreparedTxn | None:
    if encoded is None:
        return None
    if len(encoded) != _PREPARED.size:
        raise CorruptDataError(
            f"tagged field {TAG_PREPARED} has {len(encoded)} bytes, not {_PREPARED.size}"
        )
    producer_id, producer_epoch, prepared_ms = _PREPARED.unpack(encoded)
    return PreparedTxn(
        producer_id=producer_id, producer_epoch=producer_epoch, prepared_ms=prepared_ms
    )


def _decode_holder(encoded: bytes | None, process: bytes | None) -> Holder | None:
    if encoded is None:
        return None
    reader = _TransactionReader(encoded)
    reader.flexible = True
    holder = Holder(id=reader.string(), timeout_ms=reader.int32(), process=_decode_process(process))
    reader.expect_end()
    return holder


def _encode_told(told: ToldPair) -> bytes:
    label = told.label or _NO_LABEL
    return _TOLD.pack(
        told.producer_id,
        told.producer_epoch,
        *(told.before or _NO_PAIR),
        label.coordinator_epoch,
        label.incarnation,
        label.number,
        label.request,
        told.aborts,
    )


def _decode_told(encoded: bytes | None) -> ToldPair | None:
    if encoded is None:
        return None
    if len(encoded) != _TOLD.size:
        raise CorruptDataError(
            f"tagged field {TAG_TOLD} has {len(encoded)} bytes, not {_TOLD.size}"
        )
    producer_id, producer_epoch, *found = _TOLD.unpack(encoded)
    before = (found[0], found[1])
    label = ConnectionLabel(
        coordinator_epoch=found[2], incarnation=found[3], number=found[4], request=found[5]
    )
    return ToldPair(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        before=None if before == _NO_PAIR else before,
        label=None if label == _NO_LABEL else label,
        aborts=found[6],
    )


def _number(tags: dict[int, bytes], tag: int, layout: struct.Struct, default: int) -> int:
    encoded = tags.get(tag)
    if encoded is None:
        return default
    if len(encoded) != layout.size:
        raise CorruptDataError(f"tagged field {tag} has {len(encoded)} bytes, not {layout.size}")
    value: int = layout.unpack(encoded)[0]
    return value
