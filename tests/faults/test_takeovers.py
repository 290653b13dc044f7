"""How long a takeover of the controller took, by its log and the history."""

from __future__ import annotations

import pytest
from faults.history import build_history
from faults.takeovers import Takeover, takeovers

from oncelog.actors.protocol.cluster.cluster_records import ControllerElected, LeaderElected

SECOND = 1_000_000_000
WALL_MS = 1_000_000


def led(at_ms, partition, leader):
    change = LeaderElected(
        topic_id="t", partition=partition, leader=leader, leader_epoch=0, isr=(1,), incarnation=""
    )
    return WALL_MS + at_ms, change


def elected(at_ms, broker_id):
    return WALL_MS + at_ms, ControllerElected(broker_id=broker_id, epoch=1)


def history(*, brokers=(1,), role="node", is_whole=True, commits=(12, 17, 29)):
    """Struck at 10 s, all well at 30 s, by the monotonic clock."""
    said = {"process": "nemesis", "type": "info", "fault": 3}
    struck = {"role": role, "serves": [], "aimed": False, "brokers": list(brokers)}
    times = {"time": 10 * SECOND, "wall_ms": WALL_MS}
    lines = [said | {"f": "kill", "is_whole": is_whole} | struck | times]
    lines.append(said | {"f": "whole", "time": 30 * SECOND})
    for number, at in enumerate(commits):
        line = {"process": f"t{number}.0", "f": "txn", "value": [["send", "k-0", f"v{number}"]]}
        lines.append({"type": "invoke", "time": 0} | line)
        lines.append({"type": "ok", "time": at * SECOND} | line)
    return build_history(lines)


BEFORE = [led(-50, 0, 1), led(-40, 1, 2), led(-30, 2, 1)]


def test_it_takes_until_another_broker_is_elected_and_all_of_the_node_is_led_again():
    changes = [*BEFORE, elected(4_000, 2), led(4_100, 0, 2), led(4_200, 2, -1), led(4_900, 2, 3)]
    changes += [led(9_000, 1, 3), elected(25_000, 3)]
    (found,) = takeovers(history(), changes, founder=1)
    assert found == Takeover("kill node (whole)", elected_s=4.0, led_s=4.9, silent_s=12.0)


def test_the_controller_is_where_it_was_elected_last():
    changes = [elected(-20, 2), elected(3_000, 3)]
    (found,) = takeovers(history(brokers=(2,)), changes, founder=1)
    assert (found.elected_s, found.led_s) == (3.0, 0.0)
    assert list(takeovers(history(brokers=(1,)), changes, founder=1)) == []


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([elected(4_000, 1)], id="the same broker"),
        pytest.param([elected(31_000, 2)], id="after all was well again"),
    ],
)
def test_without_another_broker_there_is_no_takeover(changes):
    assert list(takeovers(history(), [*BEFORE, *changes], founder=1)) == []


def test_a_node_that_one_other_does_not_reach_lives():
    changes = [*BEFORE, elected(4_000, 2)]
    cut = history(role="link", is_whole=False)
    assert list(takeovers(cut, changes, founder=1)) == []
    assert list(takeovers(history(role="link"), changes, founder=1))
