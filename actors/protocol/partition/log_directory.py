"""In which of its broker's data directories a replica is.

A replica stays where it was assigned. *Away* is a directory that belongs to the broker and is not
to be had now: nobody knows what is in it, so what it holds is made nowhere else. *Given up* is one
whose place another disk has taken: what it held is copied anew, unless it may be the last copy.

===================  ====================================  ========================================
assigned to          replica                               where it is
===================  ====================================  ========================================
one that is there    any                                   there
one that is away     any                                   AWAY
one given up         in sync                               LOST
one given up         not in sync                           as if it were assigned nowhere
nowhere              a directory has the topic's files     there, the first of them
nowhere              no directory has, in sync             LOST
nowhere              else                                  where a deleted topic of its name was,
                                                           else where the fewest are, the first one
===================  ====================================  ========================================

An assignment of another topic of its name counts for nothing. Source: KIP-112, KIP-858.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence

import msgspec


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Which directory a replica of a topic was given; durable before anything is made there."""

    directory_id: str
    topic_id: str


class LogDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A directory that can be used, as this replica finds it.

    ``topic_id``: of the files under the replica's name, ``None`` if there are none.
    ``replica_count``: how many replicas of any topic are in it.
    """

    directory_id: str
    topic_id: str | None
    replica_count: int


class NoDirectory(enum.Enum):
    """Why a replica is in no directory."""

    AWAY = "away"
    LOST = "lost"


def choose_directory(
    directories: Sequence[LogDirectory],
    away: Collection[str],
    assigned: Assignment | None,
    *,
    topic_id: str,
    is_in_sync: bool,
) -> LogDirectory | NoDirectory:
    """Where the replica is; see the module. ``directories``: at least one, in the broker's order.

    ``away``: ids of the broker's other directories. ``is_in_sync``: as the controller has it.
    """
    if assigned is not None and assigned.topic_id == topic_id:
        for directory in directories:
            if directory.directory_id == assigned.directory_id:
                return directory
        if assigned.directory_id in away:
            return NoDirectory.AWAY
        if is_in_sync:
            return NoDirectory.LOST
    for directory in directories:
        if directory.topic_id == topic_id:
            return directory
    if is_in_sync:
        return NoDirectory.LOST
    left_over = [one for one in directories if one.topic_id is not None]
    return min(left_over or directories, key=lambda one: one.replica_count)
