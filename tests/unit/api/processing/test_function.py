from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from oncelog.api.processing.function import Function
from oncelog.api.processing.messages import ProcessConfig
from oncelog.api.records import ConsumerRecord

RECORDS = [ConsumerRecord("in", 0, n, 1_000, b"k", b"%d" % n) for n in range(6)]
TABLE = pa.table({"value": [b"v"], "partition": [3]})


def applied(function, batch, **settings):
    config = ProcessConfig(
        **{"source": "in", "sink": "out", "group_id": "g", "worker_index": 0} | settings,
        function=function,
        batch_format="record" if isinstance(batch, list) else "arrow",
    )
    made = Function(config)
    try:
        output = made.apply(batch)
    finally:
        made.close()
    if not isinstance(batch, list):
        return [(topic, table.to_pydict()) for topic, table in output.tables]
    return [(topic, key, value) for topic, key, value, _ in output.records]


def test_a_partition_that_the_function_chose_stays():
    assert applied(lambda t: t, TABLE) == [("out", TABLE.to_pydict())]


# --- several sinks ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "sent"),
    [
        ({"a": b"1", "b": (b"key", b"2")}, [("a", b"k", b"1"), ("b", b"key", b"2")]),
        (("b", b"1"), [("b", b"k", b"1")]),
        (
            [("b", b"1"), None, ("a", [b"2", b"3"])],
            [("b", b"k", b"1"), *[("a", b"k", b"2")], ("a", b"k", b"3")],
        ),
        ({"a": None}, []),
        (None, []),
    ],
)
def test_with_several_sinks_records_go_where_the_function_says(result, sent):
    assert applied(lambda record: result, RECORDS[:1], sink=["a", "b"]) == sent


def test_with_several_sinks_tables_go_where_the_function_says():
    value = pa.table({"value": [b"v"]})

    assert applied(lambda t: {"b": value, "a": None}, TABLE, sink=("a", "b")) == [
        ("b", {"value": [b"v"]})
    ]


@pytest.mark.parametrize(
    ("result", "batch", "error", "text"),
    [
        ({"c": b"1"}, RECORDS, ValueError, "'c' is no sink of the job: give one of 'a', 'b'"),
        ({"c": TABLE}, TABLE, ValueError, "'c' is no sink of the job: give one of 'a', 'b'"),
        (b"1", RECORDS, TypeError, "a mapping from sink to output, a pair"),
        ((b"a", b"1"), RECORDS, TypeError, "not tuple"),
        (TABLE, TABLE, TypeError, "must return a mapping from sink to output or None, not Table"),
        ({"a": 7}, TABLE, TypeError, "not int"),
    ],
)
def test_what_names_no_sink_is_refused(result, batch, error, text):
    with pytest.raises(error, match=text):
        applied(lambda _: result, batch, sink=["a", "b"])


def test_a_job_without_a_sink_takes_no_output():
    assert applied(lambda _: None, RECORDS, sink=None) == []
    with pytest.raises(TypeError, match="has no sink, so the function must return None, not bytes"):
        applied(lambda record: record.value, RECORDS, sink=None)


# --- async functions --------------------------------------------------------------------------


def test_an_async_function_has_so_many_calls_at_a_time_and_its_output_keeps_the_order():
    running, seen = [], []
    last_began = asyncio.Event()

    async def function(record):
        running.append(record)
        seen.append(len(running))
        if record.offset == 5:
            last_began.set()
        elif record.offset == 0:
            await last_began.wait()  # The first ends last.
        else:
            await asyncio.sleep(0)
        running.remove(record)
        return record.value

    sent = applied(function, RECORDS, max_concurrency=3)

    assert [value for _, _, value in sent] == [record.value for record in RECORDS]
    assert max(seen) == 3


def test_an_async_function_of_tables_is_awaited():
    async def function(table):
        await asyncio.sleep(0)
        return table

    assert applied(function, TABLE) == [("out", TABLE.to_pydict())]


@pytest.mark.parametrize("raised", [LookupError("no"), SystemExit(3)])
def test_when_one_call_fails_the_others_are_cancelled_before_the_error_is_raised(raised):
    ended = []

    async def function(record):
        if record.offset == 2:
            raise raised
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(record.offset)

    made = Function(
        ProcessConfig(
            source="in",
            sink="out",
            group_id="g",
            worker_index=0,
            function=function,
            batch_format="record",
        )
    )
    with pytest.raises(type(raised)):
        made.apply(RECORDS)
    assert {0, 1} <= set(ended)
    made.close()


def test_the_event_loop_of_a_function_lives_as_long_as_its_worker():
    loops = []

    async def function(record):
        loops.append(asyncio.get_running_loop())

    config = ProcessConfig(
        source="in",
        sink=None,
        group_id="g",
        worker_index=0,
        function=function,
        batch_format="record",
    )
    made = Function(config)
    made.apply(RECORDS)
    made.apply(RECORDS)
    assert len(set(loops)) == 1
    assert not loops[0].is_closed()
    made.close()
    assert loops[0].is_closed()


# --- topics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["source", "sink"])
@pytest.mark.parametrize("value", ["", [], ["a", "a"], ["a", ""], ["a", 7], 7])
def test_topics_that_are_none_are_refused_by_the_name_of_the_setting(name, value):
    from oncelog.storage.exceptions import InvalidSettingError

    with pytest.raises(InvalidSettingError, match=name):
        applied(len, RECORDS, **{name: value})


def test_a_job_needs_a_source():
    from oncelog.storage.exceptions import InvalidSettingError

    with pytest.raises(InvalidSettingError, match="source"):
        applied(len, RECORDS, source=None)
