"""What lives on a process stays there: pickles, copies and forks are refused with advice."""

from __future__ import annotations

import copy
import os
import pickle
from random import Random
from typing import Any

import pytest
import ray

import oncelog
from oncelog.api.client import Cluster
from oncelog.api.config import ConsumerSettings, ProducerSettings
from oncelog.api.consuming.consumer import Consumer
from oncelog.api.producing.member import TransactionMember
from oncelog.api.producing.producer import Producer
from oncelog.api.session.cluster_connection import refuse_after_fork
from oncelog.api.session.event_loop import LoopThread
from oncelog.storage.exceptions import ConnectionFailedError, IllegalStateError


def producer_on(loop_thread: LoopThread, fake_cluster: Any, **options: Any) -> Producer:
    settings = ProducerSettings(**options)
    return Producer(fake_cluster.router(), loop_thread, settings, random=Random(1))


def test_producers_consumers_and_clusters_refuse_to_be_pickled_or_copied(
    fake_cluster: Any, loop_thread: LoopThread
) -> None:
    consumer = Consumer(fake_cluster.router(), loop_thread, ConsumerSettings(), Random(1))
    for thing, advice in (
        (producer_on(loop_thread, fake_cluster), r"cluster\.producer\(\.\.\.\)"),
        (consumer, r"cluster\.consumer\(\.\.\.\)"),
        (Cluster.__new__(Cluster), r"oncelog\.connect\(\)"),
        (TransactionMember.__new__(TransactionMember), r"cluster\.member\(\.\.\.\)"),
    ):
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=f"cannot be pickled.*{advice}"):
                attempt(thing)


def test_settings_may_be_pickled_so_that_a_task_can_make_its_own() -> None:
    settings = ProducerSettings(transactional_id="loader", linger_ms=7)
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_in_a_forked_child_every_use_is_refused_and_the_parent_goes_on(
    fake_cluster: Any, loop_thread: LoopThread
) -> None:
    fake_cluster.create("t")
    producer = producer_on(loop_thread, fake_cluster)
    transactional = producer_on(loop_thread, fake_cluster, transactional_id="loader")
    loop_thread.run(fake_cluster.router().partition_count("t"))
    refuse_after_fork(loop_thread)
    calls = (
        lambda: producer.send("t", b"v"),
        lambda: producer.send_arrow("t", None),
        producer.flush,
        producer.close,
        transactional.init_transactions,
        transactional.begin_transaction,
        transactional.commit_transaction,
    )
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        refused = 0
        for call in calls:
            try:
                call()
            except IllegalStateError as error:
                refused += "before the process forked" in str(error)
        os.write(writer, bytes([refused]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == bytes([len(calls)])
    os.close(reader)
    os.close(writer)
    assert loop_thread.run(fake_cluster.router().partition_count("t")) == 1


def test_the_child_of_a_program_that_uses_ray_is_told_at_once_that_it_cannot_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray would take the child for connected, and each call of it would hang."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        told = 0
        for call in (oncelog.init, oncelog.connect):
            try:
                call()
            except ConnectionFailedError as error:
                told += "forked from one that uses Ray" in str(error)
        os.write(writer, bytes([told]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"\x02"
    os.close(reader)
    os.close(writer)
