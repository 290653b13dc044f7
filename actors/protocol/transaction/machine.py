"""The transaction coordinator's machine: from first partition to COMPLETE, for many ids.

Rules. ``decide_…`` validates and returns records and a reply; it changes nothing but a pending
mark. ``ids.apply`` is the one mutator, live and on reload. While a mark is set, requests that would
change the id are answered ``CONCURRENT_TRANSACTIONS``. Once PREPARE is durable the verdict is
final (I-11); COMPLETE follows when every marker is written (I-15).

| who asks | part |
|---|---|
| a producer: init_producer_id, add_partitions, end_txn | ``producers``, ``end`` |
| a distributed write: begin_run, enlist, leave_run, renew_run, end_txn | ``runs``, ``end`` |
| an operator: describe, abort, delete | ``operations`` |
| the coordinator itself: completion, timeout, expiration | ``upkeep`` |

Source: KIP-98, KIP-360, KIP-890; members, runs and tokens are oncelog's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from oncelog.actors.protocol.effects import Decision, refused
from oncelog.actors.protocol.messages.transaction import EndTxnReply, EndTxnRequest
from oncelog.actors.protocol.tickets import TRANSACTION_TIMEOUT_LIMIT_MS
from oncelog.actors.protocol.transaction.checks import check_end_txn
from oncelog.actors.protocol.transaction.ids import TransactionalIds
from oncelog.actors.protocol.transaction.members import HeldRecords
from oncelog.actors.protocol.transaction.operations import Operations
from oncelog.actors.protocol.transaction.producer_ids import ProducerIdBlocks
from oncelog.actors.protocol.transaction.producers import Producers
from oncelog.actors.protocol.transaction.runs import Runs
from oncelog.actors.protocol.transaction.upkeep import Upkeep

NOTHING_HELD: Final = HeldRecords()
NO_TOPICS: Final[Mapping[str, int]] = MappingProxyType({})


class TransactionMachine:
    """The transactional ids of one coordinator shard, and the parts that decide on them."""

    def __init__(
        self,
        *,
        producer_ids: ProducerIdBlocks,
        transaction_max_timeout_ms: int,
        transactional_id_expiration_ms: int,
        distributed_write_max_ms: int = TRANSACTION_TIMEOUT_LIMIT_MS,
    ) -> None:
        self.ids = TransactionalIds()
        self.producers = Producers(self.ids, producer_ids, transaction_max_timeout_ms)
        self.runs = Runs(self.ids, producer_ids, transaction_max_timeout_ms)
        self.operations = Operations(self.ids, producer_ids)
        self.upkeep = Upkeep(
            self.ids, producer_ids, transactional_id_expiration_ms, distributed_write_max_ms
        )

    def decide_end_txn(
        self,
        request: EndTxnRequest,
        now_ms: int,
        held: HeldRecords = NOTHING_HELD,
        partition_counts: Mapping[str, int] = NO_TOPICS,
    ) -> Decision[EndTxnReply]:
        """Decide a transaction of one producer or of a run, or answer how it was decided.

        ``held`` is what the leaders hold of the winners; see ``Runs.winner_partitions``.
        ``partition_counts`` is as in ``decide_add_partitions``, for what is enrolled ahead.
        """
        refusal = check_end_txn(request)
        if refusal is not None:
            return refused(request, *refusal)
        if request.run is None:
            return self.producers.decide_end(request, now_ms, partition_counts)
        return self.runs.decide_end(request, request.run, held, now_ms)
