"""The numbered rules that must hold at every step; ``docs/INVARIANTS.md`` explains each.

A violation is a bug of ours: the actor dies and recovers from its log. What a client or a peer does
wrong never violates an invariant; it is answered with an ``ErrorCode``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from oncelog.storage.errors import InvariantViolation

INVARIANTS: Final = MappingProxyType(
    {
        # One partition replica.
        "I-01": "log_start_offset ≤ last_stable_offset ≤ high_watermark ≤ log_end_offset",
        "I-02": "a batch is applied where the log ends: offsets neither overlap nor go back",
        "I-03": "on one leader the high watermark and the last stable offset never go back",
        "I-04": "the high watermark covers only bytes synced on every in-sync replica",
        "I-05": "state is a function of the log: replaying it gives what the live machine held",
        "I-06": "a producer has at most one open transaction per partition, all of one epoch",
        "I-07": "no decision of a leader lowers a producer's epoch or its coordinator epoch",
        "I-08": "leader epochs rise together with their start offsets, and a leader writes its own",
        "I-09": "a request that is refused changes nothing",
        "I-10": "a transaction's marker lies after its data, and closes it once",
        # Transactions.
        "I-11": "once PREPARE is durable its verdict never changes",
        "I-12": "a transactional id moves only along the table of legal states",
        "I-13": "one (producer_id, producer_epoch) is given to one producer for one transaction",
        "I-14": "a reply is sent only after what it claims is durable",
        "I-15": "COMPLETE is logged only when each enrolled partition has its marker or is past it",
        "I-16": "a message of transaction N changes state only while N is the current one",
        "I-17": "no producer id is handed out twice",
        "I-18": "a key has one transition in flight, applied under the epoch that decided it",
        # Consumer groups.
        "I-19": "a group moves only along its table of states, and its generation only rises",
        "I-20": "a transaction's offsets are seen by nobody before its marker, then all or none",
        "I-21": "an assignment gives each partition of a subscribed topic to exactly one member",
        # Storage and cluster.
        "I-22": "a leader epoch has one leader, chosen from the in-sync replicas",
        "I-23": "synced and committed bytes are never cut without the replica going offline",
        "I-24": "a cluster is founded once, and a topic id is never used again",
        "I-25": "the members of a group always have a protocol in common",
        "I-26": "a replica acknowledges, and leads, only while its machine ends where its log does",
        "I-27": "the metadata log begins with the founding or with a whole snapshot",
        "I-28": "a committed position is current when it is told",
        # Queues.
        "I-29": "each offset that a share group has acquired is in one run, until it is done with",
    }
)
"""The statement of each rule by its number. A retired number is never used again."""


def invariant(condition: bool, number: str, text: str) -> None:
    """Raise ``InvariantViolation`` unless ``condition`` holds; unlike ``assert``, always on.

    ``number`` is that of the rule (``I-01`` …); ``text`` names the values that break it.
    """
    if not condition:
        statement = INVARIANTS.get(number, "")
        raise InvariantViolation(f"{number}: {text}" + (f" ({statement})" if statement else ""))
