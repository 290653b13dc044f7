"""What becomes of acquired records whose leader has another topic of that name."""

from __future__ import annotations

from random import Random

import pytest

from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.actors.protocol.messages.partition import FetchRequest
from oncelog.actors.protocol.messages.share import AcquiredRun
from oncelog.api.config import QueueSettings
from oncelog.api.queueing.acquired import read_runs
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

TP = TopicPartition("tasks", 0)
OLD, NEW = "aa" * 16, "bb" * 16
RUN = AcquiredRun(topic_partition=TP, topic_id=OLD, first_offset=0, last_offset=1, delivery_count=1)


@pytest.mark.parametrize(
    ("topic_id", "controller", "is_released"),
    [
        (NEW, ErrorCode.NONE, True),
        (OLD, ErrorCode.NONE, False),
        (None, ErrorCode.NONE, False),
        (NEW, ErrorCode.NETWORK_EXCEPTION, False),
    ],
    ids=("another topic", "the leader is out of date", "no topic", "unknown"),
)
def test_records_are_given_back_only_if_their_topic_is_known_to_be_gone(
    fake_cluster, run, topic_id, controller, is_released
):
    """To give them back counts as a delivery, and too many of those bury them unseen."""
    (log,) = fake_cluster.create("tasks")
    log.append(b"a", b"b")
    fake_cluster.topic_ids["tasks"] = OLD

    async def story():
        router = fake_cluster.router()
        await router.leader(TP)

        def refuse(request):
            if topic_id is None:
                fake_cluster.delete("tasks")
            else:
                fake_cluster.topic_ids["tasks"] = topic_id
            if controller is not ErrorCode.NONE:
                fake_cluster.fail(MetadataRequest, controller, times=99)
            return request.failed(ErrorCode.UNKNOWN_TOPIC_ID)

        fake_cluster.hooks[FetchRequest] = refuse
        return await read_runs(
            router, TP, [RUN], QueueSettings(group_id="g"), random=Random(1), bytes_max=100
        )

    read = run(story())
    assert (read.records, read.gaps) == ([], [])
    assert (read.released, read.unread) == (([RUN], []) if is_released else ([], [RUN]))
