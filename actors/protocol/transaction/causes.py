"""Why an epoch is over, for a caller that still uses it: a code to act on, a text for people.

A producer that was only too slow can abort and continue; one that was replaced cannot. So the
coordinator remembers what raised each epoch, and answers the producer of the epoch before with it.

| the epoch rose because of | code |
|---|---|
| the transaction timeout | TRANSACTION_TIMED_OUT |
| an operator's abort | ABORTED_BY_OPERATOR |
| another producer's ``init_transactions`` | PRODUCER_FENCED |
| a distributed write under the same id | PRODUCER_FENCED |
| the death of a distributed write's driver | PRODUCER_FENCED |
| the failure of all members of a distributed write | PRODUCER_FENCED |
| its own end, or more than one rise | PRODUCER_FENCED |

Source: KIP-588 (timeouts that fence nobody); KIP-1050 for what is abortable.
"""

from __future__ import annotations

from typing import Final

from oncelog.actors.protocol.transaction.checks import Refusal
from oncelog.actors.protocol.transaction.end import EndAge, end_age
from oncelog.actors.protocol.transaction.state import ABORTED, EpochCause, TransactionMetadata
from oncelog.storage.errors import ErrorCode


def outdated(metadata: TransactionMetadata, producer_id: int, producer_epoch: int) -> Refusal:
    """What to answer a call with an epoch other than the current one of the id's own producer.

    An abort that the owner did not ask for is reported until the owner continues.
    """
    age = end_age(metadata, producer_id=producer_id, producer_epoch=producer_epoch)
    code = _CODES.get(metadata.epoch_cause)
    is_told = code is ErrorCode.PRODUCER_FENCED or metadata.state in ABORTED
    if age is EndAge.RETRY and code is not None and is_told:
        return code, cause_text(metadata)
    return ErrorCode.PRODUCER_FENCED, (
        f"a newer producer of {metadata.transactional_id!r} is known: it has producer id "
        f"{metadata.producer_id} and epoch {metadata.producer_epoch}, the call {producer_id} and "
        f"{producer_epoch}"
    )


def cause_text(metadata: TransactionMetadata) -> str:
    """What raised the epoch last, in words."""
    name = repr(metadata.transactional_id)
    return {
        EpochCause.OWNER: f"the transaction of {name} has ended",
        EpochCause.TIMEOUT: (
            f"the transaction of {name} was open for longer than its "
            f"transaction_timeout_ms={metadata.transaction_timeout_ms}, so its coordinator has "
            "aborted it; nobody has taken over"
        ),
        EpochCause.OPERATOR: f"an operator has aborted the transaction of {name}",
        EpochCause.PRODUCER: f"another producer has called init_transactions() with {name}",
        EpochCause.DRIVER: (
            f"the driver of the distributed write of {name} is gone, so its coordinator has "
            "aborted it"
        ),
        EpochCause.MEMBERS: (
            f"all who took part in the distributed write of {name} have failed, so its coordinator "
            "has aborted what they wrote"
        ),
        EpochCause.RUN: f"a distributed write has begun with {name}",
    }[metadata.epoch_cause]


_CODES: Final = {
    EpochCause.TIMEOUT: ErrorCode.TRANSACTION_TIMED_OUT,
    EpochCause.OPERATOR: ErrorCode.ABORTED_BY_OPERATOR,
    EpochCause.PRODUCER: ErrorCode.PRODUCER_FENCED,
    EpochCause.RUN: ErrorCode.PRODUCER_FENCED,
    EpochCause.DRIVER: ErrorCode.PRODUCER_FENCED,
    EpochCause.MEMBERS: ErrorCode.PRODUCER_FENCED,
}
