"""A transactional copier, ported from a program of confluent-kafka.

Each record of one topic is in another exactly once, in capitals.
"""

from __future__ import annotations

import oncelog


def copy(cluster: oncelog.Cluster, source: str, target: str, *, until_idle_ms: int) -> int:
    """Copy until nothing has come for ``until_idle_ms``; return how many records were copied."""
    copied = 0
    with (
        cluster.consumer(
            group_id="copier", auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer,
        cluster.producer(transactional_id="copier-1") as producer,
    ):
        consumer.subscribe([source])
        producer.init_transactions()
        while records := consumer.poll(timeout_ms=until_idle_ms):
            producer.begin_transaction()
            try:
                for record in records:
                    producer.send(target, key=record.key, value=(record.value or b"").upper())
                producer.send_offsets_to_transaction(
                    consumer.positions(), consumer.group_metadata()
                )
                producer.commit_transaction()
            except oncelog.OncelogError as error:
                if error.fatal:
                    raise
                producer.abort_transaction()
                consumer.seek_to_committed()
                continue
            copied += len(records)
    return copied
