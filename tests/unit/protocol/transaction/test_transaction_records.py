"""The bytes of transaction log records: Kafka's schema, our tagged fields, hostile input."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from oncelog.actors.protocol.messages.transaction import (
    ConnectionLabel,
    DriverProcess,
    Holder,
    PreparedTxn,
    Run,
)
from oncelog.actors.protocol.transaction.members import MemberStatus, RunMember
from oncelog.actors.protocol.transaction.told import ToldPair
from oncelog.actors.protocol.transaction.transaction_records import (
    RunMemberKey,
    RunMemberValue,
    decode_key,
    decode_member_key,
    decode_member_value,
    decode_value,
    encode_key,
    encode_member_key,
    encode_member_value,
    encode_value,
)
from oncelog.actors.protocol.transaction.transaction_state import (
    DECIDED,
    TransactionMetadata,
    TransactionState,
    newest_run_number,
    run_begun,
)
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import TopicPartition

LOGGED_STATES = [state for state in TransactionState if state is not TransactionState.DEAD]

partitions = st.frozensets(
    st.builds(TopicPartition, st.sampled_from(["a", "delays", "é"]), st.integers(0, 2**31 - 1)),
    max_size=6,
)
producer_ids = st.integers(-1, 2**63 - 1)
epochs = st.integers(-1, 32_767)

DRIVER_FIELDS = {
    "machine": st.text(max_size=9),
    "process_id": st.integers(0, 2**63 - 1),
    "start_ticks": st.integers(0, 2**63 - 1),
}
holders = st.none() | st.builds(
    Holder,
    id=st.text(max_size=9),
    timeout_ms=st.integers(0, 2**31 - 1),
    process=st.none() | st.builds(DriverProcess, **DRIVER_FIELDS),
)
numbers = st.integers(0, 2**63 - 1)
told_pairs = st.none() | st.builds(
    ToldPair,
    producer_id=numbers,
    producer_epoch=st.integers(0, 32_766),
    before=st.none() | st.tuples(numbers, st.integers(0, 32_766)),
    aborts=numbers,
    label=st.none()
    | st.builds(
        ConnectionLabel,
        coordinator_epoch=st.integers(0, 2**31 - 1),
        incarnation=numbers,
        number=numbers,
        request=numbers,
    ),
)


@st.composite
def metadatas(draw: st.DrawFn) -> TransactionMetadata:
    state = draw(st.sampled_from(LOGGED_STATES))
    may_be_prepared = state in (*DECIDED, TransactionState.PREPARED)
    prepared_txns = st.builds(
        PreparedTxn,
        producer_id=st.integers(0, 2**63 - 1),
        producer_epoch=st.integers(0, 2**15 - 1),
        prepared_ms=st.integers(0, 2**63 - 1),
    )
    if state is not TransactionState.PREPARED:
        prepared_txns = (st.none() | prepared_txns) if may_be_prepared else st.none()
    is_empty = state is TransactionState.EMPTY
    is_run_current = draw(st.booleans()) and not is_empty
    members = {}
    for producer_id in draw(st.lists(st.integers(0, 2**63 - 1), max_size=4, unique=True)):
        members[producer_id] = RunMember(
            producer_id=producer_id,
            producer_epoch=draw(epochs),
            status=draw(st.sampled_from(list(MemberStatus))),
            partitions=draw(partitions) if is_run_current else frozenset(),
        )
    is_run_waiting = is_empty and draw(st.booleans())
    has_run = is_run_current or is_run_waiting or draw(st.booleans())
    return TransactionMetadata(
        transactional_id="loader",
        producer_id=draw(producer_ids),
        producer_epoch=draw(epochs),
        transaction_timeout_ms=draw(st.integers(0, 2**31 - 1)),
        state=state,
        prepared_txn=draw(prepared_txns),
        holder=draw(holders),
        told=draw(told_pairs),
        last_update_ms=draw(st.integers(-1, 2**62)),
        start_ms=draw(st.integers(-1, 2**62)),
        partitions=frozenset() if is_run_current or is_empty else draw(partitions),
        previous_producer_id=draw(producer_ids),
        next_producer_id=draw(producer_ids),
        last_producer_epoch=draw(epochs),
        commit_token=draw(st.none() | st.binary(min_size=1, max_size=40)),
        run=Run(number=draw(st.integers(0, 2**63 - 1)), id=draw(st.text(max_size=9)))
        if has_run
        else None,
        is_run_current=is_run_current,
        is_run_waiting=is_run_waiting,
        driver=draw(st.none() | st.builds(DriverProcess, **DRIVER_FIELDS)),
        members=members,
    )


def test_a_record_of_an_ordinary_transaction_has_kafkas_bytes() -> None:
    metadata = TransactionMetadata(
        transactional_id="loader",
        producer_id=7,
        producer_epoch=3,
        transaction_timeout_ms=60_000,
        state=TransactionState.ONGOING,
        last_update_ms=1_700_000_000_001,
        start_ms=1_700_000_000_000,
        partitions=frozenset({TopicPartition("flights", 1), TopicPartition("flights", 0)}),
        previous_producer_id=5,
    )
    assert encode_key("loader") == b"\x00\x00\x00\x06loader"
    assert encode_value(metadata).hex(" ") == (
        "00 01"  # version 1
        " 00 00 00 00 00 00 00 07 00 03"  # producer id, epoch
        " 00 00 ea 60 01"  # timeout, Ongoing
        " 02 08 66 6c 69 67 68 74 73 03 00 00 00 00 00 00 00 01 00"  # flights: 0, 1
        " 00 00 01 8b cf e5 68 01 00 00 01 8b cf e5 68 00"  # last update, start
        " 02 00 08 00 00 00 00 00 00 00 05 02 02 00 02"  # tags 0 and 2
    )


def test_a_run_that_began_by_the_clock_of_its_driver_is_read_and_the_next_is_newer() -> None:
    """Such a record has the time of the driver, in ns, where the number of the run is."""
    begun_ns = 1_700_000_000_000_000_000
    old = TransactionMetadata(
        transactional_id="loader",
        producer_id=7,
        producer_epoch=3,
        transaction_timeout_ms=60_000,
        state=TransactionState.COMPLETE_COMMIT,
        last_update_ms=0,
        run=Run(number=begun_ns, id="b"),
        is_run_current=True,
    )
    value = encode_value(old)
    tag = b"\x91\x4e\x0b" + begun_ns.to_bytes(8, "big") + b"\x02b\x01"
    assert value.endswith(tag)
    found = decode_value("loader", value)
    assert found == old
    newer = run_begun(
        found,
        "run",
        driver=None,
        transaction_timeout_ms=1,
        spare_producer_id=-1,
        now_ms=0,
    )
    assert newest_run_number(newer) == begun_ns + 1


def test_an_empty_id_has_null_partitions() -> None:
    metadata = TransactionMetadata(
        transactional_id="loader",
        producer_id=7,
        producer_epoch=0,
        transaction_timeout_ms=1,
        state=TransactionState.EMPTY,
        last_update_ms=0,
    )
    assert encode_value(metadata)[17:18] == b"\x00"
    assert decode_value("loader", encode_value(metadata)) == metadata


@given(metadatas())
def test_what_is_written_is_read_back(metadata: TransactionMetadata) -> None:
    assert decode_value("loader", encode_value(metadata)) == metadata


@given(st.text(min_size=1, max_size=60))
def test_a_key_is_read_back(transactional_id: str) -> None:
    assert decode_key(encode_key(transactional_id)) == transactional_id


def test_a_member_has_a_key_that_kafkas_reader_passes_over() -> None:
    key = encode_member_key("loader", 5_000)
    assert key.hex(" ") == "27 10 00 06 6c 6f 61 64 65 72 00 00 00 00 00 00 13 88"
    assert decode_key(key) is None
    assert decode_member_key(key) == RunMemberKey("loader", 5_000)
    assert decode_member_key(encode_key("loader")) is None


def test_the_bytes_of_a_members_record() -> None:
    owner = TransactionMetadata(
        transactional_id="loader",
        producer_id=7,
        producer_epoch=3,
        transaction_timeout_ms=60_000,
        state=TransactionState.ONGOING,
        last_update_ms=1_700_000_000_000,
    )
    member = RunMember(
        producer_id=5_000,
        producer_epoch=2,
        status=MemberStatus.ENLISTED,
        partitions=frozenset({TopicPartition("flights", 1)}),
    )
    assert encode_member_value(owner, member, 1_700_000_000_001).hex(" ") == (
        "00 00"  # version 0
        " 00 00 00 00 00 00 00 07 00 03"  # the id's producer id, epoch
        " 00 02 01"  # the member's epoch, ENLISTED
        " 02 08 66 6c 69 67 68 74 73 02 00 00 00 01 00"  # flights: 1
        " 00 00 01 8b cf e5 68 01 00"  # last update; no tagged fields
    )


@given(metadatas(), st.integers(0, 2**63 - 1), epochs, partitions, st.integers(-1, 2**62))
def test_a_member_is_read_back(
    owner: TransactionMetadata,
    producer_id: int,
    epoch: int,
    enrolled: frozenset[TopicPartition],
    now_ms: int,
) -> None:
    owner = structs.replace(owner, state=TransactionState.ONGOING)
    member = RunMember(
        producer_id=producer_id,
        producer_epoch=epoch,
        status=MemberStatus.ENLISTED,
        partitions=enrolled,
    )
    value = encode_member_value(owner, member, now_ms)
    assert decode_member_value(producer_id, value) == RunMemberValue(
        owner_producer_id=owner.producer_id,
        owner_epoch=owner.producer_epoch,
        member=member,
        last_update_ms=now_ms,
    )
    for size in range(2, len(value)):
        with pytest.raises(CorruptDataError):
            decode_member_value(producer_id, value[:size])


def test_unknown_key_and_value_versions_are_skipped() -> None:
    assert decode_key(b"\x00\x01\x00\x01x") is None
    assert decode_member_key(b"\x00\x01\x00\x01x") is None
    assert decode_member_value(5_000, b"\x00\x01anything") is None
    assert decode_value("loader", b"\x00\x02anything") is None


def test_version_0_of_kafka_is_read() -> None:
    value = bytes.fromhex(
        "0000 0000000000000007 0003 0000ea60 04"
        "00000001 0007 666c6967687473 00000001 00000002"
        "0000000000000009 0000000000000008"
    )
    metadata = decode_value("loader", value)
    assert metadata is not None
    assert metadata.state is TransactionState.COMPLETE_COMMIT
    assert metadata.partitions == {TopicPartition("flights", 2)}
    assert (metadata.last_update_ms, metadata.start_ms) == (9, 8)


def test_unknown_tags_are_passed_over() -> None:
    metadata = TransactionMetadata(
        transactional_id="loader",
        producer_id=7,
        producer_epoch=0,
        transaction_timeout_ms=1,
        state=TransactionState.EMPTY,
        last_update_ms=0,
    )
    value = encode_value(metadata)
    assert value[-5:] == b"\x01\x02\x02\x00\x02"
    with_more = value[:-5] + b"\x02\x02\x02\x00\x02\x09\x03abc"
    assert decode_value("loader", with_more) == metadata


@given(metadatas(), st.data())
def test_cut_or_changed_bytes_raise_nothing_but_corrupt_data(
    metadata: TransactionMetadata, data: st.DataObject
) -> None:
    value = bytearray(encode_value(metadata))
    position = data.draw(st.integers(2, len(value) - 1))
    if data.draw(st.booleans()):
        del value[position:]
    else:
        value[position] = data.draw(st.integers(0, 255))
    found: TransactionMetadata | None = None
    with contextlib.suppress(CorruptDataError):
        found = decode_value("loader", bytes(value))
    assert found is None or found.transactional_id == "loader"


def told_metadata(told: ToldPair | None) -> TransactionMetadata:
    return TransactionMetadata(
        transactional_id="loader",
        producer_id=7,
        producer_epoch=5,
        transaction_timeout_ms=1,
        state=TransactionState.EMPTY,
        last_update_ms=0,
        told=told,
    )


def test_what_a_version_1_client_knows_is_one_more_tag() -> None:
    label = ConnectionLabel(coordinator_epoch=3, incarnation=1_000, number=9, request=4)
    told = ToldPair(producer_id=7, producer_epoch=2, before=(6, 1), label=label, aborts=258)
    plain = encode_value(told_metadata(None))
    value = encode_value(told_metadata(told))
    assert plain[-5:] == b"\x01\x02\x02\x00\x02"
    assert value[:-5] == plain[:-5] + value[len(plain) - 5 : -5]
    assert value[len(plain) - 5 :].hex() == (
        "02" "02020002" "9a4e38"
        "0000000000000007" "0002" "0000000000000006" "0001"
        "00000003" "00000000000003e8" "0000000000000009" "0000000000000004"
        "0000000000000102"
    )  # fmt: skip
    bare = ToldPair(producer_id=7, producer_epoch=2)
    assert encode_value(told_metadata(bare))[len(plain) + 3 :].hex() == (
        "0000000000000007" "0002" + "f" * 20 + "f" * 56 + "0" * 16
    )  # fmt: skip


def test_another_size_of_what_a_version_1_client_knows_is_refused() -> None:
    value = encode_value(told_metadata(ToldPair(producer_id=7, producer_epoch=2)))
    cut = value[:-57] + b"\x37" + value[-56:-1]
    with pytest.raises(CorruptDataError, match="10010 has 55 bytes"):
        decode_value("loader", cut)


def test_cut_bytes_are_refused() -> None:
    metadata = TransactionMetadata(
        transactional_id="loader",
        producer_id=7,
        producer_epoch=0,
        transaction_timeout_ms=1,
        state=TransactionState.ONGOING,
        last_update_ms=0,
    )
    value = encode_value(metadata)
    for size in range(2, len(value)):
        with pytest.raises(CorruptDataError):
            decode_value("loader", value[:size])
