"""The longest time without a commit, and which waiting is not counted."""

from __future__ import annotations

import itertools

import pytest
from faults.availability import gap_lines, longest_stall, longest_wait, outages_s
from faults.history import build_history

SECOND = 1_000_000_000


def fault(
    number, at, *, ends=None, answers=(), brokers=(2,), role="partition leader", is_sole=False
):
    """A pause that ends at ``ends``, or a kill, after which processes of it serve again at
    ``answers``; of a node it is over with ``whole``.
    """
    begin = {"type": "info", "process": "nemesis", "fault": number, "time": at * SECOND}
    said = {"role": role, "serves": [], "aimed": False, "brokers": brokers, "is_sole": is_sole}
    if ends is None:
        back = [begin | {"f": "answered", "time": time * SECOND} for time in answers]
        return [begin | {"f": "kill"} | said, *back]
    over = "whole" if role == "node" else "resume"
    kind = "kill" if role == "node" else "pause"
    return [begin | {"f": kind} | said, begin | {"f": over, "time": ends * SECOND}]


def history(*faults, commits):
    lines = list(itertools.chain(*faults))
    for number, at in enumerate(commits):
        line = {"process": f"t{number}.0", "f": "txn", "value": [["send", "k-0", f"v{number}"]]}
        lines.append({"type": "invoke", "time": 0} | line)
        lines.append({"type": "ok", "time": at * SECOND} | line)
    return build_history(lines)


def test_the_longest_time_between_commits_counts_from_the_first_fault_to_the_end_of_the_last():
    run = history(fault(0, 10, ends=11), fault(1, 40, ends=45), commits=[3, 12, 21, 27, 42, 80])
    stall = longest_stall(run)
    assert (stall.begin_s, stall.length_s) == (27, 15)


def test_a_time_without_any_commit_is_all_of_it():
    assert longest_stall(history(fault(0, 10, ends=30), commits=[])).length_s == 20


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"brokers": (3,)}, id="a second broker"),
        pytest.param({"is_sole": True}, id="what is there once"),
    ],
)
def test_while_no_majority_lives_nothing_is_demanded(other):
    run = history(fault(0, 0, ends=60), fault(1, 20, ends=40, **other), commits=[15])
    assert outages_s(run) == [(20, 40)]
    assert (longest_stall(run).begin_s, longest_stall(run).length_s) == (40, 20)
    assert longest_stall(run, lives_always=True).length_s == 45


@pytest.mark.parametrize("other", [{"brokers": (2,)}, {"brokers": (), "role": "client"}])
def test_two_faults_of_one_broker_or_of_a_client_leave_a_majority(other):
    run = history(fault(0, 0, ends=60), fault(1, 20, ends=40, **other), commits=[])
    assert outages_s(run) == []


def test_a_node_is_away_until_all_is_in_sync_again_and_a_killed_process_for_a_while():
    run = history(fault(0, 0, ends=30, role="node"), fault(1, 10, brokers=(3,)), commits=[])
    assert outages_s(run) == [(10, 15)]


def test_a_killed_process_is_away_until_it_serves_again_and_several_until_all_do():
    run = history(fault(0, 0, ends=60, role="node"), fault(1, 10, answers=(12, 19)), commits=[])
    assert outages_s(run) == []
    other = fault(1, 10, answers=(12, 19), brokers=(3,))
    assert outages_s(history(fault(0, 0, ends=60, role="node"), other, commits=[])) == [(10, 19)]


def test_gaps_are_told_by_kind_of_fault():
    run = history(
        fault(0, 10, ends=20),
        fault(1, 40, ends=41, role="node"),
        fault(2, 60, ends=66, role="node"),
        commits=[9, 13, 21, 39, 41, 45, 67],
    )
    head, *lines = gap_lines(run)
    assert head.startswith("no commit")
    assert [line.split("   ")[0].strip() for line in lines] == [
        "kill node",
        "pause partition leader",
    ]
    assert lines[0].endswith("p50 4.50 s, p99 6.95 s, max 7.00 s")
    assert lines[1].endswith("8.00 s")


def test_a_gateway_that_is_away_excuses_none_of_our_own_clients():
    run = history(
        fault(0, 0, ends=60), fault(1, 20, ends=40, brokers=(3,), role="gateway"), commits=[15]
    )
    assert outages_s(run) == []
    assert longest_stall(run).length_s == 45


def test_the_longest_wait_of_those_that_send_without_transactions_is_told():
    lines = []
    for number, (at, outcome) in enumerate([(3, "ok"), (5, "ok"), (9, "info"), (20, "ok")]):
        line = {"process": f"s{number}.0", "f": "send", "value": [["send", "k-0", f"v{number}"]]}
        lines.append({"type": "invoke", "time": 0, "txn": False} | line)
        lines.append({"type": outcome, "time": at * SECOND} | line)
    waited = longest_wait(build_history(lines))
    assert (waited.begin_s, waited.length_s) == (5, 15)
    assert longest_wait(build_history([])).length_s == 0
