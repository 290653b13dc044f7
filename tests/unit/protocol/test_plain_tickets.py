"""Producer ids belong to their owners: what a stranger with the same id and epoch is answered."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.actors.protocol.partition import partition_machine
from oncelog.actors.protocol.partition.partition_machine import ACCEPTED
from oncelog.actors.protocol.tickets import (
    TICKET_LIFETIME_MAX_MS,
    ClusterKeys,
    TicketVerdict,
    check_plain_ticket,
    issue_plain_ticket,
    issue_ticket,
)
from oncelog.storage.errors import ErrorCode

A, B = 7, 8
KEY, NEXT_KEY, LAST_KEY = b"k" * 32, b"n" * 32, b"l" * 32
NOW_MS = 1_700_000_000_000
LAST_EPOCH = 32_767
UNKNOWN, INVALID = ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_TXN_STATE

ROTATED = ClusterKeys(current=KEY).rotated(NEXT_KEY, NOW_MS)
TWICE = ROTATED.rotated(LAST_KEY, NOW_MS)


# --- strangers --------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [0, LAST_EPOCH])
def test_a_plain_batch_of_a_transactional_id_never_takes_its_sequence(
    leader: Any, epoch: int
) -> None:
    """1. A stranger sends a plain batch with the owner's id, sequence 0, at rest. 2. The owner
    begins its transaction: its first batch is no duplicate, and nobody has raised its epoch.
    """
    assert leader.send(0, producer_epoch=epoch, is_owned=False).error is UNKNOWN
    assert leader.send_transactional(0, ticket=leader.ticket()) == ACCEPTED
    assert leader.end == 1


@pytest.mark.parametrize("epoch", [0, 1, LAST_EPOCH])
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "at rest"])
@pytest.mark.parametrize("is_owned", [True, False], ids=["plain ticket", "no ticket"])
@pytest.mark.parametrize("is_reloaded", [True, False], ids=["from a snapshot", "live"])
def test_an_id_of_transactions_is_closed_to_plain_batches(
    leader: Any, *, epoch: int, is_open: bool, is_owned: bool, is_reloaded: bool
) -> None:
    leader.open(A)
    if not is_open:
        leader.mark(A)
    if is_reloaded:
        leader.machine = leader.reload(leader.end, leader.machine.snapshot())
        leader.machine.become_leader(2, "topic-id-1", ClusterKeys(current=KEY))
    for sequence in (0, 1):
        refused = leader.send(sequence, producer_epoch=epoch, is_owned=is_owned)
        assert (refused.error, refused.is_early) == (INVALID, False)


def test_a_marker_that_left_the_epoch_does_not_open_the_id_to_plain_batches(leader: Any) -> None:
    leader.open(A)
    leader.mark(A, producer_epoch=1)
    leader.send_transactional(0, producer_epoch=1, ticket=leader.ticket(A, 1))
    leader.mark(A, producer_epoch=2)
    assert leader.send(0, producer_epoch=2).error is INVALID


def test_after_a_marker_an_id_is_one_of_transactions_whatever_was_written_before(
    leader: Any,
) -> None:
    leader.send(0)
    leader.mark(A, producer_epoch=0)
    assert leader.send(1).error is INVALID


@pytest.mark.parametrize("epoch", [0, 1, LAST_EPOCH])
@pytest.mark.parametrize("wrong", ["none", "noise", "another's", "enrolment", "another key's"])
def test_a_plain_id_is_its_owners(leader: Any, header_of: Any, epoch: int, wrong: str) -> None:
    assert leader.send(0, 4) == ACCEPTED
    ticket = {
        "none": None,
        "noise": b"x" * 49,
        "another's": leader.plain_ticket(B),
        "enrolment": leader.ticket(A, epoch),
        "another key's": leader.plain_ticket(A, key=NEXT_KEY),
    }[wrong]
    header = header_of(producer_epoch=epoch, base_sequence=0 if epoch else 5, crc=1)
    assert leader.decide(header, ticket=ticket).error is UNKNOWN
    assert leader.send(5) == ACCEPTED


def test_a_plain_ticket_opens_no_transaction(leader: Any) -> None:
    refused = leader.send_transactional(0, ticket=leader.plain_ticket())
    assert refused.error is INVALID


def test_without_a_ticket_nobody_joins_an_open_transaction_also_after_a_failover(
    leader: Any,
) -> None:
    leader.open(A)
    assert leader.send_transactional(1).error is INVALID
    leader.fail_over()
    assert leader.send_transactional(1).error is INVALID
    assert leader.send_transactional(1, ticket=leader.ticket(B)).error is INVALID
    assert leader.send_transactional(1, ticket=leader.ticket(A)) == ACCEPTED


# --- duplicates -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_transactional", [True, False])
def test_a_batch_of_other_content_is_no_duplicate(
    leader: Any, header_of: Any, *, is_transactional: bool
) -> None:
    ticket = leader.ticket() if is_transactional else leader.plain_ticket()
    kind = {"is_transactional": is_transactional}
    first = header_of(base_sequence=0, crc=1, **kind)
    leader.write(first, leader.decide(first, ticket=ticket))
    assert leader.decide(first, ticket=ticket, batch=b"").duplicate_base_offset == 0
    other = header_of(base_sequence=0, crc=2, **kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("oncelog.actors.protocol.partition.producers.crc_when_stamped", lambda *_: 3)
        verdict = leader.decide(other, ticket=ticket, batch=b"")
    assert verdict.duplicate_base_offset is None
    assert verdict.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("is_transactional", [True, False])
def test_a_batch_of_the_other_kind_is_no_duplicate(
    leader: Any, header_of: Any, *, is_transactional: bool
) -> None:
    if is_transactional:
        leader.send(0)
    else:
        leader.open()
    header = header_of(base_sequence=0, is_transactional=is_transactional)
    assert leader.decide(header).duplicate_base_offset is None


def test_content_that_is_not_known_counts_as_the_same(leader: Any, header_of: Any) -> None:
    leader.send(0, crc=1)
    leader.machine = leader.reload(leader.end, leader.machine.snapshot())
    leader.machine.become_leader(2, "topic-id-1", ClusterKeys(current=KEY))
    assert leader.decide(header_of(base_sequence=0, crc=1), batch=b"").duplicate_base_offset == 0


# --- keys -------------------------------------------------------------------------------------


def test_a_ticket_under_the_key_before_is_taken_and_its_owner_is_told(
    leader: Any, header_of: Any
) -> None:
    assert leader.send(0) == ACCEPTED
    leader.machine.learn_keys(ROTATED)
    for sequence in (1, 2):
        verdict = leader.send(sequence)
        assert (verdict.error, verdict.is_ticket_old) == (ErrorCode.NONE, True)
    ticket = issue_plain_ticket(
        cluster_key=NEXT_KEY, producer_id=A, issued_ms=NOW_MS, key_version=1
    )
    for _ in range(2):
        verdict = leader.decide(header_of(base_sequence=leader.end), ticket=ticket)
        assert verdict == ACCEPTED


def test_a_ticket_whose_key_was_given_up_is_refused_also_in_the_middle(leader: Any) -> None:
    assert leader.send(0) == ACCEPTED
    leader.machine.learn_keys(TWICE)
    assert leader.send(1).error is UNKNOWN


def test_a_ticket_of_a_newer_key_asks_for_the_keys(leader: Any, header_of: Any) -> None:
    ticket = issue_plain_ticket(
        cluster_key=NEXT_KEY, producer_id=A, issued_ms=NOW_MS, key_version=1
    )
    verdict = leader.decide(header_of(base_sequence=leader.end), ticket=ticket)
    assert (verdict.error, verdict.needs_keys) == (ErrorCode.NOT_ENOUGH_REPLICAS, True)


@pytest.mark.parametrize(
    ("keys", "age_ms", "verdict"),
    [
        (ClusterKeys(current=KEY), 10**12, TicketVerdict.VALID),
        (ROTATED, TICKET_LIFETIME_MAX_MS, TicketVerdict.VALID),
        (ROTATED, TICKET_LIFETIME_MAX_MS + 1, TicketVerdict.INVALID),
        (TWICE, 0, TicketVerdict.INVALID),
    ],
)
def test_a_plain_ticket_ends_with_its_key_and_not_before(
    keys: ClusterKeys, age_ms: int, verdict: TicketVerdict
) -> None:
    ticket = issue_plain_ticket(cluster_key=KEY, producer_id=A, issued_ms=NOW_MS)
    found = check_plain_ticket(ticket, keys=keys, producer_id=A, now_ms=NOW_MS + age_ms)
    assert found is verdict


def test_an_enrolment_that_looks_like_a_plain_ticket_is_none() -> None:
    ticket = issue_ticket(
        cluster_key=KEY,
        producer_id=A,
        producer_epoch=-1,
        transactional_id="loader",
        topic_id="",
        partition=-1,
        issued_ms=NOW_MS,
        transaction_timeout_ms=0,
    )
    keys = ClusterKeys(current=KEY)
    found = check_plain_ticket(ticket, keys=keys, producer_id=A, now_ms=NOW_MS)
    assert found is TicketVerdict.INVALID


# --- cost -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_transactional", [True, False])
def test_a_ticket_is_looked_at_once(
    leader: Any, monkeypatch: pytest.MonkeyPatch, *, is_transactional: bool
) -> None:
    looks: list[bytes] = []
    for name in ("check_ticket", "check_plain_ticket"):
        real = getattr(partition_machine, name)

        def check(ticket: bytes, real: Any = real, **fields: Any) -> Any:
            looks.append(ticket)
            return real(ticket, **fields)

        monkeypatch.setattr(partition_machine, name, check)
    for sequence in range(10):
        if is_transactional:
            leader.send_transactional(sequence, ticket=leader.ticket())
        else:
            leader.send(sequence)
    assert len(looks) == 1


def test_tickets_that_are_remembered_are_bounded(
    leader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_machine, "VERIFIED_TICKETS_MAX", 3)
    for producer_id in range(10):
        assert leader.send(0, producer_id=producer_id) == ACCEPTED
        assert len(leader.machine._verified) <= 3
    for producer_id in range(10):
        assert leader.send(1, producer_id=producer_id) == ACCEPTED


def test_the_ticket_of_a_transaction_never_opens_its_id_to_plain_batches(leader: Any) -> None:
    """1. A batch in a transaction comes too early, with a sound ticket. 2. The same producer sends
    a plain batch with that ticket: the ticket is known to be sound, but for a transaction.
    """
    ticket = leader.ticket()
    early = leader.send_transactional(5, ticket=ticket)
    assert early.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    leader.plain_ticket = lambda _producer_id: ticket
    assert leader.send(0).error is UNKNOWN
    assert leader.end == 0
