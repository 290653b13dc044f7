"""Which of its broker's data directories a replica is in.

A replica stays where it was assigned. A directory is *away* if it belongs to the broker but cannot
be read now: nobody knows what is in it, so its replicas are not created elsewhere. It is *given up*
if another disk has replaced it: its replicas are copied anew, unless one may be the last copy.

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
from collections.abc import Collection, Mapping, Sequence

import msgspec


class DirectoryAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """Which directory a replica of a topic was given; durable before anything is made there."""

    directory_id: str
    topic_id: str


class NoDirectory(enum.Enum):
    """Why a replica is in no directory."""

    AWAY = "away"
    LOST = "lost"


def possible_directories(
    found: Mapping[str, str | None],
    away: Collection[str],
    assigned: DirectoryAssignment | None,
    *,
    topic_id: str,
    is_in_sync: bool,
) -> Sequence[str] | NoDirectory:
    """The ids of directories where the replica is, or may be created; see the module.

    ``found``: by the id of each directory that can be used, at least one and in the broker's order,
    the topic id of the files under the replica's name, ``None`` if there are none. ``away``: ids of
    the others. ``is_in_sync``: as the controller has it.
    """
    if assigned is not None and assigned.topic_id == topic_id:
        if assigned.directory_id in found:
            return (assigned.directory_id,)
        if assigned.directory_id in away:
            return NoDirectory.AWAY
        if is_in_sync:
            return NoDirectory.LOST
    for directory_id, owner in found.items():
        if owner == topic_id:
            return (directory_id,)
    if is_in_sync:
        return NoDirectory.LOST
    left_over = [directory_id for directory_id, owner in found.items() if owner is not None]
    return left_over or list(found)


def emptiest(counts: Mapping[str, int]) -> str:
    """Of directories with this many replicas, the first with the fewest."""
    return min(counts, key=lambda directory_id: counts[directory_id])
