"""A slice of the coordinator's model: no state that is wrong, and a rule taken out makes one."""

from __future__ import annotations

import coordinator_model
import pytest
from coordinator_model import CoordinatorModel, Scope
from explorer import ExploredWorld, explore

BOUND_SECONDS = 60.0
SLICE = 250
SABOTAGED_STATES_MAX = 4_000
ENROLLED = ("the producer enrols P", "2 has the next record")
TIMED_OUT = (*ENROLLED, "the transaction times out", "the process of 1 dies, and leads again")


@pytest.mark.parametrize("model", coordinator_model.MODELS, ids=lambda model: model.name)
def test_no_state_of_a_slice_is_wrong(model: CoordinatorModel) -> None:
    report = explore(model, seconds=BOUND_SECONDS, states_max=SLICE)
    assert not report.broken, str(report)
    assert report.states >= SLICE


def test_a_coordinator_that_acts_on_what_is_not_committed_is_found() -> None:
    """An ABORT is sent that is lost with its leader, and the next one commits."""
    model = CoordinatorModel("acts early", Scope(), waits=False, story=TIMED_OUT)
    report = explore(model, seconds=BOUND_SECONDS, states_max=SABOTAGED_STATES_MAX)
    assert "aborted" in report.broken or "two outcomes" in report.broken, str(report)


def test_an_answer_before_its_record_is_committed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def own_end(model: CoordinatorModel, world: ExploredWorld) -> int:
        return len(world.see(world.facts.leader).log)

    monkeypatch.setattr(CoordinatorModel, "_committed_end", own_end)
    report = explore(
        CoordinatorModel("answers early", Scope(), story=ENROLLED),
        seconds=BOUND_SECONDS,
        states_max=SABOTAGED_STATES_MAX,
    )
    assert "forgotten" in report.broken, str(report)
