"""Changing the key of tickets: open transactions go on, and nobody is refused for good too soon."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.cluster.cluster_records import BrokerRegistered, ClusterFounded
from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.cluster import BecomeLeaderRequest, RotateClusterKeyRequest
from oncelog.actors.protocol.tickets import (
    TICKET_GRACE_MS,
    TICKET_LIFETIME_MAX_MS,
    ClusterKeys,
    TicketVerdict,
    check_ticket,
    issue_ticket,
)
from oncelog.storage.errors import ErrorCode, InvariantViolation
from oncelog.storage.model import TopicPartition

NOW_MS = 1_700_000_000_000
CLAIM: dict[str, Any] = {
    "producer_id": 4242,
    "producer_epoch": 3,
    "transactional_id": "loader",
    "topic_id": "3f0c",
    "partition": 5,
}
FIRST = ClusterKeys(current=b"1" * 32)


def ticket(keys: ClusterKeys, *, issued_ms: int = NOW_MS, timeout_ms: int = 60_000) -> bytes:
    return issue_ticket(
        cluster_key=keys.current,
        key_version=keys.version,
        issued_ms=issued_ms,
        transaction_timeout_ms=timeout_ms,
        **CLAIM,
    )


def judge(given_ticket: bytes, keys: ClusterKeys, now_ms: int = NOW_MS) -> TicketVerdict:
    return check_ticket(given_ticket, keys=keys, now_ms=now_ms, **CLAIM)


# --- tickets ----------------------------------------------------------------------------------


def test_a_ticket_of_the_key_before_is_good_until_it_would_have_expired_anyway() -> None:
    long = 2**31 - 1
    second = FIRST.rotated(b"2" * 32, NOW_MS)
    old = ticket(FIRST, timeout_ms=long)
    assert judge(old, second, NOW_MS + TICKET_LIFETIME_MAX_MS) is TicketVerdict.VALID
    assert judge(old, second, NOW_MS + TICKET_LIFETIME_MAX_MS + 1) is TicketVerdict.INVALID
    short = ticket(FIRST, timeout_ms=60_000)
    end_ms = NOW_MS + 60_000 + TICKET_GRACE_MS
    assert judge(short, second, end_ms) is TicketVerdict.VALID
    assert judge(short, second, end_ms + 1) is TicketVerdict.INVALID


def test_a_key_that_leaked_makes_no_tickets_when_its_time_is_over() -> None:
    second = FIRST.rotated(b"2" * 32, NOW_MS)
    later_ms = NOW_MS + TICKET_LIFETIME_MAX_MS + 1
    assert judge(ticket(FIRST, issued_ms=later_ms), second, later_ms) is TicketVerdict.INVALID


def test_a_second_change_gives_the_first_key_up_at_once() -> None:
    third = FIRST.rotated(b"2" * 32, NOW_MS).rotated(b"3" * 32, NOW_MS)
    assert judge(ticket(FIRST), third) is TicketVerdict.INVALID


def test_a_key_that_is_not_known_yet_is_no_forgery() -> None:
    second = FIRST.rotated(b"2" * 32, NOW_MS)
    assert judge(ticket(second), FIRST) is TicketVerdict.NEWER_KEY
    assert judge(ticket(second), second) is TicketVerdict.VALID


def test_a_version_is_part_of_what_is_proven() -> None:
    second = FIRST.rotated(b"2" * 32, NOW_MS)
    forged = bytearray(ticket(FIRST))
    forged[4] = 1
    assert judge(bytes(forged), second) is TicketVerdict.INVALID
    same = FIRST.rotated(FIRST.current, NOW_MS)
    assert judge(bytes(forged), same) is TicketVerdict.INVALID


@given(data=st.data())
def test_no_ticket_of_the_current_or_previous_key_dies_of_a_rotation(data: Any) -> None:
    """However often keys change: whoever issued, at most one key behind, is never refused."""
    chain = [FIRST]
    now_ms = NOW_MS
    for serial in range(data.draw(st.integers(0, 6))):
        now_ms += data.draw(st.integers(0, 2 * TICKET_LIFETIME_MAX_MS))
        chain.append(chain[-1].rotated(bytes([serial]) * 32, now_ms))
    issuer = data.draw(st.sampled_from(chain))
    judging = data.draw(st.sampled_from(chain))
    issued_ms = now_ms
    timeout_ms = data.draw(st.integers(1, 900_000))
    age_ms = data.draw(st.integers(0, TICKET_LIFETIME_MAX_MS))
    verdict = judge(
        ticket(issuer, issued_ms=issued_ms, timeout_ms=timeout_ms), judging, issued_ms + age_ms
    )
    is_alive = age_ms <= timeout_ms + TICKET_GRACE_MS
    if issuer.version > judging.version:
        assert verdict is TicketVerdict.NEWER_KEY
    elif issuer.version == judging.version:
        assert verdict is (TicketVerdict.VALID if is_alive else TicketVerdict.INVALID)
    elif issuer.version == judging.version - 1:
        is_honoured = issued_ms + age_ms <= judging.rotated_ms + TICKET_LIFETIME_MAX_MS
        assert verdict is (
            TicketVerdict.VALID if is_alive and is_honoured else TicketVerdict.INVALID
        )
    else:
        assert verdict is TicketVerdict.INVALID


@given(noise=st.binary(max_size=64), version=st.integers(0, 3))
def test_noise_is_never_valid(noise: bytes, version: int) -> None:
    keys = ClusterKeys(version=version, current=b"1" * 32, previous=b"0" * 32, rotated_ms=NOW_MS)
    assert judge(noise, keys) is not TicketVerdict.VALID


# --- the controller's machine -----------------------------------------------------------------


@pytest.fixture
def log() -> list[LogRecord]:
    return []


@pytest.fixture
def machine(log: list[LogRecord]) -> ClusterMachine:
    cluster = ClusterMachine()
    founded = ClusterFounded(
        cluster_id="c",
        cluster_key=FIRST.current,
        transaction_state_partitions=1,
        offsets_partitions=1,
    )
    broker = BrokerRegistered(broker_id=1, data_dir="/d")
    commit(cluster, log, cluster.decide_founding(founded, broker, ("1" * 32, "2" * 32)))
    return cluster


def commit(machine: ClusterMachine, log: list[LogRecord], decision: Decision[Any]) -> Any:
    for record in decision.records:
        log.append(record)
        machine.apply(record)
    return decision.reply


def rotate(machine: ClusterMachine, log: list[LogRecord], version: int, key: bytes) -> Any:
    request = RotateClusterKeyRequest(key_version=version)
    return commit(machine, log, machine.decide_rotate_key(request, key, NOW_MS))


def test_a_change_of_the_key_is_durable_and_leaders_get_both(
    machine: ClusterMachine, log: list[LogRecord]
) -> None:
    assert machine.keys == FIRST
    reply = rotate(machine, log, 0, b"2" * 32)
    assert (reply.error, reply.key_version) == (ErrorCode.NONE, 1)
    assert machine.keys == FIRST.rotated(b"2" * 32, NOW_MS)
    reloaded = ClusterMachine()
    for record in log:
        reloaded.apply(record)
    assert reloaded.keys == machine.keys
    lead = BecomeLeaderRequest(
        topic_partition=TopicPartition("__transaction_state", 0),
        topic_id=reloaded.metadata(["__transaction_state"])[0].topic_id,
        broker_id=1,
        incarnation="i",
        expected_epoch=-1,
    )
    assert commit(reloaded, log, reloaded.decide_become_leader(lead)).keys == machine.keys


def test_a_repeated_change_is_one_change(machine: ClusterMachine, log: list[LogRecord]) -> None:
    rotate(machine, log, 0, b"2" * 32)
    count = len(log)
    again = rotate(machine, log, 0, b"3" * 32)
    assert (again.error, again.key_version) == (ErrorCode.NONE, 1)
    assert len(log) == count
    assert machine.keys.current == b"2" * 32


@pytest.mark.parametrize("version", [-2, 1, 2])
def test_a_change_of_a_key_that_is_not_current_is_refused(
    machine: ClusterMachine, log: list[LogRecord], version: int
) -> None:
    reply = rotate(machine, log, version, b"2" * 32)
    assert reply.error is ErrorCode.INVALID_REQUEST
    assert "current one is 0" in reply.detail
    assert machine.keys == FIRST


def test_a_key_that_skips_a_version_is_a_bug(machine: ClusterMachine, log: list[LogRecord]) -> None:
    decision = machine.decide_rotate_key(RotateClusterKeyRequest(key_version=0), b"2" * 32, NOW_MS)
    commit(machine, log, decision)
    with pytest.raises(InvariantViolation):
        commit(machine, log, decision)
