"""A stranger tries everything, and each check at the doors that is missing is noticed.

One need less of one request, or one rule less of how ACLs are read: within a few short runs of the
simulator a stranger is answered what he may not ask, or refused what he may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any
from unittest import mock

import pytest
import sim_stranger
from access_rows import Row, RowSaboteur, row_saboteurs
from msgspec import structs
from sim_saboteurs import ALONE, Sabotage
from sim_stranger import NOT_HIS, OF_GATEWAYS
from sim_swarm import Result, Scenario, drawn_scenario, founded, run_scenario

from oncelog.actors.protocol import access
from oncelog.actors.protocol.access import NEEDS, Authorizer, as_it_is
from oncelog.actors.protocol.messages.access import ANY_HOST, ANY_NAME, ANYBODY, Acl, Operation
from oncelog.actors.protocol.messages.cluster import HoldReplicasRequest
from oncelog.actors.protocol.messages.partition import FetchRequest, FetchTogetherRequest
from oncelog.actors.protocol.messages.replication import DescribeVoterRequest, VoteRequest
from oncelog.actors.rpc.door import Door
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import TopicAuthorizationFailedError

FIRST_SEED = 1_000
RUNS = 5
SHORT = ALONE | {
    "strangers": 1,
    "operators": 0,
    "writers": 1,
    "readers": 0,
    "uncommitted_readers": 0,
    "duration_s": 1.0,
    "replicas_per_actor": 1,
    "brokers": 1,
    "head_node": 0,
    "replication_factor": 1,
}
LARGE = SHORT | {"brokers": 3, "replicas_per_actor": 3}
"""With hosts, and brokers that vote."""

ONLY_IN_LARGE = {HoldReplicasRequest, VoteRequest, DescribeVoterRequest, FetchTogetherRequest}


def scenarios(changes: dict[str, Any]) -> Iterator[Scenario]:
    for number in range(RUNS):
        scenario = drawn_scenario(FIRST_SEED + number).changed(changes)
        founded(scenario)
        yield scenario


def first_found(changes: dict[str, Any], sabotage: Sabotage) -> Result | None:
    for scenario in scenarios(changes):
        with sabotage():
            found = run_scenario(scenario)
        if found.violations:
            return found
    return None


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "runs"), [(SHORT, RUNS), (LARGE, 2)], ids=["short", "large"])
def test_a_stranger_tries_everything_and_is_answered_by_the_rules(changes, runs):
    missing = ONLY_IN_LARGE if changes is SHORT else set()
    for scenario in islice(scenarios(changes), runs):
        result = run_scenario(scenario)
        assert result.violations == []
        kinds = result.counts["kinds of requests of a stranger"]
        # What nobody needs a right for has nothing to be refused.
        needed = {kind for kind, needs in NEEDS.items() if needs}
        assert kinds == len(needed - missing - OF_GATEWAYS)


@pytest.mark.slow
def test_what_no_stranger_has_tried_is_told(monkeypatch):
    rows = tuple(row for row in sim_stranger.EVERY_ROW if row.kind is not FetchRequest)
    real = sim_stranger._attempts

    def attempts(stage: Any, random: Any, row: Row) -> Iterator[Any]:
        return real(stage, random, row if row in rows else rows[0])

    monkeypatch.setattr(sim_stranger, "_attempts", attempts)
    told = run_scenario(next(scenarios(SHORT))).violations
    assert list(map(str, told)) == ["UntriedRequests: fetch-TopicRead without TopicRead"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "saboteur", [one for one in row_saboteurs() if one.kind not in OF_GATEWAYS], ids=str
)
def test_a_need_that_is_missing_lets_a_stranger_in(saboteur: RowSaboteur):
    changes = LARGE if saboteur.kind in ONLY_IN_LARGE else SHORT
    found = first_found(changes, saboteur.sabotage)
    assert found is not None
    assert found.checker == "World:LetInError"
    assert f"{saboteur.kind.__name__}(" in found.violations[0].message


# --- how ACLs are read ----------------------------------------------------------------------------


def _reading(change: Callable[[Acl], Acl | None]) -> Sabotage:
    """ACLs are read as if they were others, or not at all."""
    real = Authorizer.__init__

    def begin(self: Authorizer, rules: Any) -> None:
        acls = filter(None, map(change, rules.acls))
        real(self, structs.replace(rules, acls=tuple(acls)))
        self.rules = rules

    return lambda: mock.patch.object(Authorizer, "__init__", begin)


def _nobody_is_super() -> Any:
    real = Authorizer.__init__

    def begin(self: Authorizer, rules: Any) -> None:
        real(self, structs.replace(rules, super_users=frozenset()))

    return mock.patch.object(Authorizer, "__init__", begin)


def _never_on() -> Any:
    """Everything is allowed but what servers do, also once the rules are on."""

    def may(_: Authorizer, principal: Any, operation: Operation, *__: str) -> bool:
        return principal.is_server or operation is not Operation.CLUSTER_ACTION

    return mock.patch.object(Authorizer, "may", may)


def _allowed_unless_denied() -> Any:
    def decide(self: Authorizer, *question: Any) -> bool:
        acl = self.deciding(*question)
        return acl is None or acl.is_allowed

    return mock.patch.object(Authorizer, "_decide", decide)


def _decisions_outlive_rules() -> Any:
    real = Door._take

    def take(self: Door, known: Any) -> None:
        before = self._authorizer
        real(self, known)
        if before is not None and before.rules.is_on and self._authorizer is not None:
            self._authorizer._decided = before._decided

    return mock.patch.object(Door, "_take", take)


@contextmanager
def _replies_as_they_are() -> Iterator[None]:
    """A listing is not cleared of what its caller may not see."""
    real = access.split

    def split(request: Any, may: access.May) -> access.Split:
        found = real(request, may)
        return structs.replace(found, join=as_it_is) if found.request == request else found

    with mock.patch.object(access, "split", split):
        yield


@contextmanager
def _absent_topics_are_told() -> Iterator[None]:
    real = access.refusal

    def refusal(request: Any, may: access.May) -> ErrorCode:
        named = getattr(request, "topic_partition", None)
        lacked = real(request, may)
        if lacked is ErrorCode.TOPIC_AUTHORIZATION_FAILED and named and named.topic in NOT_HIS:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return lacked

    with mock.patch.object(access, "refusal", refusal):
        yield


READINGS: dict[str, Sabotage] = {
    "denial wins": _reading(lambda acl: acl if acl.is_allowed else None),
    "an address": _reading(lambda acl: structs.replace(acl, host=ANY_HOST)),
    "a name is no prefix": _reading(
        lambda acl: structs.replace(acl, is_prefix=acl.name != ANY_NAME)
    ),
    "a prefix": _reading(lambda acl: structs.replace(acl, is_prefix=False)),
    "an operation": _reading(lambda acl: structs.replace(acl, operation=Operation.ALL)),
    "a principal": _reading(lambda acl: structs.replace(acl, principal=ANYBODY)),
    "rules once they are on": _never_on,
    "denial by default": _allowed_unless_denied,
    "decisions of their rules": _decisions_outlive_rules,
    "listings of what may be seen": _replies_as_they_are,
    "absent as refused": _absent_topics_are_told,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", READINGS)
def test_a_rule_that_is_missing_is_noticed(name):
    found = first_found(SHORT, READINGS[name])
    assert found is not None
    assert found.checker == "World:LetInError"


@pytest.mark.slow
def test_super_users_who_are_none_are_noticed():
    """Programs, which are one, then see nothing of what they work with."""
    with _nobody_is_super(), pytest.raises(TopicAuthorizationFailedError):
        run_scenario(next(scenarios(SHORT)))
