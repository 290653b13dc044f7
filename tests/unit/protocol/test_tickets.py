from __future__ import annotations

from typing import Any

import pytest

from oncelog.actors.protocol.tickets import (
    CHAINED_TICKET_BYTES,
    NO_CHAIN,
    TICKET_BYTES,
    TICKET_GRACE_MS,
    TICKET_LIFETIME_MAX_MS,
    ClusterKeys,
    TicketVerdict,
    chain_epoch_of,
    check_plain_ticket,
    check_ticket,
    issue_ticket,
)

ISSUED_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
CLAIM: dict[str, Any] = {
    "cluster_key": b"k" * 32,
    "producer_id": 4242,
    "producer_epoch": 3,
    "transactional_id": "loader",
    "topic_id": "3f0c",
    "partition": 5,
}


def ticket(timeout_ms: int = TIMEOUT_MS, chain_epoch: int = NO_CHAIN) -> bytes:
    return issue_ticket(
        **CLAIM,
        issued_ms=ISSUED_MS,
        transaction_timeout_ms=timeout_ms,
        chain_epoch=chain_epoch,
    )


def is_valid(given: bytes, *, now_ms: int = ISSUED_MS, **changed: Any) -> bool:
    claim = {**CLAIM, **changed}
    keys = ClusterKeys(current=claim.pop("cluster_key"))
    return check_ticket(given, keys=keys, **claim, now_ms=now_ms) is TicketVerdict.VALID


def test_ticket_is_valid_for_the_producer_and_partition_it_names() -> None:
    assert is_valid(ticket())


def test_ticket_bytes_are_stable() -> None:
    assert ticket().hex() == (
        "03000000000000018bcfe568000000ea60"
        "b172c2f44356eae68d2074755323e543547e2aafc8d237ba843ac9fd9411959a"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"cluster_key": b"j" * 32},
        {"producer_id": 4243},
        {"producer_epoch": 2},
        {"producer_epoch": 4},
        {"topic_id": "3f0d"},
        {"topic_id": "3f0"},
        {"transactional_id": "load"},
        {"transactional_id": "loader3", "topic_id": "f0c"},
        {"transactional_id": ""},
        {"partition": 4},
    ],
)
def test_ticket_is_refused_for_anything_else(changed: dict[str, Any]) -> None:
    assert not is_valid(ticket(), **changed)


@pytest.mark.parametrize("position", range(TICKET_BYTES))
def test_ticket_with_one_bit_flipped_is_refused(position: int) -> None:
    forged = bytearray(ticket())
    forged[position] ^= 1
    assert not is_valid(bytes(forged))


@pytest.mark.parametrize("size", [0, 1, TICKET_BYTES - 1, TICKET_BYTES + 1, 4096])
def test_ticket_of_another_size_is_refused(size: int) -> None:
    assert not is_valid(ticket().ljust(size, b"\x00")[:size])


def test_ticket_lives_for_the_transaction_timeout_and_an_hour() -> None:
    last_ms = ISSUED_MS + TIMEOUT_MS + TICKET_GRACE_MS
    assert is_valid(ticket(), now_ms=last_ms)
    assert not is_valid(ticket(), now_ms=last_ms + 1)


def test_ticket_of_a_very_long_transaction_dies_before_producers_are_forgotten() -> None:
    long_ticket = ticket(timeout_ms=2**31 - 1)
    assert is_valid(long_ticket, now_ms=ISSUED_MS + TICKET_LIFETIME_MAX_MS)
    assert not is_valid(long_ticket, now_ms=ISSUED_MS + TICKET_LIFETIME_MAX_MS + 1)


# --- chained tickets --------------------------------------------------------------------------


def test_chained_ticket_tells_its_chain_and_is_valid_for_the_same_producer() -> None:
    chained = ticket(chain_epoch=2)
    assert is_valid(chained)
    assert len(chained) == CHAINED_TICKET_BYTES
    assert (chain_epoch_of(chained), chain_epoch_of(ticket())) == (2, NO_CHAIN)
    assert not is_valid(chained, producer_epoch=2)
    last_ms = ISSUED_MS + TIMEOUT_MS + TICKET_GRACE_MS
    assert is_valid(chained, now_ms=last_ms)
    assert not is_valid(chained, now_ms=last_ms + 1)


def test_chained_ticket_bytes_are_stable() -> None:
    assert ticket(chain_epoch=2).hex() == (
        "04000000000000018bcfe568000000ea600002"
        "0384b197c2c01a99a4c42c7fdb64e8ff12190aa76b3a3804a338fbdbb14ce399"
    )


@pytest.mark.parametrize("position", range(CHAINED_TICKET_BYTES))
def test_chained_ticket_with_one_bit_flipped_is_refused(position: int) -> None:
    forged = bytearray(ticket(chain_epoch=2))
    forged[position] ^= 1
    assert not is_valid(bytes(forged))


def test_neither_kind_of_ticket_passes_for_the_other() -> None:
    chained, unchained = ticket(chain_epoch=2), ticket()
    assert not is_valid(b"\x03" + chained[1:17] + chained[19:])
    assert not is_valid(b"\x04" + unchained[1:17] + chained[17:19] + unchained[17:])
    keys = ClusterKeys(current=CLAIM["cluster_key"])
    verdict = check_plain_ticket(
        chained, keys=keys, producer_id=CLAIM["producer_id"], now_ms=ISSUED_MS
    )
    assert verdict is TicketVerdict.INVALID


@pytest.mark.parametrize("size", [0, 1, TICKET_BYTES, CHAINED_TICKET_BYTES - 1, 52])
def test_chained_ticket_of_another_size_is_refused(size: int) -> None:
    assert not is_valid(ticket(chain_epoch=2).ljust(size, b"\x00")[:size])
