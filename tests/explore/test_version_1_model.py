"""A slice of the model of version 1: no state that is wrong, and a rule taken out makes one."""

from __future__ import annotations

from typing import Any

import pytest
import version_1_model
from explorer import Report, explore
from msgspec.structs import replace
from version_1_model import BEGUN, BEGUN_ELSEWHERE, COMMITTED, Scope, Version1Model

from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.transaction import ids, producers, told, transaction_machine
from oncelog.actors.protocol.transaction.producers import Producers
from oncelog.actors.protocol.transaction.transaction_state import (
    EpochCause,
    TransactionMetadata,
    aborted,
)

BOUND_SECONDS = 60.0
SLICE = 400
SABOTAGED_STATES_MAX = 6_000


@pytest.mark.parametrize("model", version_1_model.MODELS, ids=lambda model: model.name)
def test_no_state_of_a_slice_is_wrong(model: Version1Model) -> None:
    report = explore(model, seconds=BOUND_SECONDS, states_max=SLICE)
    assert not report.broken, str(report)
    assert report.states >= SLICE


def broken(story: tuple[str, ...] = (), **scope: int) -> Report:
    none = dict.fromkeys(("copies", "reconnections", "replacements"), 0)
    model = Version1Model("sabotaged", Scope(**{**none, **scope}), story=story)
    return explore(model, seconds=BOUND_SECONDS, states_max=SABOTAGED_STATES_MAX)


def test_late_requests_of_older_connections_are_found_without_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forgetful(pair: Any, request: Any, label: Any, coordinator_epoch: int) -> Any:
        pair = None if pair is None else replace(pair, label=None)
        return told.check_told(pair, request, label, coordinator_epoch)

    monkeypatch.setattr(producers, "check_told", forgetful)
    report = broken(COMMITTED, copies=1)
    assert "begins a transaction" in report.broken, str(report)
    report = broken((*BEGUN, "the client commits"), reconnections=1)
    assert "ends" in report.broken, str(report)


def test_late_requests_are_found_if_the_coordinators_epoch_is_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trusting(pair: Any, request: Any, label: Any, coordinator_epoch: int) -> Any:
        return told.check_told(pair, request, label, label.coordinator_epoch)

    monkeypatch.setattr(producers, "check_told", trusting)
    report = broken(BEGUN, reconnections=2, replacements=1)
    assert report.broken, str(report)


def test_a_commit_that_another_coordinator_has_open_is_found_if_success_leaves_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def from_memory(
        _self: Any, reply: Any, _metadata: TransactionMetadata, _label: Any
    ) -> Decision[Any]:
        return Decision(reply=reply)

    monkeypatch.setattr(Producers, "_heard", from_memory)
    story = (*BEGUN_ELSEWHERE, "the client commits")
    report = broken(story, reconnections=2, replacements=1)
    assert "told as committed" in report.broken, str(report)


def test_what_follows_a_timeout_is_found_if_the_pair_survives_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lenient(metadata: TransactionMetadata, *rest: Any) -> TransactionMetadata:
        return replace(aborted(metadata, *rest), told=metadata.told)

    monkeypatch.setattr(transaction_machine, "aborted", lenient)
    report = broken(BEGUN, timeouts=1, transactions=1)
    assert report.broken, str(report)


def test_what_follows_a_recovery_is_found_if_the_pair_survives_its_abort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def as_by_owner(
        metadata: TransactionMetadata, _cause: EpochCause, now_ms: int, spare: int
    ) -> TransactionMetadata:
        return aborted(metadata, EpochCause.OWNER, now_ms, spare)

    monkeypatch.setattr(ids, "aborted", as_by_owner)
    monkeypatch.setattr(ids, "told_anew", lambda metadata, _before: metadata)
    report = broken((*BEGUN, "the client enrols q"), recoveries=1, reconnections=1)
    assert "begins a transaction" in report.broken, str(report)
