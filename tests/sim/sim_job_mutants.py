"""Distributed writes with one protection less: their tokens, versions, runs and drivers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest import mock

from msgspec import structs
from sim_loop import PROCESS
from sim_saboteurs import ALONE, Saboteur

from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.messages.transaction import (
    BeginRunRequest,
    Winner,
)
from oncelog.actors.protocol.transaction import checks as transaction_checks
from oncelog.actors.protocol.transaction import producers as transaction_producers
from oncelog.actors.protocol.transaction import runs as transaction_runs
from oncelog.actors.protocol.transaction import transaction_state
from oncelog.actors.protocol.transaction.runs import Runs
from oncelog.actors.protocol.transaction.transaction_state import TransactionMetadata
from oncelog.api.distributing import engine_connection
from oncelog.api.distributing.write import DistributedWrite, WriteOptions
from oncelog.api.producing.member import TransactionMember
from oncelog.spark_bridge.micro_batch_write import MicroBatch, MicroBatchWrite
from oncelog.storage.errors import ErrorCode


@contextmanager
def _forgotten_tokens() -> Iterator[None]:
    """What is committed is asked for by its token, and once more by the version in it."""
    with (
        mock.patch.object(transaction_runs, "is_token_committed", return_value=False),
        mock.patch.object(transaction_checks, "is_same_commit", return_value=False),
    ):
        yield


@contextmanager
def _runs_numbered_by_their_drivers_clock() -> Iterator[None]:
    """Runs are ordered by when they began, as their drivers tell; older ones are fenced."""
    digits = 15
    real = Runs.decide_begin_run

    def new_run_id(chance: Random) -> str:
        clock = PROCESS.get(None).clock
        return f"{clock.now_ms():0{digits}}{chance.getrandbits(64):016x}"

    def begin_run(self: Runs, request: BeginRunRequest, now_ms: int) -> Any:
        metadata = self.ids.metadata(request.transactional_id)
        number = int(request.run_id[:digits])
        newest = transaction_runs.newest_run_number(metadata)
        if metadata is not None and metadata.run.id != request.run_id and number < newest:
            return Decision(reply=request.failed(ErrorCode.PRODUCER_FENCED))

        def run_begun(metadata: TransactionMetadata, run_id: str, **fields: Any) -> Any:
            begun = transaction_state.run_begun(metadata, run_id, **fields)
            return structs.replace(begun, run=structs.replace(begun.run, number=number))

        with mock.patch.object(transaction_runs, "run_begun", run_begun):
            return real(self, request, now_ms)

    with (
        mock.patch.object(engine_connection, "new_run_id", new_run_id),
        mock.patch.object(Runs, "decide_begin_run", begin_run),
    ):
        yield


def _deaths_of_drivers_unnoticed() -> Any:
    return mock.patch.object(Runs, "open_drivers", return_value=())


def _versions_without_order() -> Any:
    return mock.patch.object(transaction_checks, "passed_version", return_value=None)


def _versions_forgotten_by_producers() -> Any:
    """The id's own producer commits what it likes, and the id remembers that instead."""
    return mock.patch.object(transaction_producers, "check_version", return_value=None)


def _versions_without_a_name() -> Any:
    """Each run of a version has a token of its own."""

    def identity(self: WriteOptions, run_id: str) -> tuple[str, bytes]:
        return f"spark-{self.txn_app_id or run_id}", run_id.encode()

    return mock.patch.object(WriteOptions, "identity", identity)


def _versions_under_a_prefix() -> Any:
    """What an application has written is remembered under the id that its driver was told."""
    real = WriteOptions.identity

    def identity(self: WriteOptions, run_id: str) -> tuple[str, bytes]:
        transactional_id, token = real(self, run_id)
        return (self.prefixed_id or transactional_id), token

    return mock.patch.object(WriteOptions, "identity", identity)


def _runs_of_nobody() -> Any:
    """A run is begun without a word of its driver."""
    real = engine_connection.begin_run

    def begin(*where: Any, **details: Any) -> Any:
        return real(*where, **{**details, "driver": None})

    return mock.patch.object(engine_connection, "begin_run", begin)


@contextmanager
def _reports_before_the_flush() -> Iterator[None]:
    """A task tells what is acknowledged so far, and goes."""

    def winner(self: TransactionMember) -> Winner:
        identity = self._core.sender.transaction.identity
        assert identity is not None
        return Winner(producer_id=identity.producer_id, record_count=self.record_count)

    with (
        mock.patch.object(TransactionMember, "flush"),
        mock.patch.object(TransactionMember, "winner", property(winner)),
    ):
        yield


def _rows_read_ahead() -> Any:
    """A task reads its rows before it knows whether there is anything to write."""
    real = DistributedWrite.write

    def write(self: DistributedWrite, connect: Any, batches: Any, **how: Any) -> Any:
        return real(self, connect, list(batches), **how)

    return mock.patch.object(DistributedWrite, "write", write)


def _batches_never_recognised() -> Any:
    """A batch that comes again has a higher number than before, one of its run's own."""
    real = MicroBatchWrite.write
    numbers: dict[str, int] = {}

    def write(self: MicroBatchWrite, connect: Any, batch: MicroBatch, rows: Any, **how: Any) -> Any:
        number = numbers.setdefault(self.run.run_id, len(numbers) + 1)
        renumbered = dataclasses.replace(batch, batch_id=number)
        return real(self, connect, renumbered, rows, **how)

    return mock.patch.object(MicroBatchWrite, "write", write)


JOB_MUTANTS = (
    Saboteur(
        name="tokens remembered",
        sabotage=_forgotten_tokens,
        checker="RepeatedTokens",
        changes=ALONE | {"jobs": 3},
    ),
    Saboteur(
        name="numbers of runs",
        sabotage=_runs_numbered_by_their_drivers_clock,
        checker="ShutOutWrites",
        changes=ALONE | {"jobs": 2},
    ),
    Saboteur(
        name="deaths of drivers noticed",
        sabotage=_deaths_of_drivers_unnoticed,
        checker="World",
        changes=ALONE | {"jobs": 2, "clock_jump": 0.0},
    ),
    Saboteur(
        name="order of versions",
        sabotage=_versions_without_order,
        checker="RepeatedTokens",
        changes=ALONE | {"jobs": 3},
    ),
    Saboteur(
        name="versions named in tokens",
        sabotage=_versions_without_a_name,
        checker="RepeatedTokens",
        changes=ALONE | {"jobs": 3},
    ),
    Saboteur(
        name="versions whatever their prefix",
        sabotage=_versions_under_a_prefix,
        checker="RepeatedTokens",
        changes=ALONE | {"queries": 2, "abort_ratio": 0.02},
    ),
    Saboteur(
        name="drivers named to the coordinator",
        sabotage=_runs_of_nobody,
        checker="World",
        changes=ALONE | {"jobs": 2, "clock_jump": 0.0},
    ),
    Saboteur(
        name="flush before a task reports",
        sabotage=_reports_before_the_flush,
        checker="LostRecords",
        changes=ALONE | {"jobs": 3},
    ),
    Saboteur(
        name="rows of committed versions left unread",
        sabotage=_rows_read_ahead,
        checker="World",
        changes=ALONE | {"jobs": 3},
    ),
    Saboteur(
        name="batches recognised when they come again",
        sabotage=_batches_never_recognised,
        checker="RepeatedTokens",
        changes=ALONE | {"queries": 2},
    ),
    Saboteur(
        name="versions kept by producers",
        sabotage=_versions_forgotten_by_producers,
        checker="RepeatedTokens",
        changes=ALONE
        | {"jobs": 4, "intruders": 3, "duration_s": 25.0, "pause_ms": 10.0, "abort_ratio": 0.02}
        | {"peace": 1.0},
    ),
)
