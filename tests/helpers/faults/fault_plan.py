"""Which faults a seed plans: what kind of process, killed or paused, how long, and aimed or not."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LEADER: Final = "partition leader"
FOLLOWER: Final = "follower"
TRANSACTIONS: Final = "transaction coordinator"
GROUPS: Final = "group coordinator"
CONTROLLER: Final = "controller"
BROKER: Final = "broker actor"
CLIENT: Final = "client"
EVERYTHING: Final = "every actor"
GATEWAY: Final = "gateway"
NODE: Final = "node"
LINK: Final = "link"
ONE_WAY_LINK: Final = "one-way link"
EMPTIED_DISK: Final = "node, disk emptied"
OLD_DISK: Final = "node, disk of before"
FULL_DISK: Final = "full disk"
DOUBLE_FAILOVER: Final = "node, then its successor"
STALLED_FOLLOWER: Final = "stalled follower, then its leader"
MOVE: Final = "drain or move"
ROLES: Final[Mapping[str, int]] = {
    LEADER: 6,
    TRANSACTIONS: 6,
    GROUPS: 3,
    CONTROLLER: 2,
    CLIENT: 5,
    EVERYTHING: 1,
}
"""Roles of victims, and how often each is chosen. ``EVERYTHING`` is all actors, killed at once."""

SEVERAL_BROKERS_ROLES: Final[Mapping[str, int]] = {
    **ROLES,
    FOLLOWER: 5,
    BROKER: 2,
    NODE: 4,
    EMPTIED_DISK: 1,
    OLD_DISK: 1,
    DOUBLE_FAILOVER: 2,
    STALLED_FOLLOWER: 2,
    MOVE: 2,
}
"""The same where there are several brokers. ``NODE`` is a broker's, with all on it."""

LINKED_ROLES: Final[Mapping[str, int]] = {
    **SEVERAL_BROKERS_ROLES,
    LINK: 3,
    ONE_WAY_LINK: 2,
    FULL_DISK: 2,
}
"""The same where what links two nodes can be cut, or one node off from all others, and the node of
one broker has a disk of its own."""

GATEWAY_SHARE: Final = 6
"""How often a gateway is chosen, where clients of Kafka are among the clients."""

NODE_ROLES: Final = frozenset(
    {NODE, LINK, ONE_WAY_LINK, EMPTIED_DISK, OLD_DISK, FULL_DISK, DOUBLE_FAILOVER}
)
"""What befalls a node, and only one at a time; it is over when every replica is in sync again."""

CUT_ROLES: Final = frozenset({LINK, ONE_WAY_LINK})
KILL_ROLES: Final = frozenset({EVERYTHING, EMPTIED_DISK, OLD_DISK, DOUBLE_FAILOVER})
"""Those that only a kill can be."""

PAUSE_ROLES: Final = frozenset({*CUT_ROLES, FULL_DISK, STALLED_FOLLOWER, MOVE})
"""Those that last for a while."""

KILL_SHARE: Final = 0.6
BURST_SHARE: Final = 0.15
AIMED_SHARE: Final = 0.9
LONG_SHARE: Final = 0.4
WHOLE_SHARE: Final = 0.5
SHORT_PAUSE_S: Final = (1.0, 3.0)
LONG_PAUSE_S: Final = (5.0, 10.0)
AWAY_S: Final = (3.0, 15.0)
STRIKE_DELAY_MAX_S: Final = 0.06


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault. ``pause_s`` is 0 for a kill; ``delay_s`` follows the commit's notice.

    One that is ``at_once`` follows the fault before it without waiting for anything. Of a node:
    ``away_s`` is how long it stays away after a kill; ``is_whole`` says whether all its
    processes are struck, or when it is killed only its raylet, when it is paused all but that. A
    link is always "paused"; ``is_whole``: the node is cut off from all, of a one-way link: nothing
    that it sends arrives, and else nothing arrives there.
    """

    role: str
    pause_s: float
    delay_s: float
    is_aimed: bool
    at_once: bool
    away_s: float = 0.0
    is_whole: bool = False


def plan_faults(seed: int, count: int, roles: Mapping[str, int] = ROLES) -> list[Fault]:
    """Choose ``count`` faults; the same seed gives the same ones."""
    chance = random.Random(seed)
    faults = []
    for _ in range(count):
        role = chance.choices(list(roles), list(roles.values()))[0]
        is_kill = chance.random() < KILL_SHARE or role in KILL_ROLES
        is_kill = is_kill and role not in PAUSE_ROLES
        span = LONG_PAUSE_S if chance.random() < LONG_SHARE else SHORT_PAUSE_S
        pause_s = 0.0 if is_kill else chance.uniform(*span)
        delay_s = chance.uniform(0.0, STRIKE_DELAY_MAX_S)
        at_once = chance.random() < BURST_SHARE
        is_aimed = not at_once and chance.random() < AIMED_SHARE
        away_s, is_whole = 0.0, False
        if role == FULL_DISK:
            pause_s = chance.uniform(*AWAY_S)
        if role in NODE_ROLES:
            away_s = chance.uniform(*AWAY_S) if is_kill else 0.0
            is_whole = chance.random() < WHOLE_SHARE or role in KILL_ROLES
        faults.append(Fault(role, pause_s, delay_s, is_aimed, at_once, away_s, is_whole))
    return faults
