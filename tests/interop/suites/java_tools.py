"""Kafka's command line tools and the programs of its system tests, of the jars of Kafka 4.4.

Each case has topics and groups of its own name.
"""

from __future__ import annotations

import atexit
import json
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafka_clients import (
    COMMITTED,
    TOOLS,
    Copier,
    java_tools,
    read_to_end,
    write_with_librdkafka,
)
from programs import Programs
from suite import Place

PROGRAM = Path(__file__).with_name("ToolServer.java")
TOOL_TIMEOUT_S = 120
COUNT = 500


class ToolServer:
    """The process that runs tools for all cases; begun with the first of them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            of = java_tools()
            self._process = subprocess.Popen(
                [of.java, "-Xmx512m", "-cp", f"{of.jars}/*", str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            atexit.register(self._process.kill)
        return self._process

    def run(self, tool: str, *arguments: str, typed: str = "", status: int = 0) -> str:
        """What a tool prints, once it has ended with that status; ``typed`` is its input."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        asked = {"tool": f"{TOOLS}.{tool}", "arguments": arguments, "typed": typed}
        # Whoever never answers is killed, and the answer is the end of its output.
        limit = threading.Timer(TOOL_TIMEOUT_S, process.kill)
        limit.start()
        try:
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        finally:
            limit.cancel()
        if not answer:
            self._process = None
            raise TimeoutError(f"{tool} {' '.join(arguments)}: not within {TOOL_TIMEOUT_S} s")
        told = json.loads(answer)
        printed = str(told["printed"])
        assert told["status"] == status, f"{tool} ended with {told['status']}: {printed}"
        return printed


SERVER = ToolServer()


class Tools:
    """Kafka's tools, at a cluster, with a topic."""

    def __init__(self, place: Place, topic: str, *settings: str, partitions: int = 2) -> None:
        self.topic, self.cluster = topic, place.cluster
        self.topics("--create", "--partitions", str(partitions), *settings)

    def run(self, tool: str, *arguments: str, **more: Any) -> str:
        """What a tool prints that is given the cluster's address last."""
        return SERVER.run(tool, *arguments, "--bootstrap-server", self.cluster.bootstrap, **more)

    def topics(self, *arguments: str, **more: Any) -> str:
        """``kafka-topics`` of the topic."""
        return self.run("TopicCommand", *arguments, "--topic", self.topic, **more)

    def write(self, *values: str) -> None:
        """Write values to the first partition."""
        encoded = [value.encode() for value in values]
        write_with_librdkafka(self.cluster.bootstrap, self.topic, encoded, partitioner="consistent")

    def events(self, printed: str) -> dict[str, list[dict[str, Any]]]:
        """The lines of JSON of a program of the system tests, by their names."""
        found: dict[str, list[dict[str, Any]]] = {}
        for line in printed.splitlines():
            if line.startswith("{"):
                event = json.loads(line)
                found.setdefault(event["name"], []).append(event)
        return found


def expect(pattern: str, printed: str) -> None:
    """The pattern fits a part of what was printed; a space stands for any spaces."""
    assert re.search(pattern.replace(" ", r"\s+"), printed), f"no {pattern!r} in {printed}"


# --- programs that write and read -----------------------------------------------------------------


def verifiable(place: Place) -> None:
    """VerifiableProducer's records are acknowledged, and VerifiableConsumer's positions kept."""
    tools = Tools(place, "verifiable")
    to = ("--topic", tools.topic, "--max-messages", str(COUNT))
    # In a process of its own: it waits for its last records while that ends.
    by = ("--bootstrap-server", tools.cluster.bootstrap, "--throughput", "-1")
    told = tools.events(java_tools().run("VerifiableProducer", *to, *by))
    acknowledged = told["producer_send_success"]
    values = sorted(int(one["value"]) for one in acknowledged)
    assert values == list(range(COUNT)), (len(values), set(range(COUNT)) - set(values))
    assert told["tool_data"][0]["acked"] == COUNT
    of = ("--group-id", "verifiable", "--reset-policy", "earliest", "--verbose")
    told = tools.events(tools.run("VerifiableConsumer", *to, *of))
    places = Counter((one["partition"], one["offset"]) for one in acknowledged)
    assert Counter((one["partition"], one["offset"]) for one in told["record_data"]) == places
    assert all(one["success"] for one in told["offsets_committed"])


def performance(place: Place) -> None:
    """ProducerPerformance, with and without transactions, and ConsumerPerformance."""
    tools = Tools(place, "performance")
    to = ("--topic", tools.topic, "--num-records", str(COUNT))
    written = (*to, "--record-size", "100", "--throughput", "-1")
    printed = tools.run("ProducerPerformance", *written)
    expect(f"{COUNT} records sent, .* 99.9th", printed)
    by = ("--transactional-id", "performance", "--transaction-duration-ms", "50")
    expect(f"{COUNT} records sent", tools.run("ProducerPerformance", *written, *by))
    assert len(read_to_end(tools.cluster.bootstrap, tools.topic, COMMITTED)) == 2 * COUNT
    read = ("--topic", tools.topic, "--num-records", str(2 * COUNT), "--group", "performance")
    expect(rf", {2 * COUNT}, ", tools.run("ConsumerPerformance", *read))


def end_to_end_latency(place: Place) -> None:
    """EndToEndLatency reads each record after it has written it."""
    tools = Tools(place, "latency")
    of = ("--topic", tools.topic, "--num-records", "100", "--record-size", "100")
    printed = tools.run("EndToEndLatency", *of, "--producer-acks", "all")
    expect(r"Percentiles: 50th = \d+, 99th = \d+", printed)


def transactional_copier(place: Place) -> None:
    """TransactionalMessageCopier copies each record once, in transactions."""
    tools = Tools(place, "copied-from", partitions=1)
    sink = Tools(place, "copied-to").topic
    tools.write(*map(str, range(COUNT)))
    copier = Copier(java_tools(), tools.cluster, tools.topic, sink)
    try:
        expect(f'"totalProcessed":{COUNT}', "\n".join(copier.finish()))
    finally:
        copier.close()
    found = read_to_end(tools.cluster.bootstrap, sink, COMMITTED)
    assert sorted(found) == sorted(b"%d" % number for number in range(COUNT))


def client_compatibility(place: Place) -> None:
    """ClientCompatibilityTest, as Kafka's system tests start it for brokers of today."""
    tools = Tools(place, "compatibility")
    supported = ("cluster-id", "create-topics", "describe-acls", "describe-configs")
    supported = (*supported, "idempotent-producer", "offsets-for-times")
    is_so = [word for name in supported for word in (f"--{name}-supported", "true")]
    more = ("--topic", tools.topic, "--num-cluster-nodes", "1")
    too_large = ("--expect-record-too-large-exception", "false")
    expect("SUCCESS", tools.run("ClientCompatibilityTest", *more, *too_large, *is_so))


def console(place: Place) -> None:
    """What is typed into the console producer, the console consumer prints."""
    tools = Tools(place, "console")
    parsed = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
    typed = "a:1,b:2\tkey\tvalue\n" + "c:3\tother\twords of it\n"
    tools.run("ConsoleProducer", "--topic", tools.topic, *parsed, typed=typed)
    shown = ("key", "headers", "partition", "offset", "timestamp")
    how = [word for name in shown for word in ("--formatter-property", f"print.{name}=true")]
    ends = ("--from-beginning", "--max-messages", "2", "--isolation-level", "read_committed")
    read = ("--topic", tools.topic, "--group", "console")
    printed = tools.run("consumer.ConsoleConsumer", *read, *ends, *how)
    expect(r"CreateTime:\d+ Partition:\d Offset:0 a:1,b:2 key value\n", printed)
    expect(r"CreateTime:\d+ Partition:\d Offset:\d c:3 other words of it\n", printed)
    expect("a total of 2 messages", printed)


def console_of_internal_topics(place: Place) -> None:
    """The console consumer reads the logs of coordinators, with the formatters made for them."""
    tools = Tools(place, "internal")
    written = ("--topic", tools.topic, "--num-records", "10", "--record-size", "10")
    by = ("--transactional-id", "internal", "--transaction-duration-ms", "50")
    tools.run("ProducerPerformance", *written, "--throughput", "-1", *by)
    read = ("--topic", tools.topic, "--group-id", "internal", "--reset-policy", "earliest")
    tools.run("VerifiableConsumer", *read, "--max-messages", "10")

    def records(topic: str, formatter: str) -> list[Any]:
        printed = tools.run(
            "consumer.ConsoleConsumer",
            *("--topic", topic, "--from-beginning", "--timeout-ms", "5000"),
            *("--formatter", f"{TOOLS}.consumer.{formatter}"),
        )
        # The formatters end no line.
        decoder, found = json.JSONDecoder(), []
        at = printed.find("{")
        while at >= 0:
            one, end = decoder.raw_decode(printed, at)
            found.append(one)
            at = printed.find("{", end)
        return found

    positions = records("__consumer_offsets", "OffsetsMessageFormatter")
    assert 10 in [
        one["value"]["data"]["offset"]
        for one in positions
        if one["key"]["data"]["group"] == "internal" and one["value"] is not None
    ]
    states = records("__transaction_state", "TransactionLogMessageFormatter")
    assert [one for one in states if one["key"]["data"]["transactionalId"] == "internal"]


# --- tools for topics -----------------------------------------------------------------------------


def topics(place: Place) -> None:
    """kafka-topics creates, lists, describes, alters and deletes."""
    tools = Tools(place, "of-topics", "--config", "retention.ms=86400000")
    refused = tools.topics("--create", status=1)
    expect("exists already|already exists", refused)
    tools.topics("--create", "--if-not-exists")
    assert tools.topic in tools.run("TopicCommand", "--list").split()
    printed = tools.topics("--describe")
    expect("PartitionCount: 2 ReplicationFactor: 1 Configs: retention.ms=86400000", printed)
    expect("Partition: 1 Leader: 1 Replicas: 1 Isr: 1", printed)
    tools.topics("--alter", "--partitions", "3")
    expect("PartitionCount: 3", tools.topics("--describe"))
    refused = tools.topics("--alter", "--partitions", "1", status=1)
    expect("3", refused)
    printed = tools.run("TopicCommand", "--describe", "--unavailable-partitions")
    assert printed.strip() == "", printed
    expect(tools.topic, tools.run("TopicCommand", "--describe", "--topics-with-overrides"))
    tools.topics("--delete")
    expect("does not exist", tools.topics("--describe", status=1))


def offsets(place: Place) -> None:
    """kafka-get-offsets and kafka-delete-records."""
    tools = Tools(place, "of-offsets")
    tools.write(*map(str, range(COUNT)))

    def at(time: str) -> list[str]:
        printed = tools.run("GetOffsetShell", "--topic", tools.topic, "--time", time)
        return sorted(printed.split())

    full, empty = sorted(at("latest"), key=lambda line: line.endswith(":0"))
    number = full.split(":")[1]
    assert full == f"{tools.topic}:{number}:{COUNT}"
    assert empty.endswith(":0")
    assert at("earliest") == sorted([f"{tools.topic}:{number}:0", empty])
    assert f"{tools.topic}:{number}:0" in at("0")
    assert len(at("max-timestamp")) == 1
    file = place.directory / "delete.json"
    partition = {"topic": tools.topic, "partition": int(number), "offset": 100}
    file.write_text(json.dumps({"partitions": [partition], "version": 1}), encoding="utf-8")
    printed = tools.run("DeleteRecordsCommand", "--offset-json-file", str(file))
    expect("low_watermark: 100", printed)
    assert f"{tools.topic}:{number}:100" in at("earliest")
    assert len(read_to_end(tools.cluster.bootstrap, tools.topic)) == COUNT - 100


def offsets_of_all_topics(place: Place) -> None:
    """kafka-get-offsets of all topics, those of the cluster itself too."""
    tools = Tools(place, "of-all-topics")
    tools.write("one")
    tools.run("ConsumerPerformance", "--topic", tools.topic, "--num-records", "1")
    printed = tools.run("GetOffsetShell")
    assert "Skip" not in printed, printed
    for internal in ("__consumer_offsets", "__transaction_state"):
        expect(rf"{internal}:0:\d+", printed)


def configs(place: Place) -> None:
    """kafka-configs of topics, and of brokers, which are only shown."""
    tools = Tools(place, "of-configs")
    of = ("--entity-type", "topics", "--entity-name", tools.topic)
    given = "retention.ms=1000000,cleanup.policy=[compact,delete]"
    tools.run("ConfigCommand", *of, "--alter", "--add-config", given)
    printed = tools.run("ConfigCommand", *of, "--describe")
    expect("retention.ms=1000000 .*DYNAMIC_TOPIC_CONFIG:retention.ms=1000000", printed)
    expect("cleanup.policy=(compact,delete|delete,compact)", printed)
    tools.run("ConfigCommand", *of, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in tools.run("ConfigCommand", *of, "--describe")
    expect("retention.ms=604800000", tools.run("ConfigCommand", *of, "--describe", "--all"))
    refused = tools.run(
        "ConfigCommand", *of, "--alter", "--add-config", "retention.ms=soon", status=1
    )
    expect("retention.ms", refused)
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    expect("broker.id=1", tools.run("ConfigCommand", *broker, "--describe", "--all"))
    everyones = ("--entity-type", "brokers", "--entity-default")
    expect("Default configs", tools.run("ConfigCommand", *everyones, "--describe"))


# --- tools for groups -----------------------------------------------------------------------------


def consumer_groups(place: Place) -> None:
    """kafka-consumer-groups lists, describes, resets and deletes."""
    tools = Tools(place, "of-groups")
    tools.write(*map(str, range(COUNT)))
    read = ("--topic", tools.topic, "--group-id", "grouped", "--reset-policy", "earliest")
    tools.run("VerifiableConsumer", *read, "--max-messages", str(COUNT))

    def groups(*arguments: str, **more: Any) -> str:
        return tools.run("consumer.group.ConsumerGroupCommand", *arguments, **more)

    expect("grouped Empty", groups("--list", "--state"))
    assert "grouped" in groups("--list", "--state", "Empty")
    assert "grouped" not in groups("--list", "--state", "Stable")
    expect("grouped Classic consumer", tools.run("GroupsCommand", "--list"))
    one = ("--group", "grouped")
    described = groups("--describe", *one)
    expect(rf"grouped {tools.topic} \d {COUNT} {COUNT} 0 - - -", described)
    expect(r"grouped \S+ \(1\) .* Empty 0", groups("--describe", *one, "--state"))
    expect("no active members", groups("--describe", *one, "--members"))
    expect(rf"grouped {tools.topic}", groups("--describe", "--all-groups"))
    of = ("--reset-offsets", *one, "--topic", tools.topic)
    expect(rf"grouped {tools.topic} \d 7\b", groups(*of, "--to-offset", "7", "--dry-run"))
    expect(rf"grouped {tools.topic} \d {COUNT} {COUNT} 0", groups("--describe", *one))
    groups(*of, "--to-earliest", "--execute")
    expect(rf"grouped {tools.topic} \d 0 {COUNT} {COUNT}", groups("--describe", *one))
    groups(*of, "--shift-by", "9", "--execute")
    expect(rf"grouped {tools.topic} \d 9 {COUNT}", groups("--describe", *one))
    groups(*of, "--to-datetime", "2020-01-01T00:00:00.000", "--execute")
    expect(rf"grouped {tools.topic} \d 0 {COUNT}", groups("--describe", *one))
    exported = groups(*of, "--to-latest", "--export", "--dry-run")
    file = place.directory / "positions.csv"
    lines = [line for line in exported.splitlines() if line.count(",") >= 2]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    groups("--reset-offsets", *one, "--from-file", str(file), "--execute")
    expect(rf"grouped {tools.topic} \d {COUNT} {COUNT} 0", groups("--describe", *one))
    expect("Successful", groups("--delete-offsets", *one, "--topic", tools.topic))
    expect("was successful", groups("--delete", *one))
    expect("GroupIdNotFoundException", groups("--describe", *one))


def streams_reset(place: Place) -> None:
    """kafka-streams-application-reset sets the positions of an application back."""
    tools = Tools(place, "of-application")
    tools.write(*map(str, range(COUNT)))
    read = ("--topic", tools.topic, "--group-id", "application", "--reset-policy", "earliest")
    tools.run("VerifiableConsumer", *read, "--max-messages", str(COUNT))
    reset = ("--application-id", "application", "--input-topics", tools.topic)
    expect(r"Partition: \d Offset: 0", tools.run("StreamsResetter", *reset))
    described = tools.run(
        "consumer.group.ConsumerGroupCommand", "--describe", "--group", "application"
    )
    expect(rf"application {tools.topic} \d 0 {COUNT}", described)


# --- tools for transactions -----------------------------------------------------------------------


def transactions(place: Place) -> None:
    """kafka-transactions lists and describes ids and producers."""
    tools = Tools(place, "of-transactions", partitions=1)
    written = ("--topic", tools.topic, "--num-records", "100", "--record-size", "10")
    by = ("--transactional-id", "described", "--transaction-duration-ms", "50")
    tools.run("ProducerPerformance", *written, "--throughput", "-1", *by)
    expect(r"described 1 \d+ CompleteCommit", transactions_command(tools, "list"))
    pattern = ("list", "--transactional-id-pattern", "descr.*")
    expect("described", transactions_command(tools, *pattern))
    described = transactions_command(tools, "describe", "--transactional-id", "described")
    expect(r"1 described \d+ \d+ CompleteCommit 60000", described)
    partition = ("--topic", tools.topic, "--partition", "0")
    expect(
        r"\n\d+ \d+ \d+ -1 \d+ None", transactions_command(tools, "describe-producers", *partition)
    )
    ends = transactions_command(tools, "abort", *partition, "--start-offset", "0", status=1)
    expect("Could not find any open transactions", ends)
    ended = ("forceTerminateTransaction", "--transactionalId", "described")
    transactions_command(tools, *ended)
    refused = transactions_command(tools, "describe", "--transactional-id", "unknown", status=1)
    expect("unknown", refused)


def transactions_command(tools: Tools, *arguments: str, **more: Any) -> str:
    """``kafka-transactions``, which wants the address first."""
    before = ("--bootstrap-server", tools.cluster.bootstrap)
    return SERVER.run("TransactionsCommand", *before, *arguments, **more)


def hanging_transactions(place: Place) -> None:
    """kafka-transactions finds no transaction that hangs, in all partitions of a broker."""
    tools = Tools(place, "of-hanging")
    heading = "Topic Partition ProducerId ProducerEpoch CoordinatorEpoch StartOffset"
    expect(heading, transactions_command(tools, "find-hanging", "--topic", tools.topic))
    printed = transactions_command(tools, "find-hanging", "--broker-id", "1")
    expect(heading, printed)
    assert len(printed.strip().splitlines()) == 1, printed


# --- tools for the cluster ------------------------------------------------------------------------


def acls(place: Place) -> None:
    """kafka-acls adds, lists and removes."""
    tools = Tools(place, "of-acls")
    topic = ("--topic", tools.topic)
    of = ("--allow-principal", "User:bob", "--operation", "Read", *topic)
    rule = "principal=User:bob, host=[*], operation=READ, permissionType=ALLOW"
    expect(rule, tools.run("AclCommand", "--add", *of))
    expect(rule, tools.run("AclCommand", "--list", *topic))
    expect(rule, tools.run("AclCommand", "--list"))
    producer = ("--add", "--allow-principal", "User:eve", "--producer", *topic)
    expect("principal=User:eve, host=[*], operation=WRITE", tools.run("AclCommand", *producer))
    tools.run("AclCommand", "--remove", "--force", *of)
    assert "User:bob" not in tools.run("AclCommand", "--list", *topic)
    tools.run("AclCommand", "--remove", "--force", *topic)
    assert "User:eve" not in tools.run("AclCommand", "--list", *topic)


def log_directories(place: Place) -> None:
    """kafka-log-dirs shows the directory of each replica."""
    tools = Tools(place, "of-directories")
    tools.write("something")
    printed = tools.run("LogDirsCommand", "--describe", "--topic-list", tools.topic)
    told = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    (broker,) = told["brokers"]
    (directory,) = broker["logDirs"]
    assert (broker["broker"], directory["error"]) == (1, None)
    assert directory["logDir"] == str(tools.cluster.data_dir)
    sizes = {one["partition"]: one["size"] for one in directory["partitions"]}
    assert set(sizes) == {f"{tools.topic}-{number}" for number in range(2)}
    assert sum(sizes.values()) > len("something")


def leader_election(place: Place) -> None:
    """kafka-leader-election elects preferred leaders, and never unclean ones."""
    tools = Tools(place, "of-leaders")
    tools.run("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    one = ("--topic", tools.topic, "--partition", "0")
    printed = tools.run("LeaderElectionCommand", "--election-type", "preferred", *one)
    expect("Valid replica already elected for partitions? .*-0|^$", printed)
    unclean = tools.run("LeaderElectionCommand", "--election-type", "unclean", *one, status=1)
    expect("could not be elected", unclean)


def cluster(place: Place) -> None:
    """kafka-broker-api-versions, kafka-cluster and kafka-features tell of the cluster."""
    tools = Tools(place, "of-cluster")
    printed = tools.run("BrokerApiVersionsCommand")
    expect(r"\(id: 1 rack: null isFenced: false\)", printed)
    expect(r"Fetch\(1\): 4 to \d+ \[usable: \d+\]", printed)
    expect(r"ConsumerGroupHeartbeat\(68\): UNSUPPORTED", printed)
    expect("Cluster ID: [0-9a-f]{32}", tools.run("ClusterTool", "cluster-id"))
    expect(r"1 \S+ \d+ null unfenced broker", tools.run("ClusterTool", "list-endpoints"))
    before = ("--bootstrap-server", tools.cluster.bootstrap)
    printed = SERVER.run("FeatureCommand", *before, "describe")
    expect("transaction.version .* FinalizedVersionLevel: 2", printed)


# --- what is not served ---------------------------------------------------------------------------


def not_served(tool: str, *arguments: str) -> Callable[[Place], None]:
    """A case of a tool that needs what the cluster does not serve."""

    def case(place: Place) -> None:
        before = ("--bootstrap-server", place.cluster.bootstrap)
        SERVER.run(tool, *before, *arguments)

    return case


CASES: dict[str, Callable[[Place], None]] = {
    "verifiable-producer-and-consumer": verifiable,
    "producer-and-consumer-performance": performance,
    "end-to-end-latency": end_to_end_latency,
    "transactional-message-copier": transactional_copier,
    "client-compatibility-test": client_compatibility,
    "console-producer-and-consumer": console,
    "console-consumer-of-internal-topics": console_of_internal_topics,
    "kafka-topics": topics,
    "kafka-get-offsets-and-delete-records": offsets,
    "kafka-get-offsets-of-all-topics": offsets_of_all_topics,
    "kafka-configs": configs,
    "kafka-configs-of-groups": not_served(
        "ConfigCommand", "--entity-type", "groups", "--entity-name", "some", "--describe"
    ),
    "kafka-configs-of-users": not_served("ConfigCommand", "--entity-type", "users", "--describe"),
    "kafka-consumer-groups": consumer_groups,
    "kafka-streams-application-reset": streams_reset,
    "kafka-transactions": transactions,
    "kafka-transactions-find-hanging": hanging_transactions,
    "kafka-acls": acls,
    "kafka-log-dirs": log_directories,
    "kafka-leader-election": leader_election,
    "kafka-broker-api-versions-cluster-and-features": cluster,
    "kafka-metadata-quorum": not_served("MetadataQuorumCommand", "describe", "--status"),
    "kafka-reassign-partitions": not_served("reassign.ReassignPartitionsCommand", "--list"),
    "kafka-client-metrics": not_served("ClientMetricsCommand", "--list"),
    "kafka-delegation-tokens": not_served(
        "DelegationTokenCommand", "--command-config", "/dev/null", "--describe"
    ),
}

JAVA_TOOLS = Programs("java-tools", CASES, java_tools)
