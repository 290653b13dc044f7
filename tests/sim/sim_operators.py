"""Operators in a simulated world: topics, partitions and settings change, records are removed.

A topic's name says what it is for, so the successor of a killed operator can carry on:
records of a *kept* topic are removed by size and by hand, those of a *compact* one when
a newer one has their key.
"""

from __future__ import annotations

import asyncio
from typing import Any

from sim_history import COMPACTED_PREFIX
from sim_stage import Player

from oncelog.api.admin.admin import AsyncAdmin
from oncelog.storage.exceptions import OncelogError, TopicAlreadyExistsError
from oncelog.storage.model import LATEST_TIMESTAMP, TopicPartition

KEPT_PREFIX = "kept-"
TOPICS_MAX = 3
PARTITIONS_MAX = 3
SETTINGS: dict[str, dict[str, Any]] = {
    "fresh-": {"segment_bytes": 65_536},
    KEPT_PREFIX: {"segment_bytes": 4_096, "retention_bytes": 8_192},
    COMPACTED_PREFIX: {
        "segment_bytes": 4_096,
        "cleanup_policy": "compact",
        "min_cleanable_dirty_ratio": 0.2,
    },
}


def settings_of(topic: str) -> dict[str, Any]:
    """What stands in the topic's name; nothing if that is a plain one."""
    for prefix, settings in SETTINGS.items():
        if topic.startswith(prefix):
            return settings
    return {}


async def operator(player: Player) -> None:
    """Makes a few topics, changes them and others, and deletes records, until the run is over."""
    admin = player.client.admin()
    while player.is_on:
        await asyncio.sleep(player.random.expovariate(1.0))
        own = sorted(set(player.stage.topics) - set(player.stage.plan.topics))
        try:
            if len(own) < TOPICS_MAX and (not own or player.random.random() < 0.4):
                await _create(player, admin, len(own))
            elif player.random.random() < 0.3:
                await _add_partition(player, admin, player.random.choice(own))
            elif player.random.random() < 0.4:
                await _alter(player, admin)
            else:
                await _delete_records(player, admin)
        except OncelogError as error:
            player.stage.world.note(f"an operator met {error!r}")


async def _create(player: Player, admin: AsyncAdmin, number: int) -> None:
    prefix = list(SETTINGS)[number % len(SETTINGS)]
    name = f"{prefix}{number}"
    partitions = player.random.randint(1, 2)
    try:
        await admin.create_topic(name, partitions, **SETTINGS[prefix])
    except TopicAlreadyExistsError:
        partitions = len((await admin.describe_topic(name)).partitions)
    player.stage.topics[name] = partitions
    player.stage.counts["topics created"] += 1


async def _add_partition(player: Player, admin: AsyncAdmin, name: str) -> None:
    wanted = player.stage.topics[name] + 1
    if wanted <= PARTITIONS_MAX:
        await admin.create_partitions(name, wanted)
        player.stage.topics[name] = wanted
        player.stage.counts["partitions added"] += 1


async def _alter(player: Player, admin: AsyncAdmin) -> None:
    """Two in sync are asked for where there are so many replicas, or no longer."""
    name = player.random.choice(sorted(player.stage.topics))
    minimum = player.random.choice((1, 1, 2, None))
    await admin.alter_topic(name, min_insync_replicas=minimum)
    player.stage.counts["settings changed"] += 1


async def _delete_records(player: Player, admin: AsyncAdmin) -> None:
    for topic in sorted(player.stage.topics):
        if topic.startswith(KEPT_PREFIX):
            number = player.random.randrange(player.stage.topics[topic])
            topic_partition = TopicPartition(topic, number)
            end = (await admin.list_offsets({topic_partition: LATEST_TIMESTAMP}))[topic_partition]
            if end > 0:
                await admin.delete_records({topic_partition: player.random.randint(0, end)})
                player.stage.counts["deletions of records"] += 1
