"""A queue on a real cluster, whose workers and coordinators are killed."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.ray


def test_each_result_is_there_once_whoever_is_killed(cluster: Any) -> None:
    from queue_campaign import RESULTS, TASKS, campaign

    counts = campaign(cluster, tasks=5_000, workers=3, seed=1)
    assert (counts["missing"], counts["twice"]) == (0, 0)
    admin = cluster.admin()
    admin.delete_topic(TASKS)
    admin.delete_topic(RESULTS)
