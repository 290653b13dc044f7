"""Kafka Streams with ``exactly_once_v2``: a word count that is killed again and again."""

from __future__ import annotations

from collections.abc import Callable

from kafka_clients import fetched_jars, java
from kafka_streams import KAFKA_STREAMS, check_counts, count_under_kill
from programs import Programs
from suite import Place

KILLS = 5


def needs() -> None:
    """Java and Kafka Streams."""
    java()
    fetched_jars(*KAFKA_STREAMS)


def killed(place: Place) -> None:
    """The application is killed; the one after it is a new member, the state on disk is lost."""
    settings = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}
    check_counts(*count_under_kill(place.cluster, place.directory, "killed", KILLS, **settings))


def killed_as_static_member(place: Place) -> None:
    """The one after it is the same static member, which the group takes in at once."""
    settings = {"group.instance.id": "counts"}
    check_counts(*count_under_kill(place.cluster, place.directory, "static", KILLS, **settings))


def killed_with_gateway(place: Place) -> None:
    """Beside the application its gateway is killed."""
    settings = {"group.instance.id": "counts", "num.stream.threads": 2}
    kill = place.cluster.kill_gateway
    check_counts(
        *count_under_kill(place.cluster, place.directory, "alone", KILLS, between=kill, **settings)
    )


CASES: dict[str, Callable[[Place], None]] = {
    "word-count-killed": killed,
    "word-count-killed-as-a-static-member": killed_as_static_member,
    "word-count-killed-and-the-gateway-too": killed_with_gateway,
}

STREAMS = Programs("kafka-streams", CASES, needs)
