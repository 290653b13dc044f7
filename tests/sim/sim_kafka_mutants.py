"""Protections of transactions that come through a gateway, removed. See ``sim_saboteurs``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

from msgspec import structs
from sim_nemesis import RATES
from sim_saboteurs import ALONE, Saboteur, preparing

from oncelog.actors.gateway.calls import Call
from oncelog.actors.gateway.connection_order import ConnectionPlace
from oncelog.actors.gateway.records import produce
from oncelog.actors.gateway.transactions import requests
from oncelog.actors.gateway.transactions import told as told_requests
from oncelog.actors.gateway.transactions.enrolments import Enrolments
from oncelog.actors.protocol.messages.partition import (
    DescribeProducersReply,
    ProducerDescription,
)
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    ConnectionLabel,
    VerifyTxnRequest,
)
from oncelog.actors.protocol.partition import partition_machine
from oncelog.actors.protocol.partition.producers import (
    AppendedBatch,
    ProducerEntry,
    ProducerStates,
)
from oncelog.actors.protocol.tickets import TICKET_BYTES, TicketVerdict
from oncelog.actors.protocol.transaction import producers as transaction_producers
from oncelog.actors.protocol.transaction import transaction_state
from oncelog.actors.protocol.transaction.told import ToldPair
from oncelog.actors.protocol.transaction.transaction_state import EpochCause, TransactionMetadata
from oncelog.actors.transactions.transaction_coordinator import TransactionCoordinator
from oncelog.storage.errors import ErrorCode
from oncelog.storage.records.batch import BatchHeader

NO_FAULTS: dict[str, Any] = dict.fromkeys(RATES, 0.0) | {
    "kill_at_message": 0.0,
    "kill_node": 0.0,
    "cut_node": 0.0,
    "stop_node": 0.0,
    "lose_node": 0.0,
    "forget_controller": 0.0,
    "mislead": 0.0,
    "disk_refusal": 0.0,
    "file_damage": 0.0,
    "move": 0.0,
    "kill_group": 0.0,
    "lasts": "",
}
"""Only what a world names strikes."""

KAFKA: dict[str, Any] = (
    ALONE
    | NO_FAULTS
    | {
        "writers": 0,
        "operators": 0,
        "readers": 1,
        "uncommitted_readers": 0,
        "kafka_writers": 2,
        "pause_ms": 20.0,
        "request_timeout_ms": 300,
        "transaction_timeout_ms": 3_000,
    }
)
"""Nobody but clients of Kafka and a reader."""

LATE: dict[str, Any] = {"kafka_delays": 0.1, "kafka_stalls": 0.03, "delay_max_ms": 5_000.0}
"""Calls and connections that are late, not by much more than a transaction takes."""

FORGED = bytes(TICKET_BYTES)


@contextmanager
def _tickets_for_all() -> Iterator[None]:
    """A batch has a ticket for what it names, though nobody has enrolled that."""
    real_ask, real_check = Enrolments.ticket, partition_machine.check_ticket

    async def ticket(self: Enrolments, *args: Any) -> tuple[ErrorCode, bytes]:
        error, found = await real_ask(self, *args)
        return ErrorCode.NONE, found if error is ErrorCode.NONE else FORGED

    def check_ticket(ticket: bytes, **fields: Any) -> TicketVerdict:
        return TicketVerdict.VALID if ticket == FORGED else real_check(ticket, **fields)

    with (
        mock.patch.object(Enrolments, "ticket", ticket),
        mock.patch.object(partition_machine, "check_ticket", check_ticket),
    ):
        yield


@contextmanager
def _sequences_of_memory() -> Iterator[None]:
    """A gateway counts the positions that it has sent, and so none of another one."""
    real = requests._describe
    counted: WeakKeyDictionary[Any, dict[Any, int]] = WeakKeyDictionary()

    async def describe(call: Call, asked: Any, arrived_ms: int) -> Any:
        actor, reply = await real(call, asked, arrived_ms)
        if reply.error is not ErrorCode.NONE:
            return actor, reply
        key = (asked.transactional_id, asked.producer_id, asked.producer_epoch)
        memory = counted.setdefault(call.cluster.view, {})
        last = memory.get(key, -1)
        memory[key] = last + len(asked.offsets)
        described = ProducerDescription(
            producer_id=asked.producer_id,
            producer_epoch=asked.producer_epoch,
            last_sequence=last,
            last_timestamp_ms=0,
            coordinator_epoch=-1,
        )
        return actor, DescribeProducersReply(producers=(described,) if last >= 0 else ())

    with mock.patch.object(requests, "_describe", describe):
        yield


@contextmanager
def _sequences_after_enrolment() -> Iterator[None]:
    """The sequence of positions is asked for when all else is done, however late that is."""
    real_describe = requests._describe

    async def gather(described: Any, enrolled: Any) -> Any:
        reply = await enrolled
        return await described, reply

    async def describe(call: Call, asked: Any, arrived_ms: int) -> Any:
        del arrived_ms
        return await real_describe(call, asked, requests.loop_ms())

    in_turn = SimpleNamespace(**vars(asyncio) | {"gather": gather})
    with (
        mock.patch.object(requests, "asyncio", in_turn),
        mock.patch.object(requests, "_describe", describe),
    ):
        yield


# --- version 1 --------------------------------------------------------------------------------


def _checks_of_labels(lenient: Callable[..., ToldPair | None]) -> Any:
    """Requests are judged by a pair whose label is what ``lenient`` makes of it."""
    real = transaction_producers.check_told

    def check_told(
        told: ToldPair | None, request: Any, label: ConnectionLabel, coordinator_epoch: int
    ) -> Any:
        known = None if told is None else lenient(told, label, coordinator_epoch)
        current = structs.replace(label, coordinator_epoch=coordinator_epoch)
        return real(known, request, current, coordinator_epoch)

    return mock.patch.object(transaction_producers, "check_told", check_told)


def _labels_ignored() -> Any:
    """A request counts in whatever order it comes."""
    return _checks_of_labels(lambda told, *_: structs.replace(told, label=None))


def _epochs_of_labels_ignored() -> Any:
    """Labels of different coordinators are in no order, and each is good enough."""

    def lenient(told: ToldPair, label: ConnectionLabel, coordinator_epoch: int) -> ToldPair:
        known = told.label
        if known is not None and known.coordinator_epoch == label.coordinator_epoch:
            known = structs.replace(known, coordinator_epoch=coordinator_epoch)
            return structs.replace(told, label=known)
        return structs.replace(told, label=None)

    return _checks_of_labels(lenient)


@contextmanager
def _told_after_timeouts() -> Iterator[None]:
    """A version 1 client goes on after its transaction timed out."""
    real = transaction_state.prepared

    def prepared(metadata: TransactionMetadata, **fields: Any) -> TransactionMetadata:
        decided = real(metadata, **fields)
        is_late = fields.get("cause") is EpochCause.TIMEOUT
        return structs.replace(decided, told=metadata.told) if is_late else decided

    with preparing(prepared):
        yield


def _verify_enrols() -> Any:
    """As in Kafka, where a leader that asks whether a partition is enrolled may enrol it."""
    real = TransactionCoordinator.verify_txn

    async def verify_txn(self: TransactionCoordinator, request: VerifyTxnRequest) -> Any:
        metadata = self.machine.ids.metadata(request.transactional_id)
        told = None if metadata is None else metadata.told
        if told is not None and told.label is not None and request.partitions:
            await self.add_partitions_to_txn(
                AddPartitionsToTxnRequest(
                    transactional_id=request.transactional_id,
                    producer_id=request.producer_id,
                    producer_epoch=request.producer_epoch,
                    partitions=request.partitions,
                    label=told.label,
                )
            )
        return await real(self, request)

    return mock.patch.object(TransactionCoordinator, "verify_txn", verify_txn)


def _no_chain() -> Any:
    """Each epoch begins at 0, whoever writes."""
    return mock.patch.object(ProducerEntry, "first_sequence", return_value=0)


@contextmanager
def _copies_of_all_epochs() -> Iterator[None]:
    """A batch is taken for a copy of one that had its sequence, in whatever epoch that was."""

    def duplicate_of(self: ProducerEntry, header: BatchHeader) -> AppendedBatch | None:
        return next(
            (
                batch
                for batch in self.batches
                if (batch.first_sequence, batch.last_sequence)
                == (header.base_sequence, header.last_sequence)
            ),
            None,
        )

    def find_duplicate(self: ProducerStates, header: BatchHeader, _: Any = None) -> Any:
        entry = self._entries.get(header.producer_id)
        return None if entry is None else duplicate_of(entry, header)

    with mock.patch.object(ProducerStates, "find_duplicate", find_duplicate):
        yield


def _kept_pairs_believed() -> Any:
    """A batch goes out under the pair that is kept, and the leader's answer is the client's."""
    return mock.patch.object(produce, "_OF_ANOTHER_TRANSACTION", frozenset())


@contextmanager
def _connections_go_on() -> Iterator[None]:
    """A request of which nothing is known is answered, and its repeat has the same label."""
    real = ConnectionPlace.label

    def label(self: ConnectionPlace, shard: int, transactional_id: str) -> ConnectionLabel:
        return structs.replace(real(self, shard, transactional_id), request=0)

    with (
        mock.patch.object(told_requests, "_UNANSWERED", frozenset()),
        mock.patch.object(ConnectionPlace, "label", label),
    ):
        yield


@contextmanager
def _everybody_lives() -> Iterator[None]:
    """What a client gave up when it aborted counts if it comes in its next transaction."""
    with (
        mock.patch.object(produce, "shows_life", return_value=True),
        mock.patch.object(requests, "shows_life", return_value=True),
    ):
        yield


VERSION_1: dict[str, Any] = KAFKA | {"kafka_kinds": ("librdkafka", "java-3")}

STALLED: dict[str, Any] = VERSION_1 | {
    "kafka_stalls": 0.08,
    "kafka_late": 1.0,
    "delay_max_ms": 3_000.0,
    "pause_ms": 5.0,
    "kafka_writers": 3,
}
"""Connections on which much is late."""

COPIES: dict[str, Any] = KAFKA | {
    "kafka_writers": 0,
    "kafka_copiers": 2,
    "kafka_commits_max": 4,
    "kafka_late": 0.0,
    "plain_writers": 1,
    "pause_ms": 60.0,
}
"""Several commits of positions in a transaction, and nothing that is read too late: see ADR 34."""

KAFKA_MUTANTS = (
    Saboteur(
        name="tickets of what is enrolled",
        sabotage=_tickets_for_all,
        changes=KAFKA
        | {"kafka_stalls": 0.4, "kafka_late": 1.0, "delay_max_ms": 5_000.0, "kafka_writers": 4},
    ),
    Saboteur(
        name="sequences of the log",
        sabotage=_sequences_of_memory,
        changes=COPIES | {"kill": 1.0},
    ),
    Saboteur(
        name="signs of life after an abort",
        checker="AbortedReads",
        sabotage=_everybody_lives,
        changes=VERSION_1
        | {
            "kafka_kinds": ("librdkafka",),
            "kafka_writers": 4,
            "kafka_batch_max": 1,
            "kafka_holds": 0.1,
            "kafka_purges": 1.0,
            "kafka_late": 1.0,
            "pause_ms": 200.0,
            "topics": {"t0": 2},
        },
    ),
    Saboteur(
        name="sequences asked for at once",
        sabotage=_sequences_after_enrolment,
        changes=COPIES
        | {
            "brokers": 3,
            "topics": {"t0": 3},
            "kafka_copiers": 3,
            "kafka_commits_max": 6,
            "kafka_ends_after_ms": 2_000.0,
            "kafka_wanders": 1.0,
            "kafka_delays": 0.25,
            "kafka_delayed": ("add_offsets_to_txn",),
            "delay_max_ms": 3_000.0,
            "request_timeout_ms": 200,
            "transaction_timeout_ms": 20_000,
            "readers": 0,
        },
    ),
    Saboteur(
        name="order of version 1 requests",
        sabotage=_labels_ignored,
        changes=STALLED,
    ),
    Saboteur(
        name="coordinators in that order",
        sabotage=_epochs_of_labels_ignored,
        changes=STALLED | {"kafka_moves": 0.7, "duration_s": 6.0, "kafka_writers": 4},
    ),
    Saboteur(
        name="told pairs end with a timeout",
        sabotage=_told_after_timeouts,
        changes=VERSION_1
        | {"transaction_timeout_ms": 1_000, "topics": {"t0": 6}, "kafka_writers": 4},
    ),
    Saboteur(
        name="questions that enrol nothing",
        checker="FencedProducers",
        sabotage=_verify_enrols,
        changes=VERSION_1
        | {
            "kafka_delays": 0.01,
            "kafka_repeats": 0.5,
            "kafka_delayed": ("verify_txn",),
            "kafka_keeps_ids": True,
            "delay_max_ms": 3_000.0,
            "transaction_timeout_ms": 500,
            "pause_ms": 400.0,
            "duration_s": 5.0,
            "kafka_writers": 4,
            "kafka_slow": 0.0,
            "brokers": 3,
        },
    ),
    Saboteur(
        name="chained sequences",
        checker="ShutOutWrites",
        sabotage=_no_chain,
        changes=VERSION_1 | {"duration_s": 1.0},
    ),
    Saboteur(
        name="copies of the same epoch",
        sabotage=_copies_of_all_epochs,
        changes=VERSION_1 | LATE,
    ),
    Saboteur(
        name="pairs asked for again",
        checker="ShutOutWrites",
        sabotage=_kept_pairs_believed,
        changes=VERSION_1 | {"brokers": 3, "duration_s": 1.0},
    ),
    Saboteur(
        name="connections end with a lost answer",
        sabotage=_connections_go_on,
        changes=VERSION_1
        | {"kafka_delays": 0.2, "break_off": 0.2, "delay_max_ms": 2_000.0, "duration_s": 2.0},
    ),
)
