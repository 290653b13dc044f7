"""Clients of transactions' version 1: the pair that they were told, and their requests' order.

Rules. Such a client has one producer id and epoch for all of its transactions, its *told pair*,
while the id's own epoch rises with each end. So a request does not say which transaction it is of.
Its *label* does: later requests of a client have higher ones. What one of N+1 has changed leaves a
higher label than any of N, and from then on those are rejected.

| a request with a label | answer |
|---|---|
| of another coordinator epoch than this coordinator's | NOT_COORDINATOR |
| of another pair than the told one, or if nobody was told one | PRODUCER_FENCED |
| lower than the label of a request that was answered with success | NOT_COORDINATOR |
| any other | as for the id's own producer |

A coordinator that replaced another knows labels of its predecessors' time, whose numbers it cannot
compare: hence the first rule. A label has its epoch only if its connection knew that before the
request was sent, and by then all that its predecessors have accepted was sent.

Every success leaves its label in the log. So it is durable that older requests are over, and a
coordinator that has been replaced without knowing it cannot answer out of its memory that the
transaction is committed which another one has opened.

Who else ends a transaction, or takes the id, takes the told pair away: its client is fenced for
good. It may ask for another one itself, after a batch was lost (KIP-360). The answer may be lost,
so the pair *before* may ask again, until the new one is used.

A client that aborts may give up batches and positions which nobody has read yet, without asking for
another pair. So gateways are told how often that was: after each time they take nothing of a
connection until its client has shown on it that it lives (``gateway/transactions/told.py``).

Source: KIP-98 for version 1; KIP-890 for what is wrong with it (KAFKA-17754).
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    ConnectionLabel,
    EndTxnRequest,
    InitProducerIdRequest,
    VerifyTxnRequest,
)
from oncelog.actors.protocol.transaction.checks import Refusal
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import INT64_MAX


class ToldPair(msgspec.Struct, frozen=True, kw_only=True):
    """What the version 1 client that owns an id was told, and what is known of its requests.

    ``label`` is the highest that was answered with success, ``None`` before the first. ``before``
    is the pair that this one was asked for with, until this one is used. ``aborts`` counts the
    transactions under this pair that its client has aborted.
    """

    producer_id: int
    producer_epoch: int
    label: ConnectionLabel | None = None
    before: tuple[int, int] | None = None
    aborts: int = 0

    @property
    def pair(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self.producer_id, self.producer_epoch


_NOT_TOLD: Final[Refusal] = (
    ErrorCode.PRODUCER_FENCED,
    "the transactions of this producer id and epoch are over: another producer has the "
    "transactional id, or a timeout or an operator has ended the last one",
)


def check_told(
    told: ToldPair | None,
    request: AddPartitionsToTxnRequest | EndTxnRequest,
    label: ConnectionLabel,
    coordinator_epoch: int,
) -> Refusal | None:
    """Whether ``request``, with its label, is of the client that was told, and not a late one."""
    if label.coordinator_epoch != coordinator_epoch:
        return ErrorCode.NOT_COORDINATOR, (
            f"the connection began when the coordinator's epoch was {label.coordinator_epoch}, as "
            f"far as its gateway knew; it is {coordinator_epoch}: connect again"
        )
    for name in ("incarnation", "number", "request"):
        if not 0 <= getattr(label, name) <= INT64_MAX:
            return ErrorCode.INVALID_REQUEST, f"{name} of the label: give 0 to 2^63 - 1"
    refusal = check_pair(told, request)
    if refusal is None and told is not None and told.label is not None and label < told.label:
        return ErrorCode.NOT_COORDINATOR, "a later request has been answered: connect again"
    return refusal


def check_pair(
    told: ToldPair | None, request: AddPartitionsToTxnRequest | EndTxnRequest | VerifyTxnRequest
) -> Refusal | None:
    """Whether ``request`` is of the client that was told."""
    is_its = told is not None and (request.producer_id, request.producer_epoch) == told.pair
    return None if is_its else _NOT_TOLD


def check_recovery(told: ToldPair | None, request: InitProducerIdRequest) -> Refusal | None:
    """Whether ``request``, with a pair, is of the client that was told, as a version 1 client."""
    pair = (request.producer_id, request.producer_epoch)
    is_its = told is not None and request.as_version_1 and pair in (told.pair, told.before)
    return None if is_its else _NOT_TOLD
