"""The ported programs, as they are shipped, on the shared cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deadlines import DEADLINE_S
from fresh_topics import fresh_topics

from oncelog.examples.porting.asyncio_service import serve
from oncelog.examples.porting.offsets_elsewhere import collect
from oncelog.examples.porting.transactional_copier import copy
from oncelog.examples.porting.word_count import run

pytestmark = pytest.mark.ray

IDLE_MS = 2_000
"""A rebalance takes less, and so do records that are there."""

NAMES = ("ported-in", "ported-between", "ported-out")


@pytest.fixture
def topics(cluster: Any) -> Iterator[tuple[str, str, str]]:
    with fresh_topics(cluster, NAMES, partitions=2):
        yield NAMES


@pytest.fixture
def write(cluster: Any) -> Callable[[str, list[bytes]], None]:
    def to(topic: str, values: list[bytes]) -> None:
        with cluster.producer() as producer:
            for number, value in enumerate(values):
                producer.send(topic, key=b"%d" % number, value=value)
            producer.flush()

    return to


def test_the_copier_copies_each_record_once_however_often_it_is_started(
    cluster: Any, topics: Any, write: Any, read_all: Any
) -> None:
    source, _, target = topics
    write(source, [b"a", b"b"])
    assert copy(cluster, source, target, until_idle_ms=IDLE_MS) == 2
    write(source, [b"c"])
    assert copy(cluster, source, target, until_idle_ms=IDLE_MS) == 1
    assert sorted(record.value for record in read_all(target)) == [b"A", b"B", b"C"]


def test_the_service_answers_each_request_once(
    cluster: Any, topics: Any, write: Any, read_all: Any
) -> None:
    requests, _, replies = topics
    write(requests, [b"abc", b"xyz"])
    for _ in range(2):
        serving = serve(cluster, requests, replies, count=1)
        asyncio.run(asyncio.wait_for(serving, DEADLINE_S))
    assert sorted(record.value for record in read_all(replies)) == [b"cba", b"zyx"]


def test_the_store_has_each_record_once_and_goes_on_from_its_own_offsets(
    cluster: Any, topics: Any, write: Any, tmp_path: Path
) -> None:
    source, *_ = topics
    path = str(tmp_path / "store.sqlite")
    write(source, [b"a", b"b"])
    assert sorted(collect(cluster, source, path, until_idle_ms=IDLE_MS)) == [b"a", b"b"]
    write(source, [b"c"])
    assert sorted(collect(cluster, source, path, until_idle_ms=IDLE_MS)) == [b"a", b"b", b"c"]


def test_the_words_are_counted(cluster: Any, topics: Any, write: Any) -> None:
    write(topics[0], [b"to be or not to be", b"To be"])
    found = run(cluster, *topics, timeout_ms=int(DEADLINE_S * 1_000))
    assert found == Counter(to=3, be=3, **{"or": 1, "not": 1})
