from __future__ import annotations

import pickle

import pandas as pd
import pyarrow as pa
import pytest
from ray.data import DataContext, Dataset
from ray.data.datasource import WriteResult

from oncelog.actors.protocol.messages.transaction import Winner
from oncelog.api.distributing.write import DistributedWrite, WriteOptions
from oncelog.ray_data import sink
from oncelog.ray_data.arguments import WriteArguments
from oncelog.ray_data.columns import RowFormat
from oncelog.ray_data.sink import OncelogDatasink, write, write_options
from oncelog.storage.exceptions import InvalidSettingError, RequestTimedOutError

# Ray Data's own settings set its own settings that are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")

OPTIONS = {
    "topic": "t",
    "txn_app_id": None,
    "txn_version": None,
    "transactional_id": None,
    "transaction_timeout_ms": 1_000,
    "compression_type": "none",
}


def a_sink(topic="t"):
    planned = DistributedWrite.plan(sink.connect, WriteOptions(topic=topic))
    # Ray sends it to each task as bytes.
    return pickle.loads(pickle.dumps(OncelogDatasink(planned)))


def result(*reports):
    return WriteResult(num_rows=0, size_bytes=0, write_returns=list(reports))


def table(*values):
    return pa.table({"value": pa.array(values, pa.string())})


# --- arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"topic": ""}, "topic='' is not allowed"),
        ({"topic": 3}, "topic=3 is not allowed"),
        ({"txn_app_id": "a"}, "txn_app_id='a' and txn_version=None belong together"),
        ({"txn_version": 1}, "txn_app_id=None and txn_version=1 belong together"),
        ({"txn_app_id": "a", "txn_version": -1}, "txn_version=-1 is not allowed; give a whole"),
        ({"transaction_timeout_ms": 0}, "transaction_timeout_ms=0"),
        ({"compression_type": "rar"}, "compression_type='rar' is not allowed; give one of 'none'"),
        ({"transactional_id": "x" * 1_025}, "give text of 1 to 1024 bytes"),
        ({"txn_app_id": "x" * 1_025, "txn_version": 1}, "more than 1024 bytes"),
    ],
)
def test_an_impossible_argument_is_refused(wrong, told):
    with pytest.raises(InvalidSettingError, match=told):
        write_options(WriteArguments(**{**OPTIONS, **wrong}))


def test_a_version_has_an_identity_of_its_own_engine():
    given = {**OPTIONS, "txn_app_id": "nightly", "txn_version": 3}
    options = write_options(WriteArguments(**given))
    assert options.identity("r")[0] == "ray-data-nightly"


def test_what_is_no_dataset_is_refused(fake_connection):
    with pytest.raises(InvalidSettingError, match="dataset is a Table; give a ray"):
        write(table("1"), "t")
    assert fake_connection.members == []


class UnreadDataset(Dataset):
    """One that is never executed: Ray would start to make a real one."""

    context = None
    _current_executor = None

    def __init__(self):
        self.context = DataContext()

    def schema(self, *, fetch_if_missing):
        return None


def test_a_dataset_with_ray_datas_own_checkpoint_is_refused(fake_connection, tmp_path):
    """It counts the rows of a task as written when the task ends, which an abort takes back."""
    dataset = UnreadDataset()
    dataset.context.checkpoint_config = {"id_column": "id", "checkpoint_path": str(tmp_path)}
    with pytest.raises(InvalidSettingError, match=r"checkpoint_config .* to None, .*txn_app_id"):
        write(dataset, "t")
    assert fake_connection.planned_count == 0


def test_a_dataset_that_may_drop_blocks_is_refused(fake_connection):
    dataset = UnreadDataset()
    dataset.context.max_errored_blocks = 2
    with pytest.raises(InvalidSettingError, match="max_errored_blocks=2 would commit"):
        write(dataset, "t")
    assert fake_connection.planned_count == 0


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            {"value_serializer": "avro"},
            "value_serializer='avro' is not allowed; give 'json', or None",
        ),
        ({"key_field": ""}, "key_field='' is not allowed; give text"),
        ({"key_field": 3}, "key_field=3 is not allowed"),
        ({"topic": None, "value_serializer": "json"}, "rows as JSON name no topic; name one"),
    ],
)
def test_an_impossible_format_of_rows_is_refused_before_anything_is_asked(
    fake_connection, wrong, told
):
    with pytest.raises(InvalidSettingError, match=told):
        write(UnreadDataset(), **{"topic": "t", **wrong})
    assert fake_connection.planned_count == 0


def test_a_version_that_is_committed_is_not_executed_and_told_in_one_line(fake_connection, caplog):
    fake_connection.is_committed = True
    write(UnreadDataset(), "t", txn_app_id="a", txn_version=3)
    (line,) = caplog.messages
    assert line.startswith("version 3 of 'a' was committed before: nothing is written again — ")


# --- one write --------------------------------------------------------------------------------


def test_the_attempts_that_ray_reports_are_committed_and_no_other(fake_connection):
    driver = a_sink()
    first, lost, again = (a_sink().write([table("1", "2")], None) for _ in range(3))
    driver.on_write_complete(result(first, again, None))
    ((_, committed, winners),) = fake_connection.ends
    assert (committed, winners) == (True, [first, again])
    assert lost not in winners
    assert first == Winner(producer_id=1, record_count=2)


def test_a_failed_write_is_aborted(fake_connection):
    a_sink().on_write_failed(ValueError("a task failed"))
    ((_, committed, winners),) = fake_connection.ends
    assert (committed, winners) == (False, [])


def test_a_failure_to_abort_does_not_hide_why_the_write_failed(fake_connection):
    fake_connection.end_error = RequestTimedOutError("slow")
    a_sink().on_write_failed(ValueError("a task failed"))
    assert fake_connection.ends == []


def test_blocks_of_pandas_and_of_several_schemas_are_written(fake_connection):
    blocks = [
        table("1"),
        pd.DataFrame({"value": ["2"], "key": [b"k"]}),
        pa.table({"value": pa.array([], pa.null())}),
        pa.table({"value": [b"3"]}),
    ]
    report = a_sink().write(blocks, None)
    (member,) = fake_connection.members
    assert [len(rows) for _, rows in member.tables] == [1, 1, 1]
    assert report.record_count == 3


def test_rows_are_made_into_records_a_few_at_a_time(fake_connection, monkeypatch):
    monkeypatch.setattr(sink, "FORMATTED_ROWS_MAX", 2)
    planned = DistributedWrite.plan(sink.connect, WriteOptions(topic="t"))
    made = OncelogDatasink(planned, RowFormat(key_field="id", is_json=True))
    made.on_write_start(pa.schema([("id", pa.int64())]))
    report = pickle.loads(pickle.dumps(made)).write([pa.table({"id": [1, 2, 3]})], None)
    ((_, table),) = fake_connection.members[0].tables
    assert table.to_pydict() == {
        "key": [b"1", b"2", b"3"],
        "value": [b'{"id": 1}', b'{"id": 2}', b'{"id": 3}'],
    }
    assert report.record_count == 3


def test_a_block_with_a_wrong_column_fails_the_task_and_names_it(fake_connection):
    blocks = [table("1"), pa.table({"value": [1]})]
    with pytest.raises(InvalidSettingError, match="column 'value' must be binary or string"):
        a_sink().write(blocks, None)


def test_the_first_block_is_checked_before_any_task(fake_connection):
    with pytest.raises(InvalidSettingError, match="column 'id' cannot be written"):
        a_sink().on_write_start(pa.schema([("id", pa.int64())]))


def test_a_sink_takes_blocks_only_as_it_sends_them(fake_connection):
    """1. A block larger than what is gathered comes. 2. It is sent before the next is taken."""
    large = table("x" * 9_000_000)
    sent = []

    def coming():
        for _ in range(3):
            yield large
            sent.append(len(fake_connection.members[0].tables))

    a_sink().write(coming(), None)
    assert sent == [1, 2, 3]
