"""Clients of Kafka in a campaign, on the brokers that librdkafka has within itself."""

from __future__ import annotations

from argparse import Namespace

import pytest
from faults.crew import OWN_KINDS, WRITERS, Crew, Plan, kafka_kinds
from faults.history import read_history
from faults.kafka_door import KafkaSender, KafkaTransactor

INSIDE = {"test.mock.num.brokers": 1}
OPERATIONS = 40


@pytest.fixture
def lived(tmp_path):
    """What the history says of a writer that has lived for some operations."""

    def live(kind):
        class Inside(kind):
            @property
            def is_over(self):
                lines = sum(path.read_text().count("\n") for path in tmp_path.glob("*.jsonl"))
                return lines > 3 * OPERATIONS

            def new_producer(self, **more):
                return super().new_producer(**INSIDE, **more)

        arguments = Namespace(
            name="t1",
            history=tmp_path,
            seed=1,
            until=tmp_path / "never",
            notices=9,
            bootstrap="",
            partitions=4,
        )
        Inside(arguments).run()
        return read_history(tmp_path.glob("*.jsonl")).operations

    return live


def test_a_transactor_tells_what_it_committed_and_what_it_aborted(lived):
    operations = lived(KafkaTransactor)
    (init,) = [one for one in operations if one.function == "init"]
    assert (init.outcome, init.transactional_id) == ("ok", "id-t1")
    transactions = [one for one in operations if one.function == "txn"]
    assert {one.outcome for one in transactions} == {"ok", "fail"}
    for one in transactions:
        assert one.is_transaction
        assert one.may_commit is (one.outcome == "ok"), "it says that it commits before it does"
        assert one.outcome == "fail" or all(send.offset is not None for send in one.sends)


def test_a_sender_tells_where_its_records_stand(lived):
    sends = [one for one in lived(KafkaSender) if one.function == "send"]
    assert {one.outcome for one in sends} == {"ok"}
    assert not any(one.is_transaction for one in sends)
    assert all(send.offset is not None for one in sends for send in one.sends)


@pytest.mark.parametrize("has_transactions", [False, True])
def test_clients_of_kafka_have_transactions_if_the_cluster_takes_them(tmp_path, has_transactions):
    kinds = kafka_kinds(has_transactions=has_transactions)
    assert ("kafka-transactor" in kinds.values()) is has_transactions
    plan = Plan(tmp_path, "", 1, partitions=4, copies=2, kinds=kinds, bootstrap="h:1")
    crew = Crew(plan)
    assert crew.writer_ids == ["id-t0", "id-t1"], "both are waited for, whoever has them"
    crew.stop("writers")
    assert (tmp_path / "stop-writers").exists()
    assert not (tmp_path / "stop-all").exists()
    assert {kinds[name] for name in plan.of_kafka} <= {f"kafka-{one}" for one in ALL}
    assert Plan(tmp_path, "", 1, partitions=4, copies=2).of_kafka == []


ALL = ("transactor", "sender", "member", "reader")


def test_writers_stop_before_those_that_follow_them():
    for kinds in (OWN_KINDS, kafka_kinds(has_transactions=True)):
        later = {kind.removeprefix("kafka-") for kind in kinds.values() if kind not in WRITERS}
        assert later <= {"copier", "member", "reader"}
