"""One random scenario: a seed draws topics, clients and faults, and the outcome is checked.

The same seed and changes give the same run, event for event.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from sim_bounds import low_bounds
from sim_checkers import VIOLATIONS_MAX, Violation
from sim_clients import copier, hijacker, plain_writer, reader, writer
from sim_commit_order import commit_order_violations, commit_reader
from sim_export import judged, write_history
from sim_gateways import Gateways
from sim_history import History, LogEnd
from sim_impostor import impostor
from sim_jobs import SHARED_ID, last_writes, planner, querier
from sim_kafka_clients import (
    KINDS,
    first_epochs,
    kafka_copier,
    kafka_writer,
    last_transactions,
    sequences_asked_within,
)
from sim_launcher import founded_disks
from sim_liveness import LASTING_FAULTS, Before, progress_s, topic_for_progress
from sim_log_watch import LogWatch, watching
from sim_nemesis import FaultPlan, Nemesis, drawn_faults
from sim_operators import operator, settings_of
from sim_prepared import end_prepared, last_preparer, preparer
from sim_process import Client, Process
from sim_processors import processor
from sim_remakes import remaker
from sim_replica_watch import (
    is_metadata_copied,
    stale_settings,
    unequal_logs,
    unequal_metadata,
)
from sim_rogue import rogue
from sim_stage import (
    COPY_GROUP,
    COPY_SOURCE,
    COPY_TARGET,
    PROCESS_GROUP,
    PROCESS_TARGET,
    Cast,
    Player,
    Stage,
    WorkloadPlan,
)
from sim_stranger import (
    KNOWN_LIMIT_S,
    are_rules_known,
    principal_of,
    rule_changer,
    set_rules,
    stranger,
    try_everything,
)
from sim_txn_checkers import check_history
from sim_world import SimulationError, World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.actors.interfaces import holder_of
from oncelog.actors.protocol.cluster.hosts import AUTO, ReplicasPerActor
from oncelog.storage.exceptions import CorruptRecordError, OncelogError
from oncelog.storage.model import IsolationLevel, TopicPartition

FAULT_KINDS_MIN = 3
"""A run that suffers fewer kinds of faults is vacuous."""

TOLD_LIMIT_S = 60.0
"""Virtual time within which a reader comes past damage, told of it."""

RESTLESS: dict[str, Any] = {"brokers": 3, "replication_factor": 3, "peace": 0.0}
"""Leaders and ISRs change all the time, and what one fault has left is there when another comes."""

RESTLESS_SHARE = 1 / 6
"""Of all seeds."""

KAFKA_AT_PEACE: dict[str, Any] = dict.fromkeys(
    ("kafka_delays", "kafka_stalls", "kafka_holds", "kafka_pauses", "kafka_moves"), 0.0
)
"""Changes to what strikes gateways by itself."""

KAFKA_SHARE = 1 / 3
"""Of the seeds without strangers, which are three of four."""

VOTERS_LIMIT_S = 60.0
"""Virtual time within which three brokers that live are voters in sync."""

SETTINGS_LIMIT_S = 10.0
"""How long a controller may take to tell a leader what it has recorded."""

ZOMBIE_SHARE = 0.3
QUIET_LIMIT_S = 300.0
STORY_LINES = 100

CLUSTER = ClusterConfig(
    replicas_per_actor=1,
    transaction_abort_scan_ms=200,
    transaction_visibility_wait_ms=300,
    group_min_session_timeout_ms=500,
    internal_call_timeout_ms=1_000,
    log_checkpoint_interval_ms=5_000,
    log_retention_check_interval_ms=2_000,
    log_cleaner_backoff_ms=2_000,
    metadata_log_max_record_count_between_snapshots=30,
    metadata_log_segment_bytes=4_096,
)


HASTY_BROKERS = {
    "broker_heartbeat_interval_ms": 250,
    "broker_session_timeout_ms": 1_500,
    "replica_lag_time_max_ms": 1_500,
    "leader_imbalance_check_interval_ms": 1_000,
}
"""Of clusters with several replicas: leaders and ISRs change within a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a run is made of."""

    seed: int
    workload: WorkloadPlan
    faults: FaultPlan
    segment_bytes: int
    replicas_per_actor: ReplicasPerActor = 1
    brokers: int = 1
    head_node: int = 0
    """Where Ray's head is; 0 for a node of no broker, which never dies. Not drawn: a controller may
    leave it after the quiet."""

    replication_factor: int = 1

    def changed(self, changes: Mapping[str, Any]) -> Scenario:
        """With some fields of the two plans replaced; ``ValueError`` names an unknown one."""
        workload, faults, own = {}, {}, {}
        for name, value in changes.items():
            for kind, found in ((WorkloadPlan, workload), (FaultPlan, faults), (Scenario, own)):
                if name in {item.name for item in dataclasses.fields(kind)}:
                    found[name] = value
                    break
            else:
                raise ValueError(f"{name}={value!r}: there is no such part of a scenario")
        following = dataclasses.replace(self.workload, **workload)
        for count, target in (
            (following.copiers or following.kafka_copiers, COPY_TARGET),
            (following.processors, PROCESS_TARGET),
        ):
            if count and target not in following.topics:
                topics = {**following.topics, target: 1}
                following = dataclasses.replace(following, topics=topics)
        return dataclasses.replace(
            self,
            workload=following,
            faults=dataclasses.replace(self.faults, **faults),
            **own,
        )


RACKS = ("a", "b", "c")
ON_ERROR = ("fail", "fail", "retry", "skip", "dead_letter")


def drawn_scenario(seed: int) -> Scenario:
    """What ``seed`` stands for; now and then three replicas, and faults without a pause."""
    drawn = _drawn(seed)
    if Random(f"restless {seed}").random() < RESTLESS_SHARE:
        drawn = drawn.changed(RESTLESS)
    return drawn.changed(_drawn_kafka(drawn))


def _drawn_kafka(drawn: Scenario) -> dict[str, Any]:
    """Clients of Kafka in a share of all worlds, and what they suffer.

    Their copiers commit positions once in a transaction. Gateways stall here, and what one reads
    too late would count as the newest (ADR 34, "Not closed").
    """
    random = Random(f"kafka {drawn.seed}")
    if random.random() >= KAFKA_SHARE or drawn.workload.strangers:
        return {}
    return {
        "kafka_writers": random.choice((1, 2, 3)),
        "kafka_copiers": random.choice((0, 1)) if COPY_TARGET in drawn.workload.topics else 0,
        "kafka_sharers": random.choice((0, 0, 1)),
        "kafka_kinds": random.choice((("java-4",), ("java-3", "librdkafka-2"), tuple(KINDS))),
        "kafka_delays": random.choice((0.0, 0.0, 0.05)),
        "kafka_repeats": random.choice((0.0, 0.0, 0.3)),
        "kafka_stalls": random.choice((0.0, 0.0, 0.05)),
        "kafka_holds": random.choice((0.0, 0.1)),
        "kafka_purges": random.choice((0.2, 0.8)),
        "kafka_pauses": random.choice((0.0, 0.0, 0.3)),
        "kafka_moves": random.choice((0.0, 0.0, 0.3)),
        "kafka_first_epoch": random.choice((0, 0, 0, 32_763)),
        "kafka_late": random.choice((0.0, 0.7, 1.0)),
        "kafka_wanders": random.choice((0.0, 0.0, 0.1)),
    }


def _drawn(seed: int) -> Scenario:
    random = Random(f"scenario {seed}")
    copiers = random.choice((0, 1, 2, 3))
    topics = {f"t{number}": random.randint(1, 3) for number in range(random.randint(1, 3))}
    processors = Random(f"processors {seed}").choice((0, 0, 0, 1, 2))
    if copiers:
        topics[COPY_TARGET] = random.randint(1, 2)
    if processors:
        topics[PROCESS_TARGET] = 2
    return Scenario(
        seed=seed,
        workload=WorkloadPlan(
            topics=topics,
            duration_s=random.choice((5.0, 10.0, 20.0, 40.0)),
            writers=random.randint(1, 3),
            hijackers=random.choice((0, 0, 1)),
            # Of its own, so that the seeds kept for regressions draw the rest as they did.
            rogues=Random(f"rogues {seed}").choice((0, 0, 1)),
            impostors=Random(f"impostors {seed}").choice((0, 0, 1)),
            strangers=Random(f"strangers {seed}").choice((0, 0, 0, 1)),
            commit_readers=Random(f"commit readers {seed}").choice((0, 0, 1)),
            preparers=Random(f"preparers {seed}").choice((0, 0, 0, 1)),
            intruders=Random(f"intruders {seed}").choice((0, 0, 1)),
            operators=Random(f"operators {seed}").choice((0, 1)),
            remakers=Random(f"remakers {seed}").choice((0, 0, 1)),
            plain_writers=random.choice((0, 1)),
            jobs=random.choice((0, 0, 1, 2)),
            queries=Random(f"queries {seed}").choice((0, 0, 1, 2)),
            copiers=copiers,
            spanning_ratio=Random(f"spanning {seed}").choice((0.0, 0.0, 0.3)),
            slow_copies=Random(f"slow copies {seed}").choice((0.0,) * 5 + (0.05,)),
            processors=processors,
            on_error=(on_error := Random(f"on error {seed}").choice(ON_ERROR)),
            bad_inputs=0.0 if on_error == "fail" else 0.1,
            scalings=Random(f"scalings {seed}").choice((0.0, 0.0, 0.5)),
            near_reads=Random(f"near reads {seed}").choice((0.0, 0.7)),
            readers=random.choice((1, 2)),
            # One choice, drawn all the same: the seeds kept draw the rest as they did.
            uncommitted_readers=random.choice((1, 1)),
            shutdowns=Random(f"shutdowns {seed}").choice((0.0,) * 9 + (0.05,)),
            wrong_times=Random(f"wrong times {seed}").choice((0.0,) * 9 + (0.05,)),
            abort_ratio=0.15,
            transaction_timeout_ms=random.choice((1_000, 3_000, 10_000)),
            request_timeout_ms=random.choice((300, 1_000, 3_000)),
            pause_ms=random.choice((10.0, 50.0, 200.0)),
        ),
        faults=drawn_faults(random),
        segment_bytes=random.choice((4_096, 65_536, 1_048_576)),
        replicas_per_actor=Random(f"hosts {seed}").choice((1, 1, 3, AUTO)),
        brokers=(brokers := Random(f"brokers {seed}").choice((1, 1, 3))),
        replication_factor=min(brokers, Random(f"replicas {seed}").choice((1, 3))),
    )


@dataclass(slots=True)
class Result:
    """How a run went. It is *vacuous* if any of what it is there for did not happen."""

    scenario: Scenario
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    fault_counts: Counter[str] = field(default_factory=Counter)
    event_count: int = 0
    virtual_s: float = 0.0
    trace_hash: str = ""
    story: str = ""

    @property
    def is_vacuous(self) -> bool:
        """Whether the run says little: it lacks commits, aborts, readers or kinds of faults."""
        uncommitted = self.counts["records read uncommitted"]
        return not self.violations and not (
            self.counts["commits"]
            and self.counts["aborts"]
            and uncommitted
            and self.counts["records read"] > uncommitted
            and len(self.fault_counts) >= FAULT_KINDS_MIN
        )

    @property
    def checker(self) -> str | None:
        """Which checker found something, the first one."""
        return self.violations[0].checker if self.violations else None


def run_scenario(scenario: Scenario, history_path: Path | None = None) -> Result:
    """Run and check one scenario. Never raises for what it finds.

    The history is judged once more as that of a fault campaign, and written to ``history_path``.
    """
    result = Result(scenario)
    # Made ahead, so that the watch sees one world only.
    settings = founded(scenario)
    first_epoch = scenario.workload.kafka_first_epoch
    with (
        watching() as watch,
        low_bounds(scenario.seed) as turned_away,
        first_epochs(first_epoch) if first_epoch else contextlib.nullcontext(),
        sequences_asked_within(scenario.workload.request_timeout_ms),
    ):
        try:
            world = World(scenario.seed, topics=scenario.workload.topics, settings=settings)
        except SimulationError as error:
            result.violations.append(_world_violation(error))
            return result
        with world:
            stage = Stage(world, scenario.workload)
            world.network.zombie_share = ZOMBIE_SHARE
            world.after_event.append(_stopper(watch))
            try:
                _play(stage, scenario.faults)
                last_driver = world.client("last-driver")
                writing = last_driver.spawn(last_writes(stage, last_driver))
                world.run(writing, limit_s=QUIET_LIMIT_S)
                _read_everything(stage)
                world.quiesce(limit_s=QUIET_LIMIT_S)
                result.violations += unequal_logs(world)
                result.violations += _stale_for_good(world)
                if world.settings.has_rules:
                    # Else the time is up: a process that missed a change must ask.
                    known = world.until(lambda: are_rules_known(world))
                    world.run(known, limit_s=KNOWN_LIMIT_S)
                    result.violations += try_everything(stage)
                copied = world.until(lambda: is_metadata_copied(world))
                world.run(copied, limit_s=VOTERS_LIMIT_S)
                result.violations += unequal_metadata(world)
                result.violations += commit_order_violations(stage)
                result.violations += check_history(stage.history)
                result.violations += _judged_as_campaign(stage)
            except SimulationError as error:
                if not isinstance(error.__cause__, _WatchError):
                    result.violations.append(_world_violation(error))
                    # What clients saw until then may tell more, and so do the ends of logs.
                    stage.history.settle()
                    _note_ends(stage)
                    result.violations += check_history(stage.history)
            if history_path is not None:
                write_history(stage.history, history_path)
            result.violations[:0] = watch.violations
            _measure(result, stage, watch)
            result.counts += turned_away
    return result


def founded(scenario: Scenario) -> WorldSettings:
    """The settings of its world, whose cluster has been founded: done once for many runs."""
    replication_factor = min(scenario.replication_factor, scenario.brokers)
    settings = WorldSettings(
        brokers=scenario.brokers,
        head_node=scenario.head_node,
        has_rules=bool(scenario.workload.strangers),
        replication_factor=replication_factor,
        racks=RACKS[: scenario.brokers] if scenario.workload.near_reads else (),
        cluster=dataclasses.replace(
            CLUSTER,
            replicas_per_actor=scenario.replicas_per_actor,
            transaction_two_phase_commit_enable=bool(scenario.workload.preparers),
            **(HASTY_BROKERS if replication_factor > 1 else {}),
        ),
        topic_settings={
            topic: settings_of(topic) or {"segment_bytes": scenario.segment_bytes}
            for topic in scenario.workload.topics
        },
    )
    founded_disks(scenario.workload.topics, settings)
    return settings


def _world_violation(error: SimulationError) -> Violation:
    name = type(error.__cause__ or error).__name__
    return Violation(f"World:{name}", str(error).partition("\n---")[0])


def _judged_as_campaign(stage: Stage) -> list[Violation]:
    found = judged(stage.history).anomalies[:VIOLATIONS_MAX]
    return [Violation(f"Campaign:{anomaly.kind}", anomaly.detail) for anomaly in found]


class _WatchError(AssertionError):
    """The watch has found something."""


def _stopper(watch: LogWatch) -> Any:
    def stop(world: World, _: Process) -> None:
        if watch.violations:
            world.fail(_WatchError(), str(watch.violations[0]))

    return stop


def _play(stage: Stage, faults: FaultPlan) -> None:
    """The run itself: clients and faults until the time is over, then peace."""
    world = stage.world
    random = Random(f"workload {world.seed}")
    if stage.plan.strangers:
        set_rules(stage)
    cast = Cast(stage, random, principal_of)
    _add_roles(cast, stage.plan)
    nemesis = Nemesis(stage, faults, Random(f"faults {world.seed}"))
    if stage.plan.has_kafka:
        stage.gateways = Gateways(world, stage.plan, faults)
        world.driver.spawn(stage.gateways.keep())
    world.driver.spawn(cast.play())
    world.driver.spawn(nemesis.rage())
    world.run_for(stage.plan.duration_s)
    cast.leave()
    for process in list(world.processes.values()):
        if isinstance(process, Client):
            world.end_process(process, "leaves")
    if stage.gateways is not None:
        stage.gateways.end()
    if stage.databases:
        # Nothing else ends what is prepared, and a quiet world has nothing open.
        world.heal()
        last = last_preparer(stage)
        world.run(last.client.spawn(end_prepared(last)), limit_s=QUIET_LIMIT_S)
    world.quiesce(limit_s=QUIET_LIMIT_S)
    if stage.plan.has_kafka:
        _go_on_with_kafka(stage)
    if faults.lasts and world.settings.replication_factor > 1:
        _go_on_without_a_node(stage, faults.lasts, random)
    if damaged := world.media.damaged_records():
        prober = world.client("prober")
        world.run(prober.spawn(_probe(prober, damaged)), limit_s=TOLD_LIMIT_S)
        world.media.put_records_back()
        world.quiesce(limit_s=QUIET_LIMIT_S)
    stage.history.settle()


def _go_on_with_kafka(stage: Stage) -> None:
    """Gateways and clients of Kafka anew, in peace: now each transaction is committed."""
    world = stage.world
    plan = dataclasses.replace(stage.plan, **KAFKA_AT_PEACE)
    stage.gateways = Gateways(world, plan, FaultPlan())
    world.driver.spawn(stage.gateways.keep())
    world.run(world.until(stage.gateways.are_there), limit_s=QUIET_LIMIT_S)
    last = Player(stage, world.client("last-of-kafka"), Random("last of kafka"))
    world.run(last.client.spawn(last_transactions(last)), limit_s=QUIET_LIMIT_S)
    world.end_process(last.client, "leaves")
    stage.gateways.end()
    world.quiesce(limit_s=QUIET_LIMIT_S)


def _go_on_without_a_node(stage: Stage, fault: str, random: Random) -> None:
    """Something of one node stays broken, which nobody mends; then it is mended all the same."""
    world = stage.world
    partitions = topic_for_progress(world, "lasting")
    world.quiesce(limit_s=QUIET_LIMIT_S)
    # One that has lost its disk gets a copy and a vote again: else a majority may not be left.
    world.run(world.until(world.has_three_voters), limit_s=VOTERS_LIMIT_S)
    before = Before(world, partitions, "after")
    LASTING_FAULTS[fault](world, random.choice(world.node_numbers()))
    progress_s(world, partitions, "after", before)
    world.quiesce(limit_s=QUIET_LIMIT_S)


async def _probe(client: Client, damaged: list[TopicPartition]) -> None:
    """Read partitions with damaged records to their end: what is damaged has to be told."""
    for topic_partition in damaged:
        await _read_to_end(client, History(), topic_partition, IsolationLevel.READ_UNCOMMITTED)


def _add_roles(cast: Cast, plan: WorkloadPlan) -> None:
    ids = [f"writer-{number}" for number in range(plan.writers)]
    for name in ids:
        cast.add(name, writer(name))
    for number in range(plan.hijackers):
        cast.add(f"hijacker-{number}", hijacker(ids))
    for number in range(plan.plain_writers):
        cast.add(f"plain-{number}", plain_writer)
    for number in range(plan.jobs):
        cast.add(f"planner-{number}", planner(f"job-{number}"))
    for number in range(plan.queries):
        cast.add(f"querier-{number}", querier())
    for number in range(plan.copiers):
        cast.add(f"copier-{number}", copier(f"copier-{number}"))
    for number in range(plan.processors):
        cast.add(f"processor-{number}", processor(number))
    for number in range(plan.readers):
        cast.add(f"reader-{number}", reader(IsolationLevel.READ_COMMITTED))
    for number in range(plan.uncommitted_readers):
        cast.add(f"peeper-{number}", reader(IsolationLevel.READ_UNCOMMITTED))
    for number in range(plan.operators):
        cast.add(f"operator-{number}", operator)
    for number in range(plan.remakers):
        cast.add(f"remaker-{number}", remaker)
    for number in range(plan.rogues):
        cast.add(f"rogue-{number}", rogue)
    for number in range(plan.impostors):
        cast.add(f"impostor-{number}", impostor)
    for number in range(plan.strangers):
        cast.add(f"stranger-{number}", stranger)
    for number in range(plan.commit_readers):
        name = f"commit-reader-{number}"
        cast.add(name, commit_reader(name))
    for number in range(plan.preparers):
        cast.add(f"preparer-{number}", preparer(f"preparer-{number}"))
    for number in range(plan.intruders):
        # Producers of their own under the id whose versions the drivers write.
        cast.add(f"intruder-{number}", hijacker([SHARED_ID]))
    if plan.strangers:
        cast.add("rule-changer", rule_changer)
    _add_clients_of_kafka(cast, plan, ids)


def _add_clients_of_kafka(cast: Cast, plan: WorkloadPlan, ids: list[str]) -> None:
    own = [f"kafka-writer-{number}" for number in range(plan.kafka_writers)]
    for name in own:
        cast.add(name, kafka_writer([name], plan.kafka_kinds))
    for number in range(plan.kafka_copiers):
        name = f"kafka-copier-{number}"
        cast.add(name, kafka_copier(name, plan.kafka_kinds))
    for number in range(plan.kafka_sharers):
        cast.add(f"kafka-sharer-{number}", kafka_writer([*ids, *own], plan.kafka_kinds))


# --- the last read ----------------------------------------------------------------------------


def _stale_for_good(world: World) -> list[Violation]:
    """Leaders that the controller never tells its settings; one just started is told soon."""
    with contextlib.suppress(SimulationError):
        told = world.until(lambda: not stale_settings(world))
        world.run(told, limit_s=SETTINGS_LIMIT_S)
    return stale_settings(world)


def _read_everything(stage: Stage) -> None:
    """After the quiet: all records in both isolation levels, all positions, all bounds."""
    world = stage.world
    client = world.client("last-reader")
    world.run(client.spawn(_drain(stage, client)), limit_s=QUIET_LIMIT_S)
    # Preferred leaders are elected meanwhile; a new one does not know at once what is committed.
    world.run(world.until(world.is_copied), limit_s=QUIET_LIMIT_S)
    _note_ends(stage)
    _count_removals(stage)


def _note_ends(stage: Stage) -> None:
    for replica in stage.world.leaders().values():
        if replica.topic_partition in stage.partitions:
            machine = replica.machine
            stage.history.log_ends[replica.topic_partition] = LogEnd(
                machine.last_stable_offset,
                machine.high_watermark,
                machine.log_end_offset,
                machine.log_start_offset,
            )


def _count_removals(stage: Stage) -> None:
    """How many partitions have lost records, so that a run tells what it tried."""
    for topic_partition, end in stage.history.log_ends.items():
        stage.counts["partitions cut"] += end.log_start_offset > 0
        placement = stage.world.placement_of(topic_partition)
        files = stage.world.disks[holder_of(placement)].files() if placement else {}
        name = f"{topic_partition.topic}-{topic_partition.partition}"
        has_compacted = any(
            path.name == "cleaner-offset-checkpoint" and path.parent.name == name for path in files
        )
        stage.counts["partitions compacted"] += has_compacted


async def _drain(stage: Stage, client: Client) -> None:
    for isolation in IsolationLevel:
        for topic_partition in stage.partitions:
            stage.history.final[topic_partition, isolation] = await _read_to_end(
                client, stage.history, topic_partition, isolation
            )
    copiers = stage.plan.copiers + stage.plan.kafka_copiers
    groups = {COPY_GROUP: copiers, PROCESS_GROUP: stage.plan.processors}
    for group in (name for name, members in groups.items() if members):
        consumer = client.consumer(group_id=group)
        for topic_partition in stage.partitions:
            if topic_partition.topic == COPY_SOURCE:
                position = await consumer.committed(topic_partition)
                stage.history.final_positions[group, topic_partition] = position
        await consumer.close()


async def _read_to_end(
    client: Client,
    history: History,
    topic_partition: TopicPartition,
    isolation: IsolationLevel,
) -> list[tuple[int, str]]:
    consumer = client.consumer(isolation_level=isolation, auto_offset_reset="earliest")
    await consumer.assign(topic_partition)
    await consumer.seek_to_beginning()
    found: list[tuple[int, str]] = []
    end = (await consumer.end_offsets(topic_partition))[topic_partition]
    while await consumer.position(topic_partition) < end:
        try:
            records = await consumer.poll(1_000)
        except CorruptRecordError as error:
            history.unreadable.append((topic_partition, error.offset, error.next_offset))
            await consumer.seek(topic_partition, error.next_offset)
            continue
        except OncelogError as error:
            client.world.note(f"the last read met {error!r}")
            continue
        found += [(record.offset, (record.value or b"").decode()) for record in records]
    await consumer.close()
    return found


def _measure(result: Result, stage: Stage, watch: LogWatch) -> None:
    world = stage.world
    result.counts = stage.counts + watch.counts
    result.fault_counts = world.counts
    result.event_count = world.loop.event_count
    result.virtual_s = world.now_s
    result.trace_hash = world.trace_hash()
    if result.violations:
        about = result.violations[0].about
        result.story = world.story.text(last=STORY_LINES, about=about)
