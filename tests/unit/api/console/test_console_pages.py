"""The pages of a console: what they show, and how much."""

from __future__ import annotations

import asyncio
import re
from html import unescape
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from console_cluster import ConsoleCluster, console_of, log_in
from topics import topic_of

from oncelog.actors.protocol.messages.brokers import (
    FindKafkaListenerReply,
    FindKafkaListenerRequest,
)
from oncelog.actors.protocol.messages.cluster import (
    BrokerMetadata,
    MetadataReply,
    MetadataRequest,
)
from oncelog.actors.protocol.messages.group import (
    DescribeGroupsRequest,
    GroupDescription,
    GroupMemberDescription,
)
from oncelog.actors.protocol.messages.partition import (
    DescribeProducersReply,
    DescribeProducersRequest,
    DescribeReplicaReply,
    DescribeReplicaRequest,
    ListOffsetsRequest,
    ProducerDescription,
)
from oncelog.actors.protocol.messages.share import (
    DescribeShareGroupReply,
    SharePartitionDescription,
)
from oncelog.actors.protocol.messages.transaction import (
    PreparedTxn,
    TransactionDescription,
    TransactionMemberDescription,
)
from oncelog.api.cli import main as cli
from oncelog.api.cli.arguments import Command
from oncelog.api.cli.status import CONDITIONS, FoundCondition
from oncelog.api.console import pages, snapshot
from oncelog.api.console.record_pages import time_ms
from oncelog.api.console.rendering import CONSOLE, ROWS_MAX
from oncelog.api.console.transaction_pages import story_of
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

HOSTILE = "<script>alert('x')</script>\u202e\x1b[2J\"'"


def shown(cluster, *paths, **options):
    """The text of each page, without tags; the last of them as it came too."""

    async def scenario():
        found = []
        async with console_of(cluster, **options) as client:
            for path in paths:
                reply = await client.get(path)
                found.append((reply.status, await reply.text()))
        return found

    return asyncio.run(scenario())


def page_of(cluster, path, **options):
    ((status, page),) = shown(cluster, path, **options)
    assert status == 200, page
    return page


def text_of(page):
    main = page[page.index("<main") : page.index("</main>")]
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", main)))


def visible(page):
    """A page without what a form sends back as it was given."""
    return re.sub(r'<input [^>]*value="[^"]*"', "", page)


def group(name, *members, kind="consumer"):
    return GroupDescription(
        group_id=name,
        state="Stable" if members else "Empty",
        protocol_type=kind,
        protocol_name="range",
        generation_id=3,
        members=members,
    )


def transaction(name, state="Ongoing", **fields):
    return TransactionDescription(
        **{
            "transactional_id": name,
            "state": state,
            "producer_id": 9,
            "producer_epoch": 1,
            "transaction_timeout_ms": 60_000,
            "transaction_start_ms": 1_000,
            "last_update_ms": 2_000,
            **fields,
        }
    )


# --- overview ---------------------------------------------------------------------------------


def test_a_cluster_that_is_well_is_told_so():
    cluster = ConsoleCluster()
    cluster.log.create("flights", 3)
    told = text_of(page_of(cluster, "/"))
    assert "All is served, and nothing is wrong" in told
    assert "partitions 3" in told


def test_a_dead_broker_is_named_with_what_to_do_and_what_to_type():
    cluster = ConsoleCluster()
    cluster.log.create("flights")
    dead = BrokerMetadata(broker_id=3, data_dir="/data", is_live=False, is_fenced=True)
    cluster.brokers = (*cluster.brokers, dead)
    page = page_of(cluster, "/")
    told = text_of(page)
    assert "All is served, but something is wrong" in told
    assert "broker away broker 3 start its node again" in told
    # To drain it is for one that does not come back, as the advice says: its node may restart.
    assert 'data-copy="oncelog status"' in page
    assert 'data-copy="oncelog brokers drain' not in page


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda one: one.name)
def test_each_condition_has_a_command(condition, monkeypatch):
    seen = SimpleNamespace(status=SimpleNamespace(actors=[]))
    if condition.name == "damaged":
        reply = DescribeReplicaReply(topic_partition=TopicPartition("t", 1), directory="/d")
        seen.status.actors = [SimpleNamespace(is_damaged=True, reply=reply)]
    found = FoundCondition(condition, ("t-1 (in sync: nobody)",))
    monkeypatch.setattr(Command, "invoke", lambda command, ctx: 0)
    assert cli.main(pages.command_for(found, seen)) == 0


@pytest.mark.parametrize(
    ("place", "actor"),
    [
        ("partition:t-1@2 in partitions:1@2 (does not answer)", "partitions:1@2"),
        ("partition:t-1@2 (offline: no space (left))", "partition:t-1@2"),
    ],
)
def test_who_does_not_serve_is_looked_up_in_the_log_of_its_process(place, actor):
    seen = SimpleNamespace(status=SimpleNamespace(actors=[]))
    (condition,) = (one for one in CONDITIONS if one.name == "not serving")
    assert pages.command_for(FoundCondition(condition, (place,)), seen) == ("logs", actor)


def test_where_clients_of_kafka_connect_to_is_told_of_each_broker_if_they_are_served():
    cluster = ConsoleCluster()
    assert "clients of Kafka" not in text_of(page_of(cluster, "/brokers"))
    cluster.settings = (("kafka_port", "9092"),)
    cluster.brokers = (*cluster.brokers, BrokerMetadata(broker_id=2, data_dir="/data"))
    open_one = FindKafkaListenerReply(host="10.0.0.1", port=9_092)
    replies = [open_one, FindKafkaListenerReply(error=ErrorCode.NETWORK_EXCEPTION)] * 2
    cluster.hooks[FindKafkaListenerRequest] = lambda _: replies.pop(0)
    told = text_of(page_of(cluster, "/brokers"))
    assert "/data 10.0.0.1:9092" in told
    assert "/data not served" in told
    page = page_of(cluster, "/")
    assert "gateway not serving gateway:0@2 (gone or restarting)" in text_of(page)
    assert 'data-copy="oncelog logs gateway:0@2"' in page


# --- a cluster that is gone -------------------------------------------------------------------


async def until(client, is_so):
    """The list of topics once it is so: it may be of a moment ago, while a newer one is got."""
    for _ in range(1_000):
        page = await (await client.get("/topics")).text()
        if is_so(page):
            return page
    raise AssertionError("it never was")


def test_without_an_answer_a_page_says_since_when_and_shows_the_last_one(monkeypatch):
    monkeypatch.setattr(snapshot, "FRESH_S", 0.0)
    monkeypatch.setattr(snapshot, "ASK_TIMEOUT_MS", 50)

    async def scenario():
        cluster = ConsoleCluster()
        cluster.log.create("flights")
        async with console_of(cluster) as client:
            before = await (await client.get("/topics")).text()
            cluster.is_gone = True
            gone = await until(client, lambda page: "The cluster does not answer" in page)
            cluster.is_gone = False
            back = await until(client, lambda page: "The cluster does not answer" not in page)
            return before, gone, back

    before, gone, back = (text_of(page) for page in asyncio.run(scenario()))
    assert "The cluster does not" not in before + back
    assert re.search(r"does not answer since \S+ \S+ UTC", gone)
    assert "Below is what it said at" in gone
    assert all("flights" in page for page in (before, gone, back))


def test_without_a_connection_the_page_says_why_and_asks_for_one():
    wanted = []

    async def scenario():
        async with console_of(None) as client:
            link = client.server.app[CONSOLE].link
            link.want = lambda: wanted.append(1)
            reply = await client.get("/topics")
            return reply.status, await reply.text()

    status, page = asyncio.run(scenario())
    assert status == 503
    assert "there is no cluster" in text_of(page)
    assert wanted


@pytest.mark.parametrize("path", ["/", "/topics", "/groups", "/topics/flights/records"])
def test_if_the_console_itself_is_not_known_any_more_the_page_says_so(path):
    cluster = ConsoleCluster()
    cluster.log.create("flights")
    for kind in (
        MetadataRequest,
        DescribeGroupsRequest,
        DescribeReplicaRequest,
        ListOffsetsRequest,
    ):
        cluster.refusals["", kind] = ErrorCode.SASL_AUTHENTICATION_FAILED

    async def scenario():
        async with console_of(cluster) as client:
            found = []
            for headers in ({}, {"HX-Request": "true"}):
                reply = await client.get(path, headers=headers, allow_redirects=False)
                found.append((reply.status, await reply.text()))
            return found

    for status, page in asyncio.run(scenario()):
        assert status in (200, 403)
        assert "check the name and the password" in page


def test_another_connection_takes_the_place_of_one_that_is_gone():
    async def scenario():
        async with console_of(None) as client:
            await client.get("/topics")
            cluster = ConsoleCluster()
            cluster.log.create("flights")
            console = client.server.app[CONSOLE]
            console.link.replace(cluster)
            console.own_viewer.answers = snapshot.Answers()
            return await (await client.get("/topics")).text()

    assert "flights" in asyncio.run(scenario())


# --- who asks, how often, how much ------------------------------------------------------------


def test_viewers_share_an_answer_and_nobody_asks_while_nobody_looks(monkeypatch):
    monkeypatch.setattr(snapshot, "FRESH_S", 1_000.0)

    async def scenario():
        cluster = ConsoleCluster()
        cluster.log.create("flights")
        async with console_of(cluster) as client:
            at_first = len(cluster.calls)
            await asyncio.gather(*(client.get("/") for _ in range(20)))
            return at_first, len(cluster.asked(MetadataRequest))

    assert asyncio.run(scenario()) == (0, 1)


@pytest.mark.parametrize(
    ("cpu_s", "passed_s", "fresh_s"),
    [
        (0.2, 0.3, 20.0),
        (0.2, 0.05, 5.0),  # Of other threads too.
        (0.0, 3.0, snapshot.FRESH_S),
        (5.0, 5.0, snapshot.FRESH_MAX_S),
    ],
)
def test_an_answer_that_was_dear_is_used_for_longer(monkeypatch, cpu_s, passed_s, fresh_s):
    """So that asking again and again takes a hundredth of a core."""
    spent_s, now_s = [0.0], [100.0]
    monkeypatch.setattr(snapshot.time, "process_time", lambda: spent_s[0])
    monkeypatch.setattr(snapshot, "monotonic_s", lambda: now_s[0])

    async def dear():
        spent_s[0] += cpu_s
        now_s[0] += passed_s
        return 1

    async def scenario():
        return (await snapshot.Answers().get("x", dear)).fresh_until_s - now_s[0]

    assert asyncio.run(scenario()) == pytest.approx(fresh_s)


def test_the_status_is_used_for_a_few_seconds_however_dear_it_was(monkeypatch):
    spent_s, now_s = [0.0], [100.0]
    monkeypatch.setattr(snapshot.time, "process_time", lambda: spent_s[0])
    monkeypatch.setattr(snapshot, "monotonic_s", lambda: now_s[0])

    async def scenario():
        cluster = ConsoleCluster()

        def describe(request):
            spent_s[0] += 1.0
            now_s[0] += 1.0

        cluster.hooks[DescribeReplicaRequest] = describe
        async with console_of(cluster) as client:
            answer = await client.server.app[CONSOLE].own_viewer.seen()
            return answer.fresh_until_s - now_s[0]

    assert asyncio.run(scenario()) == pytest.approx(snapshot.SEEN_FRESH_MAX_S)


def test_after_a_change_everything_is_asked_anew_also_what_is_under_way(monkeypatch):
    monkeypatch.setattr(snapshot, "FRESH_S", 1_000.0)
    monkeypatch.setattr(snapshot, "NEXT_WAIT_S", 60.0)

    async def scenario():
        answers, asked = snapshot.Answers(), []
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def ask():
            asked.append(1)
            return len(asked)

        async def slow():
            asked.append(1)
            begun.set()
            await go_on.wait()
            return len(asked)

        await answers.get("x", ask)
        under_way = asyncio.ensure_future(answers.get("y", slow))
        await begun.wait()
        answers.expire()
        go_on.set()
        await under_way
        return (await answers.get("x", ask)).value, (await answers.get("y", ask)).value

    assert asyncio.run(scenario()) == (3, 4)


def test_answers_that_are_kept_are_bounded(monkeypatch):
    async def scenario():
        answers = snapshot.Answers()

        async def ask():
            return 1

        for number in range(snapshot.ANSWERS_MAX + 20):
            await answers.get(str(number), ask)
        return len(answers)

    assert asyncio.run(scenario()) == snapshot.ANSWERS_MAX


def test_questions_of_a_viewer_wait_for_their_turn():
    async def scenario():
        answers, under_way, most = snapshot.Answers(), [0], [0]

        async def ask():
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
            await asyncio.sleep(0)
            under_way[0] -= 1
            return 1

        await asyncio.gather(*(answers.get(str(n), ask) for n in range(50)))
        return most[0]

    assert asyncio.run(scenario()) == snapshot.ASKING_MAX


def test_a_refusal_forgets_what_was_shown_before():
    async def scenario():
        answers = snapshot.Answers()
        outcomes = [1, snapshot.SaslAuthenticationFailedError("no")]

        async def ask():
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        first = (await answers.get("x", ask)).value
        answers._kept["x"].fresh_until_s = 0.0
        second = await answers.get("x", ask)
        return first, second.value, second.is_refused

    assert asyncio.run(scenario()) == (1, None, True)


def test_points_of_a_chart_are_bounded_and_begin_anew_after_nobody_has_looked():
    samples = snapshot.Samples()
    for number in range(snapshot.SAMPLES_MAX + 10):
        samples.add(1_000 * number, number)
    assert len(samples.as_json()[0]) == snapshot.SAMPLES_MAX
    samples.add(10_000_000, 1.0)
    assert samples.as_json() == [[10_000.0], [1.0]]


@pytest.mark.parametrize(("path", "kind"), [("/group", "consumer"), ("/queue", "share")])
def test_charts_of_groups_are_bounded(path, kind):
    async def scenario():
        cluster = ConsoleCluster()
        count = snapshot.CHARTED_GROUPS_MAX + 5
        cluster.groups = [group(f"g{n}", kind=kind) for n in range(count)]
        async with console_of(cluster) as client:
            for one in cluster.groups:
                await client.get(f"{path}?id={one.group_id}")
            return len(client.server.app[CONSOLE].own_viewer.lags)

    assert asyncio.run(scenario()) == snapshot.CHARTED_GROUPS_MAX


@pytest.mark.parametrize("count", [100_000])
def test_a_page_does_not_grow_with_the_number_of_groups(count):
    cluster = ConsoleCluster()
    cluster.groups = [group(f"group-{number:06}") for number in range(count)]
    (_, page), (_, found), (_, last) = shown(
        cluster, "/groups", "/groups?q=099999", "/groups?page=1000000000"
    )
    assert page.count("data-row") == ROWS_MAX
    assert len(page) < 100_000
    assert "100,000 groups" in text_of(page)
    assert "group-099999" in found
    assert found.count("data-row") == 1
    assert "group-099999" in last


def test_a_page_and_its_live_part_do_not_grow_with_the_number_of_partitions():
    cluster = ConsoleCluster()
    cluster.log.create("wide", 1_000)

    async def scenario():
        async with console_of(cluster) as client:
            page = await (await client.get("/topics/wide?page=10")).text()
            asked = len(cluster.asked(DescribeReplicaRequest))
            part = await client.get("/topics/wide", headers={"HX-Request": "true"})
            return page, asked, await part.text()

    page, asked, part = asyncio.run(scenario())
    assert page.count("data-row") == ROWS_MAX
    assert asked == ROWS_MAX
    assert "<html" not in part
    assert part.count("data-row") == ROWS_MAX


@pytest.mark.parametrize("page", ["x", "1e3", "9" * 30])
def test_a_page_that_is_no_number_is_refused_with_what_is_allowed(page):
    ((status, told),) = shown(ConsoleCluster(), f"/groups?page={page}")
    assert status == 400
    assert "whole number" in told


# --- hostile names ----------------------------------------------------------------------------


def test_names_of_others_execute_nothing_and_hide_nothing():
    cluster = ConsoleCluster()
    cluster.log.create("flights")
    member = GroupMemberDescription(
        member_id=HOSTILE, group_instance_id=HOSTILE, client_id=HOSTILE, assignment=b"\xff"
    )
    cluster.groups = [group(HOSTILE, member), group(HOSTILE + "q", kind="share")]
    cluster.transactions = [transaction(HOSTILE, commit_token=HOSTILE.encode())]
    found = shown(
        cluster,
        "/groups",
        "/queues",
        "/transactions",
        f"/group?id={quote(HOSTILE)}",
        f"/queue?id={quote(HOSTILE + 'q')}",
        f"/transaction?id={quote(HOSTILE)}",
        f"/groups?q={quote(HOSTILE)}",
        f"/topics/{quote(HOSTILE)}",
        f"/topics/flights/records?value={quote(HOSTILE)}",
        f"/actions/abort?id={quote(HOSTILE)}",
        writes=True,
    )
    for status, page in found:
        assert status in (200, 404), page
        assert "<script>alert" not in page
        assert "\x1b" not in visible(page)
        assert "\u202e" not in visible(page)


def test_a_command_with_a_hostile_name_has_it_as_one_word():
    cluster = ConsoleCluster()
    name = "x; rm -rf ~ $(id)"
    cluster.groups = [group(name)]
    options = ("--address", "a")
    page = unescape(page_of(cluster, f"/group?id={quote(name)}", command_options=options))
    assert f"oncelog groups describe '{name}' --address a" in page


# --- topics, transactions, groups -------------------------------------------------------------


def test_who_holds_a_partition_back_is_named():
    cluster = ConsoleCluster()
    (log,) = cluster.log.create("flights")
    log.append(b"x", producer_id=9)
    tp = TopicPartition("flights", 0)
    cluster.producers[tp] = (
        ProducerDescription(
            producer_id=9,
            producer_epoch=1,
            last_sequence=0,
            last_timestamp_ms=1,
            coordinator_epoch=0,
            current_txn_first_offset=0,
        ),
    )
    cluster.transactions = [transaction("loader")]
    page = page_of(cluster, "/topics/flights", writes=True)
    assert "loader" in text_of(page)
    assert "abort…" not in page
    cluster.transactions = []
    page = page_of(cluster, "/topics/flights", writes=True)
    assert "no id producer 9 from 0 abort…" in text_of(page)


def test_one_who_may_not_see_the_cluster_sees_topics_even_so():
    cluster = ConsoleCluster()
    cluster.log.create("flights")
    cluster.refusals["", DescribeReplicaRequest] = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    (_, overview), (_, topics), (_, topic) = shown(cluster, "/", "/topics", "/topics/flights")
    assert "Not all may be shown" in text_of(overview)
    assert "flights" in text_of(topics)
    assert "flights" in text_of(topic)


@pytest.mark.parametrize(
    ("one", "steps"),
    [
        (transaction("a", "Empty", transaction_start_ms=-1), ["No transaction yet"]),
        (
            transaction("a", partitions=(TopicPartition("t", 0),)),
            ["Began", "Enrolled", "-Decided", "-Markers", "-Complete"],
        ),
        (
            transaction("a", "PrepareCommit", partitions=(TopicPartition("t", 0),)),
            ["Began", "Enrolled", "Decided: commit", "-Markers", "-Complete"],
        ),
        (
            transaction("a", "CompleteAbort"),
            ["Began", "Enrolled", "Decided: abort", "Markers", "Complete"],
        ),
        (
            transaction(
                "a",
                "Prepared",
                partitions=(TopicPartition("t", 0),),
                prepared=PreparedTxn(producer_id=9, producer_epoch=1, prepared_ms=1_500),
            ),
            ["Began", "Enrolled", "Prepared", "-Decided", "-Markers", "-Complete"],
        ),
    ],
    ids=lambda value: getattr(value, "state", None),
)
def test_the_story_of_a_transaction(one, steps):
    told = story_of(one, len(one.partitions), dict.fromkeys(one.partitions, 4))
    assert [("" if step.is_done else "-") + step.name for step in told] == [
        step if step != "No transaction yet" else "-No transaction yet" for step in steps
    ]


def test_markers_that_are_missing_are_counted():
    cluster = ConsoleCluster()
    cluster.log.create("flights", 2)
    places = (TopicPartition("flights", 0), TopicPartition("flights", 1))
    member = TransactionMemberDescription(
        producer_id=11, producer_epoch=0, status="winner", partitions=places[1:]
    )
    cluster.transactions = [
        transaction("loader", "PrepareCommit", partitions=places[:1], members=(member,))
    ]
    cluster.producers[places[1]] = (
        ProducerDescription(
            producer_id=11,
            producer_epoch=0,
            last_sequence=0,
            last_timestamp_ms=1,
            coordinator_epoch=0,
            current_txn_first_offset=4,
        ),
    )
    told = text_of(page_of(cluster, "/transaction?id=loader"))
    assert "1 of 2 partitions have theirs" in told
    assert "coordinator shard" in told


@pytest.mark.parametrize(
    ("silent", "told", "markers"),
    [
        ((1,), "1 of 2 partitions have theirs; of 1 it is not known", "written no answer"),
        ((0, 1), "0 of 2 partitions have theirs; of 2 it is not known", "no answer no answer"),
    ],
)
def test_a_marker_that_nobody_told_of_is_not_taken_for_written(monkeypatch, silent, told, markers):
    monkeypatch.setattr(snapshot, "ASK_TIMEOUT_MS", 50)
    cluster = ConsoleCluster()
    cluster.log.create("flights", 2)
    places = (TopicPartition("flights", 0), TopicPartition("flights", 1))
    cluster.transactions = [transaction("loader", "PrepareCommit", partitions=places)]

    def describe(request):
        if request.topic_partition.partition in silent:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        return DescribeProducersReply()

    cluster.hooks[DescribeProducersRequest] = describe
    page = page_of(cluster, "/transaction?id=loader")
    assert told in text_of(page)
    found = re.findall(
        r">(not yet|written|no answer|not asked)</span>", page[page.index("open si") :]
    )
    assert " ".join(found) == markers
    assert ("The cluster does not answer" in page) == (len(silent) == 2)


def test_who_holds_a_partition_back_is_named_though_another_does_not_answer(monkeypatch):
    monkeypatch.setattr(snapshot, "ASK_TIMEOUT_MS", 50)
    cluster = ConsoleCluster()
    for log in cluster.log.create("flights", 2):
        log.append(b"x", producer_id=9)
    cluster.transactions = [transaction("loader")]
    producer = ProducerDescription(
        producer_id=9,
        producer_epoch=1,
        last_sequence=0,
        last_timestamp_ms=1,
        coordinator_epoch=0,
        current_txn_first_offset=0,
    )

    def describe(request):
        if request.topic_partition.partition == 1:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        return DescribeProducersReply(producers=(producer,))

    cluster.hooks[DescribeProducersRequest] = describe
    told = text_of(page_of(cluster, "/topics/flights"))
    assert "loader" in told
    assert "1 open; whose is not known: no answer" in told


def test_a_group_is_shown_with_its_lag():
    cluster = ConsoleCluster()
    (log,) = cluster.log.create("flights")
    log.append(*(b"x",) * 10)
    cluster.log.committed = {TopicPartition("flights", 0): 3}
    cluster.groups = [group("billing")]
    told = text_of(page_of(cluster, "/group?id=billing"))
    assert "lag, in offsets 7" in told
    assert "flights-0 3 10 7" in told


def test_a_queue_is_shown_with_its_backlog():
    cluster = ConsoleCluster()
    (log,) = cluster.log.create("tasks")
    log.append(*(b"x",) * 10)
    cluster.groups = [group("work", kind="share")]
    described = SharePartitionDescription(
        topic_partition=TopicPartition("tasks", 0),
        start_offset=2,
        next_offset=6,
        end_offset=10,
        available_count=4,
        acquired_count=3,
        pending_count=1,
    )
    cluster.share = DescribeShareGroupReply(partitions=(described,), member_count=2)
    told = text_of(page_of(cluster, "/queue?id=work"))
    assert "backlog 8 available 4 with a worker 3 in transactions 1" in told
    assert "work" not in text_of(page_of(cluster, "/groups"))


class Job:
    def __init__(self, name, **status):
        self.group_id, self.sources, self.sinks = name, ("flights",), ()
        defaults = {
            **dict.fromkeys(("records_in", "records_out", "restarts", "function_failures"), 0),
            "workers": (),
            "failures": (),
            "waiting": (),
            "rate": 12.5,
            "eta_s": 90.0,
            "lag": 1_125,
        }
        self._status = SimpleNamespace(**defaults | status)

    def status(self):
        return self._status


def test_jobs_are_shown_with_rate_and_time_left():
    cluster = ConsoleCluster()
    cluster.running = [Job("by-day"), Job("broken", failures=("worker 0: <b>KeyError</b>",))]
    told = text_of(page_of(cluster, "/jobs"))
    assert "12.5 1,125 1 min 30 s" in told
    assert "failed" in told
    assert "worker 0: <b>KeyError</b>" in told


def test_a_user_sees_the_jobs_of_groups_that_user_may_see():
    async def scenario():
        cluster = ConsoleCluster()
        cluster.running = [Job("mine"), Job("of-others")]
        cluster.groups = [group("mine")]
        async with console_of(cluster, asks_login=True) as client:
            await log_in(client)
            page = await (await client.get("/jobs")).text()
            return page, cluster.asked(DescribeGroupsRequest, "alice")

    page, asked = asyncio.run(scenario())
    assert "mine" in page
    assert "of-others" not in page
    assert asked


def test_the_points_of_a_chart_are_json():
    async def scenario():
        cluster = ConsoleCluster()
        cluster.log.create("flights")
        async with console_of(cluster) as client:
            await client.get("/")
            throughput = await (await client.get("/data/throughput")).json()
            cluster.groups = [group("billing")]
            lag = await (await client.get("/data/lag?id=billing")).json()
            return throughput, lag

    throughput, lag = asyncio.run(scenario())
    assert throughput == {"label": "records/s", "columns": [[], []]}
    assert lag["label"] == "lag"
    assert lag["columns"][1] == [0]


def test_times_may_be_written_in_two_ways():
    assert time_ms("2026-01-31T12:00") == 1_769_860_800_000
    assert time_ms("2026-01-31T12:00Z") == 1_769_860_800_000
    assert time_ms("1769860800000") == 1_769_860_800_000


@pytest.mark.parametrize(
    "query", ["from=x", "from=time&at=never", "partition=9", "partition=x", "value=(", "n=x"]
)
def test_what_the_browser_cannot_do_is_told_on_its_page(query):
    cluster = ConsoleCluster()
    cluster.log.create("flights", 2)
    page = page_of(cluster, f"/topics/flights/records?{query}")
    assert 'class="banner bad"' in page


def test_records_of_several_partitions_are_shown_together_in_the_order_of_time():
    cluster = ConsoleCluster()
    logs = cluster.log.create("flights", 3)
    for number, log in enumerate(logs):
        log.append(b"v%d" % number, codec_time_ms=10_000 - number)
    page = page_of(cluster, "/topics/flights/records")
    assert re.findall(r"<td class=\"bytes\">(v\d)</td>", page) == ["v2", "v1", "v0"]


def test_metadata_of_a_cluster_without_a_controller_is_not_shown_as_well():
    cluster = ConsoleCluster()
    cluster.hooks[MetadataRequest] = lambda request: MetadataReply(
        error=ErrorCode.NOT_CONTROLLER, topics=(topic_of("x", 1),)
    )
    ((_, page),) = shown(cluster, "/")
    assert "nothing is wrong" not in page
