"""The records of the offsets log, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.protocol.group.group_records import (
    GroupKey,
    GroupMemberValue,
    GroupValue,
    OffsetKey,
    OffsetValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
)
from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import TopicPartition

TP = TopicPartition("t", 3)
MEMBER = GroupMemberValue(
    member_id="m",
    group_instance_id="i",
    client_id="c",
    client_host="h",
    rebalance_timeout_ms=300_000,
    session_timeout_ms=45_000,
    subscription=b"s",
    assignment=b"a",
)
GROUP = GroupValue(
    protocol_type="consumer",
    generation_id=5,
    protocol_name="range",
    leader_id="m",
    state_timestamp_ms=9,
    members=(MEMBER,),
)


def test_offset_record_is_that_of_kafka() -> None:
    position = OffsetAndMetadata(offset=258, leader_epoch=7, metadata="md")
    record = offset_record("g", TP, position, 1_000)
    assert (record.key or b"").hex() == "000100016700017400000003"
    assert (record.value or b"").hex() == ("000300000000000001020000000700026d6400000000000003e8")


def test_group_record_is_that_of_kafka() -> None:
    record = group_record("g", GROUP)
    assert (record.key or b"").hex() == "0002000167"
    assert (record.value or b"").hex() == (
        "0003"
        "0008" + b"consumer".hex() + "00000005"
        "0005" + b"range".hex() + "00016d"
        "0000000000000009"
        "00000001"
        "00016d"
        "000169"
        "000163"
        "000168"
        "000493e0"
        "0000afc8"
        "0000000173"
        "0000000161"
    )


def test_empty_group_has_null_protocol_and_leader() -> None:
    value = GroupValue(
        protocol_type="consumer",
        generation_id=5,
        protocol_name=None,
        leader_id=None,
        state_timestamp_ms=9,
        members=(),
    )
    encoded = group_record("g", value).value or b""
    assert encoded.endswith(bytes.fromhex("ffff ffff 0000000000000009 00000000"))
    assert decode_group_value(encoded) == value


def test_tombstones_have_the_key_of_their_record_and_no_value() -> None:
    position = OffsetAndMetadata(offset=1)
    assert offset_tombstone("g", TP).key == offset_record("g", TP, position, 0).key
    assert group_tombstone("g").key == group_record("g", GROUP).key
    assert offset_tombstone("g", TP).value is group_tombstone("g").value is None


@pytest.mark.parametrize(
    ("encoded", "key"),
    [
        ("0000 000167 000174 00000003", OffsetKey("g", TP)),
        ("0001 000167 000174 00000003", OffsetKey("g", TP)),
        ("0002 000167", GroupKey("g")),
        ("0003 000167", None),
        ("ffff", None),
    ],
)
def test_key_tells_the_kind_of_record(encoded: str, key: OffsetKey | GroupKey | None) -> None:
    assert decode_key(bytes.fromhex(encoded)) == key


@pytest.mark.parametrize(
    ("encoded", "leader_epoch", "expire_timestamp_ms"),
    [
        ("0000 0000000000000005 000178 0000000000000007", -1, -1),
        ("0001 0000000000000005 000178 0000000000000007 0000000000000009", -1, 9),
        ("0002 0000000000000005 000178 0000000000000007", -1, -1),
        ("0003 0000000000000005 00000002 000178 0000000000000007", 2, -1),
        ("0004 0000000000000005 00000002 0278 0000000000000007 00", 2, -1),
        ("0004 0000000000000005 00000002 0278 0000000000000007 01 05 02 ffff", 2, -1),
    ],
)
def test_offset_value_of_every_version_is_read(
    encoded: str, leader_epoch: int, expire_timestamp_ms: int
) -> None:
    assert decode_offset_value(bytes.fromhex(encoded)) == OffsetValue(
        offset=5,
        leader_epoch=leader_epoch,
        metadata="x",
        commit_timestamp_ms=7,
        expire_timestamp_ms=expire_timestamp_ms,
    )


@pytest.mark.parametrize(
    ("version", "head", "member"),
    [
        ("0000", "", "00016d 000163 000168 0000afc8"),
        ("0001", "", "00016d 000163 000168 000493e0 0000afc8"),
        ("0002", "0000000000000009", "00016d 000163 000168 000493e0 0000afc8"),
        ("0003", "0000000000000009", "00016d 000169 000163 000168 000493e0 0000afc8"),
    ],
)
def test_group_value_of_every_version_is_read(version: str, head: str, member: str) -> None:
    encoded = bytes.fromhex(
        f"{version} 0008 {b'consumer'.hex()} 00000005 0005 {b'range'.hex()} 00016d {head} "
        f"00000001 {member} 0000000173 0000000161"
    )
    decoded = decode_group_value(encoded)
    assert decoded.state_timestamp_ms == (9 if head else -1)
    assert decoded.members[0].group_instance_id == ("i" if version == "0003" else None)
    rebalance_timeout_ms = 45_000 if version == "0000" else 300_000
    assert decoded.members[0].rebalance_timeout_ms == rebalance_timeout_ms
    assert (decoded.members[0].subscription, decoded.members[0].assignment) == (b"s", b"a")


def test_group_value_of_the_flexible_version_is_read() -> None:
    encoded = bytes.fromhex(
        f"0004 09{b'consumer'.hex()} 00000005 06{b'range'.hex()} 026d 0000000000000009 02"
        "026d 0269 0263 0268 000493e0 0000afc8 0273 0261 00 00"
    )
    assert decode_group_value(encoded) == GROUP


@pytest.mark.parametrize("version", ["0005", "ffff"])
def test_value_of_an_unknown_version_is_refused(version: str) -> None:
    with pytest.raises(CorruptDataError):
        decode_offset_value(bytes.fromhex(version) + bytes(30))
    with pytest.raises(CorruptDataError):
        decode_group_value(bytes.fromhex(version) + bytes(30))


@pytest.mark.parametrize("size_change", [-1, 1])
def test_cut_or_prolonged_record_is_refused(size_change: int) -> None:
    record = offset_record("g", TP, OffsetAndMetadata(offset=1), 0)
    group = group_record("g", GROUP)

    def damaged(encoded: bytes | None) -> bytes:
        whole = encoded or b""
        return whole[:size_change] if size_change < 0 else whole + b"\0"

    with pytest.raises(CorruptDataError):
        decode_key(damaged(record.key))
    with pytest.raises(CorruptDataError):
        decode_offset_value(damaged(record.value))
    with pytest.raises(CorruptDataError):
        decode_group_value(damaged(group.value))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INT32 = st.integers(0, 2**31 - 1)
MEMBERS = st.builds(
    GroupMemberValue,
    member_id=TEXT,
    group_instance_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    rebalance_timeout_ms=INT32,
    session_timeout_ms=INT32,
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
GROUPS = st.builds(
    GroupValue,
    protocol_type=TEXT,
    generation_id=INT32,
    protocol_name=st.none() | TEXT,
    leader_id=st.none() | TEXT,
    state_timestamp_ms=st.integers(-1, 2**63 - 1),
    members=st.lists(MEMBERS, max_size=3).map(tuple),
)


@given(value=GROUPS)
def test_group_value_is_read_back_as_it_was_written(value: GroupValue) -> None:
    assert decode_group_value(group_record("g", value).value or b"") == value


@given(encoded=st.binary(max_size=60))
def test_hostile_bytes_are_read_or_refused(encoded: bytes) -> None:
    kinds = (OffsetKey, GroupKey, OffsetValue, GroupValue, type(None))
    for decode in (decode_key, decode_offset_value, decode_group_value):
        try:
            decoded = decode(encoded)
        except CorruptDataError:
            continue
        assert isinstance(decoded, kinds)
