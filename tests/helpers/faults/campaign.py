"""A fault campaign on a real cluster: clients work, a nemesis strikes, a checker judges.

    ./run faults --minutes 15 --seed 1 --faults 200 --history DIR
    ./run faults --brokers 3 --replication 3 --minutes 15 --faults 150 --history DIR
    ./run faults --brokers 3 --replication 3 --door kafka --minutes 10 --history DIR

The history, in JSON lines, is ``DIR/*.jsonl``; the clients' logs are beside it. The exit status is
0 only if nothing was wrong and enough happened to say so.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from deadlines import DEADLINE_S, wait_for
from faults.availability import STALL_MAX_S, gap_lines, longest_stall, longest_wait
from faults.checker import Demands, check
from faults.client import (
    COPIES_TOPIC,
    EVENTS_TOPIC,
    GROUP,
    MEMBERS_GROUP,
    partition_of,
    polled,
    repeat,
)
from faults.crew import OWN_KINDS, Crew, Plan, kafka_kinds
from faults.facts import Anomaly
from faults.fault_plan import GATEWAY, GATEWAY_SHARE, ROLES, plan_faults
from faults.history import History, HistoryWriter, read_history, write_meta
from faults.kafka_door import read_all, takes_transactions
from faults.nemesis import Nemesis
from faults.replicas import (
    coordinators_keys,
    count_moves,
    logged_changes,
    replica_differences,
)
from faults.several_brokers import FOUNDER, VOTERS, SeveralBrokers, several_brokers
from faults.takeovers import takeover_lines, takeovers
from faults.totals import Tally, carried_out, report_lines
from faults.victims import Actors
from kafka_clients import free_port
from links import can_link, enter_own_network

import oncelog
from oncelog.actors.config import CONNECTIONS, CallTransport
from oncelog.storage.model import CLUSTER_METADATA_TOPIC

EVENTS_PARTITIONS: Final = 4
COPIES_PARTITIONS: Final = 2
WHOLE_DEADLINE_S: Final = 60.0
"""How soon after the last fault every replica is in sync again, and equal to the others."""

LINE_EVERY_S: Final = 5.0
STRIKING_SHARE: Final = 0.9
"""The part of the time in which faults are carried out; then clients work on undisturbed."""
OVERTIME: Final = 5.0
"""How much longer than planned the faults may take, on a machine that is busy with other things."""
SHOWN_MAX: Final = 20
UNCOMMITTED: Final = "uncommitted"
OWN_DOOR: Final = "own"
KAFKA_DOOR: Final = "kafka"

EVENTS: Final = [f"{EVENTS_TOPIC}-{n}" for n in range(EVENTS_PARTITIONS)]
COPIES: Final = [f"{COPIES_TOPIC}-{n}" for n in range(COPIES_PARTITIONS)]


@dataclass(frozen=True, slots=True)
class Result:
    """How a campaign ended. ``anomalies`` is empty and ``missing`` too if all is well."""

    history: History
    anomalies: list[Anomaly]
    missing: list[str]
    figures: list[str] = field(default_factory=list)
    """Lines on what only several brokers have."""

    @property
    def is_valid(self) -> bool:
        """Whether nothing was wrong, and enough happened to say so."""
        return not self.anomalies and not self.missing


def run_campaign(
    cluster: Any,
    directory: Path,
    *,
    minutes: float,
    seed: int,
    faults: int,
    say: Callable[[str], None],
    several: SeveralBrokers | None = None,
    stall_max_s: float = STALL_MAX_S,
    bootstrap: str = "",
) -> Result:
    """Run clients and faults against ``cluster``, whose topics must not exist yet; judge it.

    With a ``bootstrap`` clients of Kafka are among the clients, and gateways among the victims.
    """
    write_meta(directory)
    admin = cluster.admin()
    replication = 1 if several is None else several.replication
    admin.create_topic(EVENTS_TOPIC, EVENTS_PARTITIONS, replication)
    admin.create_topic(COPIES_TOPIC, COPIES_PARTITIONS, replication)
    plan = Plan(
        directory=directory,
        address=cluster.address,
        seed=seed,
        partitions=EVENTS_PARTITIONS,
        copies=COPIES_PARTITIONS,
        kinds=_kinds(bootstrap, say),
        bootstrap=bootstrap,
    )
    crew = Crew(plan)
    actors = Actors(cluster, [*EVENTS, *COPIES], crew.transactional_ids, plan.of_kafka)
    roles = dict(ROLES if several is None else several.roles)
    if bootstrap:
        roles[GATEWAY] = GATEWAY_SHARE
    nemesis = Nemesis(
        directory,
        actors,
        crew.process_ids,
        faults=plan_faults(seed, faults, roles),
        seed=seed,
        nodes=None if several is None else several.nodes,
        struck_brokers=() if several is None else several.broker_ids,
    )
    settling = _Settling(cluster, crew, say)
    crew.start(nemesis.port)
    with contextlib.ExitStack() as ends:
        for end in (actors.close, nemesis.close, nemesis.heal, crew.kill):
            ends.callback(end)
        _await_start(crew, directory, say)
        _strike(nemesis, crew, minutes * 60, _Line(directory, faults, say))
        settling.await_true("every replica is in sync", actors.unwhole, WHOLE_DEADLINE_S)
        _settle(settling, directory, bootstrap)
        if several is not None:
            settling.await_true("all replicas are equal", _differences(several), WHOLE_DEADLINE_S)
    result = _judge(directory, settling.stalls + crew.crashes, faults)
    if several is not None:
        _judge_availability(result, several, stall_max_s)
    if bootstrap:
        result.figures.append(f"no send of clients of Kafka for {longest_wait(result.history)}")
    return result


def _kinds(bootstrap: str, say: Callable[[str], None]) -> Mapping[str, str]:
    """The clients, by name and kind."""
    if not bootstrap:
        return OWN_KINDS
    has_transactions = takes_transactions(bootstrap)
    with_or_without = "with" if has_transactions else "without"
    say(f"clients of Kafka at {bootstrap}, {with_or_without} transactions of theirs")
    return kafka_kinds(has_transactions=has_transactions)


def _differences(several: SeveralBrokers) -> Callable[[], str]:
    keys, data_dirs = [*EVENTS, *COPIES], several.data_dirs

    def find() -> str:
        compared = [*keys, *coordinators_keys(data_dirs)]
        found = replica_differences(data_dirs, compared, several.replication)
        # The controller's log is on three brokers once there are so many.
        metadata = [f"{CLUSTER_METADATA_TOPIC}-0"]
        voters = VOTERS if several.brokers >= VOTERS else 1
        return found or replica_differences(data_dirs, metadata, voters)

    return find


def _await_start(crew: Crew, directory: Path, say: Callable[[str], None]) -> None:
    say("waiting until every client works")
    deadline = time.monotonic() + DEADLINE_S
    while any(not list(directory.glob(f"{name}.*.jsonl")) for name in crew.plan.kinds):
        crew.tend()
        if crew.crashes or time.monotonic() > deadline:
            raise RuntimeError(f"the clients do not start: {crew.crashes}")
        time.sleep(0.2)


def _strike(nemesis: Nemesis, crew: Crew, span_s: float, line: _Line) -> None:
    """Let the nemesis work in a thread, keep the clients alive, and tell what is going on."""
    begin = time.monotonic()
    is_over = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            nemesis.run(is_over.is_set, span_s * STRIKING_SHARE)
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=work, name="nemesis")
    thread.start()
    try:
        while thread.is_alive() or time.monotonic() < begin + span_s:
            if errors or time.monotonic() > begin + span_s * OVERTIME:
                break
            crew.tend()
            line.show(time.monotonic() - begin, nemesis.done)
            time.sleep(0.1)
    finally:
        is_over.set()
        thread.join()
    if errors:
        raise errors[0]


class _Line:
    """What is going on, told every few seconds."""

    def __init__(self, directory: Path, faults: int, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._faults = faults
        self._say = say
        self._tally = Tally()
        self._due_s = 0.0

    def show(self, elapsed_s: float, faults: int) -> None:
        """Tell it, if it is time."""
        if elapsed_s < self._due_s:
            return
        self._due_s = elapsed_s + LINE_EVERY_S
        self._tally.update(self._directory)
        self._say(
            f"{elapsed_s:6.0f} s  faults {faults}/{self._faults}"
            f"  operations {self._tally.operations}"
            f"  committed {self._tally.committed}  aborted {self._tally.aborted}"
        )


# --- the end ------------------------------------------------------------------------------------


class _Settling:
    """Waits for what must come; ``stalls`` is what did not."""

    def __init__(self, cluster: Any, crew: Crew, say: Callable[[str], None]) -> None:
        self.stalls: list[Anomaly] = []
        self.cluster = cluster
        self.crew = crew
        self.say = say

    def await_true(
        self, what: str, is_done: Callable[[], str], deadline_s: float = DEADLINE_S
    ) -> None:
        """Wait until ``is_done`` has nothing more to tell of what is in the way."""
        self.say(f"waiting until {what}")
        deadline = time.monotonic() + deadline_s
        while True:
            self.crew.tend()
            state = is_done()
            if not state:
                return
            if time.monotonic() > deadline:
                self.stalls.append(Anomaly("stall", f"not in {deadline_s} s: {what}: {state}"))
                return
            time.sleep(0.5)


def _settle(settling: _Settling, directory: Path, bootstrap: str) -> None:
    """Stop the writers, let the copiers catch up, wait until all is decided, read everything."""
    cluster, crew = settling.cluster, settling.crew
    admin = cluster.admin()
    await_true = settling.await_true
    crew.stop("writers")
    await_true("the writers have ended", crew.alive_text("writers"))
    await_true("every transaction of them is decided", lambda: _undecided(admin, crew.writer_ids))
    await_true("the copiers have caught up", lambda: _lag(cluster))
    crew.stop("all")
    await_true("all clients have ended", crew.alive_text("all"))
    await_true("every transaction is decided", lambda: _undecided(admin, crew.transactional_ids))
    await_true("last stable offsets are at the end", lambda: _unstable(admin))
    settling.say("reading everything")
    if bootstrap:
        # By a client of Kafka first: all must find the same.
        writer = HistoryWriter(directory, "kafka.final")
        read_all(writer, bootstrap, [*EVENTS, *COPIES])
        writer.close()
    for isolation, name in (("read_committed", "final"), ("read_uncommitted", UNCOMMITTED)):
        _read_all(cluster, directory, isolation, f"{name}.final")


def _undecided(admin: Any, transactional_ids: Sequence[str]) -> str:
    return ", ".join(
        f"{found.transactional_id} is {found.state} in {len(found.partitions)} partitions"
        for found in repeat(admin.list_transactions)
        if found.partitions and found.transactional_id in transactional_ids
    )


def _lag(cluster: Any) -> str:
    committed = repeat(lambda: cluster.admin().list_group_offsets(GROUP))
    with cluster.consumer() as consumer:
        ends = repeat(lambda: consumer.end_offsets([partition_of(key) for key in EVENTS]))
    positions = {tp: committed[tp].offset if tp in committed else 0 for tp in ends}
    behind = {str(tp): (positions[tp], end) for tp, end in ends.items() if positions[tp] < end}
    return str(behind) if behind else ""


def _unstable(admin: Any) -> str:
    found = []
    for key in (*EVENTS, *COPIES):
        bounds = repeat(lambda key=key: admin.describe_replica(partition_of(key)))
        if bounds.last_stable_offset != bounds.log_end_offset or bounds.open_transaction_count:
            found.append(f"{key}: {bounds}")
    return "; ".join(found)


def _read_all(cluster: Any, directory: Path, isolation: str, process: str) -> None:
    """The complete read of every key, and what the group has committed."""
    writer = HistoryWriter(directory, process)
    keys = [*EVENTS, *COPIES]
    partitions = [partition_of(key) for key in keys]
    with cluster.consumer(
        group_id=GROUP, isolation_level=isolation, enable_auto_commit=False
    ) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        writer.event("assign", keys, seek_to_beginning=True)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            writer.invoke("poll", [["poll"]], txn=False)
            writer.complete("ok", [["poll", polled(consumer.poll(1_000, 5_000))]])
        writer.event("drained", keys)
    for group in (GROUP, MEMBERS_GROUP):
        writer.invoke("committed", group=group)
        found = repeat(lambda group=group: cluster.admin().list_group_offsets(group))
        places = {key: found.get(partition_of(key)) for key in EVENTS}
        offsets = {key: None if at is None else at.offset for key, at in places.items()}
        writer.complete("ok", offsets, group=group)
    writer.close()


def _judge(directory: Path, found: list[Anomaly], faults: int) -> Result:
    """Check both histories: what readers of committed data saw, and what all others saw."""
    paths = sorted(directory.glob("*.jsonl"))
    committed = read_history(path for path in paths if not path.name.startswith(UNCOMMITTED))
    demands = Demands(faults=faults, committed=faults, aborted=max(1, faults // 4), outputs=faults)
    verdict = check(committed, demands)
    uncommitted = read_history(paths)
    uncommitted.isolation = "read_uncommitted"
    others = check(uncommitted)
    seen = [Anomaly(f"{one.kind} (read_uncommitted)", one.detail) for one in others.anomalies]
    struck = len(carried_out(committed))
    if struck < faults:
        verdict.missing.append(f"faults that struck: {struck} of {faults} demanded")
    return Result(committed, [*found, *verdict.anomalies, *seen], verdict.missing + others.missing)


def _judge_availability(result: Result, several: SeveralBrokers, stall_max_s: float) -> None:
    """How often leaders changed, and that commits went on while a majority of brokers lived."""
    stall = longest_stall(result.history)
    if stall.length_s > stall_max_s:
        result.anomalies.append(Anomaly("stall", f"a majority lives, nothing commits: {stall}"))
    changes = logged_changes(several.data_dirs[FOUNDER])
    result.figures.append(f"elections     {count_moves(changes)}")
    found = list(takeovers(result.history, changes, founder=FOUNDER))
    result.figures.extend(takeover_lines(found))
    result.figures.extend(gap_lines(result.history))
    every = longest_stall(result.history, lives_always=True)
    result.figures.append(f"no commit     for {stall} at most while a majority lived, else {every}")


def print_result(result: Result, directory: Path, say: Callable[[str], None]) -> None:
    """Totals, anomalies and the verdict."""
    for line in report_lines(result.history):
        say(line)
    for line in result.figures:
        say(line)
    for anomaly in result.anomalies[:SHOWN_MAX]:
        say(f"ANOMALY       {anomaly}")
    if len(result.anomalies) > SHOWN_MAX:
        say(f"ANOMALY       and {len(result.anomalies) - SHOWN_MAX} more")
    for text in result.missing:
        say(f"MISSING       {text}")
    say(f"anomalies     {len(result.anomalies) or 'none'}")
    say(f"history       {directory}")
    verdict = "invalid" if result.anomalies else "unknown" if result.missing else "valid"
    say(f"verdict       {verdict}")


def main(argv: Sequence[str] | None = None) -> int:
    """Start a cluster in the history directory, run the campaign on it, print what came of it."""
    parser = argparse.ArgumentParser(prog="./run faults", description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=15.0, help="how long clients work")
    parser.add_argument("--seed", type=int, help="chooses the faults and what clients do")
    parser.add_argument("--faults", type=int, default=200, help="how many are carried out")
    parser.add_argument("--history", type=Path, required=True, help="an empty directory, or none")
    parser.add_argument(
        "--num-cpus", type=int, default=2, help="of one broker; several have 1 each"
    )
    parser.add_argument("--brokers", type=int, default=1, help="each on a Ray node of this machine")
    parser.add_argument("--replication", type=int, default=1, help="replicas of each partition")
    parser.add_argument(
        "--calls", choices=get_args(CallTransport), default=CONNECTIONS, help="how calls travel"
    )
    parser.add_argument(
        "--door",
        choices=[OWN_DOOR, KAFKA_DOOR],
        default=OWN_DOOR,
        help="kafka: many of the clients are confluent-kafka, and gateways die too",
    )
    parser.add_argument("--replicas-per-actor", default="auto", help="as the cluster's setting")
    parser.add_argument(
        "--stall-s",
        type=float,
        default=STALL_MAX_S,
        help="the longest without a commit while a majority of brokers lives",
    )
    arguments = parser.parse_args(argv)
    directory: Path = arguments.history.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        parser.error(f"--history {directory} is not empty: give another directory")
    if arguments.minutes <= 0 or arguments.faults < 1:
        parser.error(f"--minutes {arguments.minutes} --faults {arguments.faults}: give more than 0")
    if not 1 <= arguments.replication <= arguments.brokers:
        parser.error(f"--replication {arguments.replication}: give 1 to the number of --brokers")
    if arguments.brokers > 1 and can_link():
        words = sys.argv[1:] if argv is None else argv
        enter_own_network(sys.executable, "-m", "faults", *words)
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(32)

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    brokers = f"{arguments.brokers} brokers, replication {arguments.replication}"
    amount = f"{arguments.faults} faults, {arguments.minutes} minutes"
    shared = f"replicas per actor {arguments.replicas_per_actor}"
    say(f"seed {seed}, {amount}, {brokers}, calls by {arguments.calls}, {shared}")
    port = free_port() if arguments.door == KAFKA_DOOR else 0
    with _cluster_of(arguments, directory, port) as (cluster, several):
        result = run_campaign(
            cluster,
            directory,
            minutes=arguments.minutes,
            seed=seed,
            faults=arguments.faults,
            say=say,
            several=several,
            stall_max_s=arguments.stall_s,
            bootstrap=_gateways(several, port) if port else "",
        )
    print_result(result, directory, say)
    return 0 if result.is_valid else 1


@contextlib.contextmanager
def _cluster_of(
    arguments: argparse.Namespace, directory: Path, kafka_port: int
) -> Iterator[tuple[Any, SeveralBrokers | None]]:
    """The cluster that the arguments ask for, which ends with this; 0 is no port for Kafka's."""
    if arguments.brokers > 1:
        with several_brokers(
            directory,
            brokers=arguments.brokers,
            replication=arguments.replication,
            settings={
                "calls": arguments.calls,
                "replicas_per_actor": arguments.replicas_per_actor,
                "kafka_port": str(kafka_port),
                # So that leaders move while other faults go on.
                "leader_imbalance_check_interval_ms": "5000",
            },
        ) as several:
            yield several.cluster, several
        return
    import ray

    cluster = oncelog.init(
        directory / "data",
        num_cpus=arguments.num_cpus,
        calls=arguments.calls,
        replicas_per_actor=arguments.replicas_per_actor,
        kafka_port=kafka_port,
    )
    try:
        yield cluster, None
    finally:
        try:
            repeat(cluster.shutdown, 60.0)
        finally:
            ray.shutdown()


def _gateways(several: SeveralBrokers | None, port: int) -> str:
    """Where clients of Kafka connect to: the gateway of each broker, once it serves."""
    if several is None:
        return f"127.0.0.1:{port}"
    nodes, brokers = several.nodes, several.brokers
    wait_for(lambda: len(nodes.status().get("kafka", ())) == brokers, f"{brokers} gateways")
    return ",".join(nodes.status()["kafka"])
