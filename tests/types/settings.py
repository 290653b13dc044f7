"""What an editor says of settings. ``./run types`` reads this, and fails where it flags nothing."""

from __future__ import annotations

import oncelog


def accepted(cluster: oncelog.Cluster) -> None:
    oncelog.init("data", calls="ray", offsets_partitions=4)
    cluster.producer(transactional_id="t", acks="all", compression_type="zstd", interceptors=[])
    cluster.consumer(group_id="g", isolation_level="read_uncommitted")
    cluster.consumer(isolation_level=oncelog.IsolationLevel.READ_COMMITTED)
    cluster.admin().create_topic("t", partitions=3, cleanup_policy="compact")
    cluster.admin().alter_topic("t", retention_ms=None)
    cluster.process(
        source="a", sink="b", function=repr, group_id="g", producer_settings={"linger_ms": 0}
    )


def wrong_names(cluster: oncelog.Cluster, membership: oncelog.Membership) -> None:
    oncelog.init("data", offset_partitions=4)  # type: ignore[call-arg]
    cluster.producer(linger=5)  # type: ignore[call-arg]
    cluster.async_producer(linger=5)  # type: ignore[call-arg]
    cluster.member(membership, linger=5)  # type: ignore[call-arg]
    cluster.consumer(group="g")  # type: ignore[call-arg]
    cluster.async_consumer(group="g")  # type: ignore[call-arg]
    cluster.admin().create_topic("t", retention=1)  # type: ignore[call-arg]
    cluster.admin().alter_topic("t", retention=1)  # type: ignore[call-arg]
    cluster.process(
        source="a",
        sink="b",
        function=repr,
        group_id="g",
        producer_settings={"linger": 0},  # type: ignore[arg-type]
        consumer_settings={"group": "g"},  # type: ignore[arg-type]
    )


def wrong_values(cluster: oncelog.Cluster) -> None:
    oncelog.init("data", calls="grpc")  # type: ignore[arg-type]
    cluster.producer(linger_ms="5")  # type: ignore[arg-type]
    cluster.producer(acks=2)  # type: ignore[arg-type]
    cluster.producer(compression_type="brotli")  # type: ignore[arg-type]
    cluster.consumer(isolation_level="serializable")  # type: ignore[arg-type]
    cluster.consumer(enable_auto_commit="yes")  # type: ignore[arg-type]
    cluster.admin().create_topic("t", flush=True)  # type: ignore[arg-type]
    cluster.process(
        source="a",
        sink="b",
        function=repr,
        group_id="g",
        batch_format="pandas",  # type: ignore[arg-type]
    )


async def wrong_for_asyncio(admin: oncelog.AsyncAdmin) -> None:
    await admin.create_topic("t", retention=1)  # type: ignore[call-arg]
    await admin.alter_topic("t", retention_ms="1")  # type: ignore[arg-type]
