"""Seeds that once failed: (seed, changes to what it draws, why it failed). Never remove one.

What a seed means changes with the code that draws from it, so each bug also has its own test;
these runs are kept because bugs tend to recur in the same places.
"""

from __future__ import annotations

from typing import Any

SHORT: dict[str, Any] = {"duration_s": 8.0}

REMADE: dict[str, Any] = {
    "duration_s": 10.0,
    "remakers": 6,
    "delay": 0.1,
    "delay_max_ms": 5_000.0,
    "duplicate": 0.3,
    "kill": 1.0,
    "move": 0.0,
    "peace": 0.0,
} | dict.fromkeys(
    (
        "copiers",
        "jobs",
        "plain_writers",
        "hijackers",
        "rogues",
        "impostors",
        "strangers",
        "intruders",
        "processors",
    ),
    0,
)
"""Little but topics that are deleted and made again, by calls that come late and twice."""

QUIET_BUT_REPLICATED: dict[str, Any] = {
    "brokers": 3,
    "replication_factor": 3,
    "kill_node": 0.3,
    "cut_node": 1.0,
    "stop_node": 0.3,
    "peace": 0.0,
    "writers": 3,
    "pause": 1.0,
    "pause_ms": 10.0,
    "move": 0.0,
    "file_damage": 0.0,
    "duration_s": 15.0,
} | dict.fromkeys(
    (
        "copiers",
        "jobs",
        "plain_writers",
        "hijackers",
        "rogues",
        "impostors",
        "strangers",
        "intruders",
        "remakers",
        "processors",
        "queries",
    ),
    0,
)
"""Nobody but transactional writers, while leaders change all the time."""

REGRESSIONS: list[tuple[int, dict[str, Any], str]] = [
    (
        39,
        SHORT,
        "a plain producer sent on until its leader had forgotten a batch whose reply was lost; the "
        "retry was refused and written again under the next epoch",
    ),
    (
        109,
        SHORT,
        "a run whose token another run had committed was answered as if it had committed itself",
    ),
    (
        142,
        SHORT,
        "a record that filled a batch, after its linger time, and opened the next one was not sent "
        "until the next send",
    ),
    (
        2128590393,
        {},
        "the replicas of a topic that was created while the controller started were ended as those "
        "of a topic it did not know",
    ),
    (
        5019,
        {"duration_s": 7.5, "drop_reply": 0.0, "uncommitted_readers": 0, "hijackers": 0},
        "a late copy of the call that ends the replica of a deleted topic ended that of the next "
        "topic of its name",
    ),
    (
        9004,
        {},
        "the directory of a topic that was created again was lost with the power, as its first "
        "sync had been refused",
    ),
    (
        1165200417,
        {},
        "a late copy of a start's request elected it in the next topic of that name, whose log "
        "then had to be there",
    ),
    (
        144034718,
        {},
        "a worker that joined again under its name, in the generation that went on, processed the "
        "same input twice in one transaction",
    ),
    (
        2349230786,
        {},
        "a late copy of the plain commit with which a worker notes its attempt took the group back "
        "by 200 records",
    ),
    (
        446607790,
        {},
        "the error of a sync that ended after its replica had gone offline was heard by nobody",
    ),
    (
        1448016277,
        {},
        "a static member that came back in a rebalance was fenced by the next coordinator, whose "
        "log knew its former id only",
    ),
    (
        3455265851,
        {"duration_s": 30.0, "copiers": 1},
        "a start that had to index aborted transactions again wanted to count records of an open "
        "one that were damaged, and was refused for good",
    ),
    (
        1052,
        REMADE,
        "lost power brought some files of a removed log back, but not those that say of which "
        "topic, and the next topic of that name was refused for good",
    ),
    (
        1108,
        REMADE,
        "a repeated shutdown closed the log while the first one waited for maintenance, which "
        "then ended the process: it met no log",
    ),
    (
        3663436950,
        {},
        "the exported history had a distributed write begin after its commit, where its claim was "
        "answered a second time, so its records seemed to be read before they were sent",
    ),
    (
        1155877373,
        {"replicas_per_actor": "auto"},
        "the operator took a host for ready that had not begun its replicas yet, and forgot the "
        "file that one of them was about to refuse",
    ),
    (
        111,
        {
            "replicas_per_actor": 3,
            "brokers": 3,
            "duration_s": 8.0,
            "kill_node": 1.0,
            "cut_node": 2.0,
            "stop_node": 1.0,
        },
        "healing forgot that the disk of a dead actor was full, so markers were refused when all "
        "was read for the last time",
    ),
    (
        1077565949,
        {"brokers": 3, "replication_factor": 3, "duration_s": 8.0},
        "a static member that had left and came anew was fenced by the next coordinator, whose "
        "log knew its former id; and a leader that began after its successor was to have what that "
        "one had shown",
    ),
    (
        1086877548,
        {
            "brokers": 3,
            "replication_factor": 3,
            "replicas_per_actor": 3,
        },
        "the founder had no actor of its own to vote with, so when the controller there had ended "
        "for good and another voter had lost its disk, nobody could follow",
    ),
    (
        3204519428,
        {"brokers": 3, "replication_factor": 3, "replicas_per_actor": 1},
        "a broker that came with another disk was never fenced, as its actors answered, and so "
        "refused for good",
    ),
    (
        1051,
        REMADE | {"queries": 0},
        "a zombie obeyed the second copy of a shutdown and removed the directory that the replica "
        "of the next topic of that name waited for, which then was offline",
    ),
    (
        2373591670,
        {"brokers": 3, "replication_factor": 3},
        "the simulator struck the disk of an actor that had never started, as its node was down",
    ),
    (
        1697211786,
        QUIET_BUT_REPLICATED,
        "a coordinator that led again gave a ticket for an enrolment that no follower had, and was "
        "lost: its successor did not know the transaction, which hung for ever",
    ),
    (
        3212930407,
        {
            "brokers": 3,
            "replication_factor": 3,
            "forget_controller": 0.3,
            "kill_node": 0.3,
            "cut_node": 0.6,
            "operators": 1,
            "remakers": 2,
        },
        "the last driver waited less than a coordinator's deposed leader, in sync, took to start",
    ),
    (
        4148595513,
        {"brokers": 3, "replication_factor": 3, "replicas_per_actor": 1, "peace": 0.0},
        "the watch took a decision for made that a coordinator had loaded and that was not "
        "committed; its successor decided otherwise",
    ),
    (
        2436393651,
        {"brokers": 3, "replication_factor": 3, "replicas_per_actor": 1, "peace": 0.0},
        "the watch took a log for unsynced from its beginning whose last write had met a crash",
    ),
    (
        815480750,
        {},
        "a fault that nobody mends struck while a voter that had lost its disk had no vote yet, "
        "so no majority was left",
    ),
    (
        5040,
        {},
        "the controller's log lost with its checkpoint where it begins, and a record of before "
        "its snapshot broke an invariant at each start",
    ),
    (
        5221,
        {},
        "a first join that was lost was waited for as long as a rebalance may take, though it is "
        "answered at once",
    ),
    (
        306,
        {},
        "the world ended before the controller had told a leader that had just started",
    ),
    (
        5135,
        {},
        "a lone replica whose recovery checkpoint was damaged gave back the records that had been "
        "deleted inside its first segment",
    ),
    (
        30181,
        {"brokers": 3, "replication_factor": 3, "replicas_per_actor": 3, "peace": 0.0},
        "a fault of before the quiet ended late and with it half of the one that was to last; then "
        "a group waited for a member that it alone remembered, as long as all was to take",
    ),
    (
        3252,
        {
            "brokers": 3,
            "replication_factor": 3,
            "replicas_per_actor": 3,
            "kafka_writers": 2,
            "kafka_stalls": 0.05,
            "kafka_holds": 0.1,
        },
        "an actor of the founder's node that began late found a data directory without the id and "
        "epoch that its broker had written there, so an older copy of it was elected",
    ),
]
