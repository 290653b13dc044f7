"""Nodes, topics and coordinators, as clients of Kafka are told them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from deadlines import until
from kafka_gateway import HERE, IDS, OWN, Actors, Audit, call_of, cluster_of, shards
from msgspec import structs
from topics import topic_of
from virtual_time import run_virtually

from oncelog.actors.config import ClusterConfig
from oncelog.actors.gateway import metadata as module
from oncelog.actors.gateway.calls import Cluster
from oncelog.actors.gateway.errors import UnansweredError
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.describe_cluster import DescribeClusterRequest
from oncelog.actors.gateway.messages.find_coordinator import FindCoordinatorRequest
from oncelog.actors.gateway.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from oncelog.actors.gateway.metadata import MetadataHandlers
from oncelog.actors.protocol.messages import cluster as messages
from oncelog.actors.protocol.messages.access import (
    NO_ACCESS,
    Access,
    Acl,
    Operation,
    Resource,
    Rules,
)
from oncelog.actors.protocol.messages.brokers import FindKafkaListenerRequest
from oncelog.actors.protocol.messages.cluster import BrokerMetadata
from oncelog.storage.errors import ErrorCode

ALICE = "User:alice"
PORT = 9_092


class Gateway:
    """The handlers of one gateway, and who asks them."""

    def __init__(self, access: Access, config: ClusterConfig) -> None:
        self.actors = Actors()
        self.cluster: Cluster = cluster_of(self.actors, access)
        self.handlers = MetadataHandlers(
            self.cluster, config, lambda: (HERE, PORT), self.bugs_are_not_expected
        )

    def bugs_are_not_expected(self, bug: BaseException) -> None:
        raise bug

    async def metadata(
        self, *names: str, version: int = 12, who: str = ALICE, **fields: Any
    ) -> MetadataResponse:
        topics = [MetadataRequestTopic(name=name) for name in names]
        return await self.ask(MetadataRequest(topics, **fields), version=version, who=who)

    async def ask(
        self, request: MetadataRequest, *, version: int = 12, who: str = ALICE
    ) -> MetadataResponse:
        return await self.handlers.metadata(call_of(self.cluster, version, who), request)

    async def coordinator(self, request: FindCoordinatorRequest, version: int = 6) -> Any:
        call = call_of(self.cluster, version, ALICE)
        return await self.handlers.find_coordinator(call, request)

    async def described(self, request: DescribeClusterRequest, version: int = 2) -> Any:
        call = call_of(self.cluster, version, ALICE)
        return await self.handlers.describe_cluster(call, request)


def play(
    story: Callable[[Gateway], Awaitable[None]],
    access: Access = NO_ACCESS,
    config: ClusterConfig | None = None,
) -> None:
    async def body() -> None:
        await story(Gateway(access, config or ClusterConfig()))

    run_virtually(body())


def with_rules(*acls: Acl) -> Access:
    return Access(rules=Rules(version=1, is_on=True, acls=acls))


def may(operation: Operation, resource: Resource, name: str) -> Acl:
    return Acl(principal=ALICE, resource=resource, name=name, operation=operation)


def errors(response: MetadataResponse) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in response.topics}


# --- nodes ------------------------------------------------------------------------------------


def nodes(response: MetadataResponse) -> dict[int, tuple[str, int, str | None]]:
    return {one.node_id: (one.host, one.port, one.rack) for one in response.brokers}


def test_each_broker_is_a_node_at_the_address_of_its_gateway():
    async def story(gateway: Gateway) -> None:
        response = await gateway.metadata("flights")
        assert nodes(response) == {1: (HERE, PORT, "east"), 2: ("10.0.0.2", 9_092, None)}
        assert response.cluster_id == "c1"
        assert response.controller_id == 2
        (topic,) = response.topics
        assert (topic.error_code, topic.name, topic.topic_id.hex()) == (
            0,
            "flights",
            IDS["flights"],
        )
        assert not topic.is_internal
        first, second = topic.partitions
        assert (first.partition_index, first.leader_id, first.leader_epoch) == (0, 1, 7)
        assert (second.partition_index, second.leader_id) == (1, 2)
        assert (second.replica_nodes, second.isr_nodes, second.offline_replicas) == ([2], [2], [])

    play(story)


def test_a_gateway_that_does_not_answer_is_no_node_and_this_one_stands_in():
    async def story(gateway: Gateway) -> None:
        gateway.actors.gateways.clear()
        response = await gateway.metadata("flights")
        assert nodes(response).keys() == {OWN}
        assert response.controller_id == OWN
        (topic,) = response.topics
        assert [(one.error_code, one.leader_id) for one in topic.partitions] == [(0, OWN)] * 2
        found = await gateway.coordinator(FindCoordinatorRequest(coordinator_keys=["g", "h", "i"]))
        assert {one.node_id for one in found.coordinators} == {OWN}

    play(story)


def test_other_gateways_are_asked_again_after_a_while_and_not_waited_for_then():
    async def story(gateway: Gateway) -> None:
        asked = lambda: len(gateway.actors.asked_of(FindKafkaListenerRequest))  # noqa: E731
        await asyncio.gather(*(gateway.metadata("flights") for _ in range(3)))
        assert asked() == 1
        gateway.actors.gateways["gateway:0@2"] = ("10.0.0.2", 9_093)
        gateway.actors.gate = asyncio.Event()
        await asyncio.sleep(module.NODE_FRESH_MS / 1_000)
        assert nodes(await gateway.metadata("flights"))[2][1] == 9_092, "what it told last"
        await until(lambda: asked() == 2)
        gateway.actors.gate.set()
        await asyncio.sleep(0.001)
        assert nodes(await gateway.metadata("flights"))[2][1] == 9_093
        gateway.actors.gateways.clear()
        await asyncio.sleep(module.NODE_FRESH_MS / 1_000)
        await gateway.metadata("flights")
        await asyncio.sleep(0.001)
        assert nodes(await gateway.metadata("flights")).keys() == {OWN}

    play(story)


def test_a_broker_that_is_gone_is_not_asked_and_its_replicas_are_offline():
    async def story(gateway: Gateway) -> None:
        await gateway.metadata("flights")
        one, two = gateway.actors.brokers
        gateway.actors.brokers = (one, structs.replace(two, is_live=False, is_fenced=True))
        await asyncio.sleep(module.NODE_FRESH_MS / 1_000)
        response = await gateway.metadata("flights")
        assert nodes(response).keys() == {OWN}
        assert response.topics[0].partitions[1].offline_replicas == [2]
        assert len(gateway.actors.asked_of(FindKafkaListenerRequest)) == 1

    play(story)


def test_what_is_remembered_of_brokers_ends_with_them():
    async def story(gateway: Gateway) -> None:
        gateway.actors.brokers += (BrokerMetadata(broker_id=3, data_dir="/d"),)
        gateway.actors.gateways["gateway:0@3"] = ("10.0.0.3", 9_092)
        assert nodes(await gateway.metadata("flights")).keys() == {1, 2, 3}
        gateway.actors.brokers = gateway.actors.brokers[:2]
        await asyncio.sleep(module.SHARED_MS / 1_000 + 0.01)
        assert nodes(await gateway.metadata("flights")).keys() == {1, 2}
        assert gateway.handlers._nodes._told.keys() == {2}

    play(story)


def test_the_cluster_is_described_without_its_topics():
    async def story(gateway: Gateway) -> None:
        one, two = gateway.actors.brokers
        three = BrokerMetadata(broker_id=3, data_dir="/d", is_fenced=True)
        gateway.actors.brokers = (one, two, three)
        gateway.actors.gateways["gateway:0@3"] = ("10.0.0.3", 9_092)
        response = await gateway.described(DescribeClusterRequest())
        assert (response.error_code, response.cluster_id, response.controller_id) == (0, "c1", 2)
        assert [(one.broker_id, one.host) for one in response.brokers] == [
            (1, HERE),
            (2, "10.0.0.2"),
        ]
        with_fenced = await gateway.described(DescribeClusterRequest(include_fenced_brokers=True))
        assert [(one.broker_id, one.is_fenced) for one in with_fenced.brokers] == [
            (1, False),
            (2, False),
            (3, True),
        ]

    play(story)


@pytest.mark.parametrize(("kind", "error"), [(2, 114), (7, 115)])
def test_there_are_no_endpoints_but_brokers(kind, error):
    async def story(gateway: Gateway) -> None:
        response = await gateway.described(DescribeClusterRequest(endpoint_type=kind))
        assert response.error_code == error
        assert f"type {kind}" in response.error_message

    play(story)


# --- topics -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "topics", "is_for_all"),
    [(0, [], True), (1, [], False), (1, None, True), (12, [], False), (12, None, True)],
)
def test_no_topics_and_all_topics_are_asked_for_as_each_version_does(version, topics, is_for_all):
    async def story(gateway: Gateway) -> None:
        response = await gateway.ask(MetadataRequest(topics), version=version)
        assert {one.name: one.is_internal for one in response.topics} == (
            {
                "flights": False,
                "taxis": False,
                "__consumer_offsets": True,
                "__transaction_state": True,
            }
            if is_for_all
            else {}
        )
        assert nodes(response).keys() == {1, 2}

    play(story)


def test_what_is_wrong_with_a_topic_is_told_for_each():
    async def story(gateway: Gateway) -> None:
        response = await gateway.metadata("flights", "no", "a b", "flights")
        assert errors(response) == {
            "flights": ErrorCode.NONE,
            "no": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        assert len(response.topics) == 3, "a topic that is named twice is described once"

    play(story)


def test_topics_are_found_by_their_ids():
    async def story(gateway: Gateway) -> None:
        unknown = bytes(15) + b"\xff"
        topics = [
            MetadataRequestTopic(bytes.fromhex(IDS["taxis"]), None),
            MetadataRequestTopic(unknown, None),
            MetadataRequestTopic(name="flights"),
        ]
        response = await gateway.ask(MetadataRequest(topics))
        assert {(one.error_code, one.name, one.topic_id) for one in response.topics} == {
            (0, "flights", bytes.fromhex(IDS["flights"])),
            (0, "taxis", bytes.fromhex(IDS["taxis"])),
            (int(ErrorCode.UNKNOWN_TOPIC_ID), None, unknown),
        }

    play(story)


def test_a_partition_without_a_leader_says_so():
    async def story(gateway: Gateway) -> None:
        gateway.actors.topics["flights"] = topic_of("flights", -1, 1, topic_id=IDS["flights"])
        (topic,) = (await gateway.metadata("flights")).topics
        assert [(one.error_code, one.leader_id) for one in topic.partitions] == [(5, -1), (0, 1)]

    play(story)


def test_topics_that_a_client_may_not_see_are_refused_by_name_and_not_there_otherwise():
    async def story(gateway: Gateway) -> None:
        assert errors(await gateway.metadata("flights", "taxis", "no")) == {
            "flights": ErrorCode.NONE,
            "taxis": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "no": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        }
        everything = await gateway.ask(MetadataRequest(None))
        assert {one.name for one in everything.topics if not one.is_internal} == {"flights"}
        by_id = MetadataRequestTopic(bytes.fromhex(IDS["taxis"]), None)
        (unseen,) = (await gateway.ask(MetadataRequest([by_id]))).topics
        assert (unseen.error_code, unseen.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
        assert isinstance(gateway.cluster.audit, Audit)
        assert {(one.name, one.is_allowed) for one in gateway.cluster.audit.verdicts} >= {
            ("flights", True),
            ("taxis", False),
        }

    play(story, with_rules(may(Operation.READ, Resource.TOPIC, "flights")))


@pytest.mark.parametrize("is_asked", [True, False])
def test_rights_are_told_to_whoever_asks_for_them(is_asked):
    async def story(gateway: Gateway) -> None:
        response = await gateway.metadata(
            "flights",
            version=8,
            include_topic_authorized_operations=is_asked,
            include_cluster_authorized_operations=is_asked,
        )
        (topic,) = response.topics
        described = await gateway.described(DescribeClusterRequest(is_asked))
        read_and_describe = 1 << 3 | 1 << 8 | 1 << 10
        nothing_asked = -(2**31)
        # Who may write no topic may send no idempotent writes.
        assert topic.topic_authorized_operations == (
            read_and_describe if is_asked else nothing_asked
        )
        assert response.cluster_authorized_operations == (0 if is_asked else nothing_asked)
        assert described.cluster_authorized_operations == (0 if is_asked else nothing_asked)

    play(story, with_rules(may(Operation.READ, Resource.TOPIC, "flights")))


def test_clients_that_ask_at_about_the_same_time_share_one_question():
    async def story(gateway: Gateway) -> None:
        for request in (MetadataRequest(None), MetadataRequest([MetadataRequestTopic(name="no")])):
            gateway.actors.asked.clear()
            await asyncio.gather(*(gateway.ask(request) for _ in range(50)))
            assert len(gateway.actors.asked_of(messages.MetadataRequest)) <= 2

    play(story)


def test_a_topic_that_was_deleted_is_soon_told_to_be_gone():
    async def story(gateway: Gateway) -> None:
        await gateway.metadata("taxis")
        del gateway.actors.topics["taxis"]
        await asyncio.sleep(module.SHARED_MS / 1_000 + 0.01)
        assert errors(await gateway.metadata("taxis")) == {
            "taxis": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }

    play(story)


# --- the controller is away -------------------------------------------------------------------


def test_while_the_controller_is_away_no_topic_is_told_to_be_gone():
    async def story(gateway: Gateway) -> None:
        await gateway.metadata("flights")
        everything = await gateway.ask(MetadataRequest(None))
        gateway.actors.error = ErrorCode.NETWORK_EXCEPTION
        await asyncio.sleep(module.SHARED_MS / 1_000 + 0.01)
        assert errors(await gateway.metadata("flights", "taxis", "no")) == {
            "flights": ErrorCode.NONE,
            "taxis": ErrorCode.NONE,
            "no": module.LEADER_NOT_AVAILABLE,
        }
        again = await gateway.ask(MetadataRequest(None))
        assert errors(again) == errors(everything)

    play(story)


def test_who_knows_nothing_yet_answers_nothing():
    async def story(gateway: Gateway) -> None:
        gateway.actors.error = ErrorCode.NETWORK_EXCEPTION
        for topics in (None, [], [MetadataRequestTopic(name="flights")]):
            with pytest.raises(UnansweredError, match="NETWORK_EXCEPTION"):
                await gateway.ask(MetadataRequest(topics))

    play(story)


# --- creation ---------------------------------------------------------------------------------

CREATING = ClusterConfig(kafka_auto_create_topics=True, kafka_num_partitions=3)


def created(gateway: Gateway) -> list[str]:
    return [one.name for one in gateway.actors.asked_of(messages.CreateTopicRequest)]


def test_a_missing_topic_is_created_where_the_setting_says_so():
    async def story(gateway: Gateway) -> None:
        response = await gateway.metadata("new", "flights", "a b", "__cluster_metadata")
        assert errors(response) == {
            "new": ErrorCode.NONE,
            "flights": ErrorCode.NONE,
            "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "__cluster_metadata": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        (new,) = (one for one in response.topics if one.name == "new")
        assert len(new.partitions) == 3
        assert created(gateway) == ["new"]

    play(story, config=CREATING)


@pytest.mark.parametrize(
    ("config", "is_wished"), [(CREATING, False), (ClusterConfig(), True), (ClusterConfig(), False)]
)
def test_no_topic_is_created_without_the_setting_or_against_the_wish_of_the_client(
    config, is_wished
):
    async def story(gateway: Gateway) -> None:
        response = await gateway.metadata("new", allow_auto_topic_creation=is_wished)
        assert errors(response) == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert created(gateway) == []

    play(story, config=config)


def test_only_who_may_create_a_topic_has_it_created():
    access = with_rules(
        may(Operation.DESCRIBE, Resource.TOPIC, "new"), may(Operation.CREATE, Resource.TOPIC, "own")
    )

    async def story(gateway: Gateway) -> None:
        assert errors(await gateway.metadata("new", "own")) == {
            "new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "own": ErrorCode.NONE,
        }
        assert created(gateway) == ["own"]

    play(story, access, CREATING)


def test_one_request_creates_so_many_topics_and_no_more():
    async def story(gateway: Gateway) -> None:
        names = [f"new-{number}" for number in range(module.CREATIONS_MAX + 3)]
        response = await gateway.metadata(*names)
        assert sorted(errors(response).values()) == [0] * module.CREATIONS_MAX + [3] * 3

    play(story, config=CREATING)


# --- coordinators -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize(("kind", "topic"), [(0, "__consumer_offsets"), (1, "__transaction_state")])
def test_the_coordinator_is_the_leader_of_the_shard_in_every_version(version, kind, topic):
    async def story(gateway: Gateway) -> None:
        led = {
            number: one.leader for number, one in enumerate(gateway.actors.topics[topic].partitions)
        }
        for key in ("billing", "audit", "reports"):
            leader = led[module.shard_of(key, 2)]
            if version < 4:
                request = FindCoordinatorRequest(key=key, key_type=kind)
                found = await gateway.coordinator(request, version)
            else:
                request = FindCoordinatorRequest(coordinator_keys=[key, "x"], key_type=kind)
                found, other = (await gateway.coordinator(request, version)).coordinators
                assert (found.key, other.key) == (key, "x")
            expected = {1: (1, HERE, PORT), 2: (2, "10.0.0.2", 9_092)}[leader]
            assert (found.node_id, found.host, found.port) == expected
            assert (found.error_code, found.error_message) == (0, None)

    play(story)


def test_a_shard_without_a_leader_has_no_coordinator_now():
    async def story(gateway: Gateway) -> None:
        gateway.actors.topics["__consumer_offsets"] = shards("__consumer_offsets", -1, -1)
        found = await gateway.coordinator(FindCoordinatorRequest(key="g"), 3)
        assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)

    play(story)


def test_who_may_not_see_a_group_or_an_id_is_not_told_its_coordinator():
    async def story(gateway: Gateway) -> None:
        request = FindCoordinatorRequest(coordinator_keys=["mine", "theirs"])
        mine, theirs = (await gateway.coordinator(request)).coordinators
        assert mine.error_code == 0
        assert (theirs.error_code, theirs.host) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, "")
        assert "'theirs'" in theirs.error_message
        request = FindCoordinatorRequest(coordinator_keys=["mine"], key_type=1)
        (refused,) = (await gateway.coordinator(request)).coordinators
        assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert isinstance(gateway.cluster.audit, Audit)
        assert [one.is_allowed for one in gateway.cluster.audit.verdicts] == [True, False, False]

    play(story, with_rules(may(Operation.READ, Resource.GROUP, "mine")))


def test_share_groups_have_no_coordinator_here():
    async def story(gateway: Gateway) -> None:
        request = FindCoordinatorRequest(coordinator_keys=["g:t:0"], key_type=2)
        (found,) = (await gateway.coordinator(request)).coordinators
        assert found.error_code == ErrorCode.INVALID_REQUEST
        assert "key type 2" in found.error_message

    play(story)


def test_the_handlers_are_those_of_these_apis():
    async def story(gateway: Gateway) -> None:
        assert gateway.handlers.handlers.keys() == {
            ApiKey.METADATA,
            ApiKey.FIND_COORDINATOR,
            ApiKey.DESCRIBE_CLUSTER,
        }

    play(story)
