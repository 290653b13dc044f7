"""The job's computation: add weather and a delay class to each flight.

The function below is all that a user of ``cluster.process`` writes. It is vectorised: it gets a
table of records and returns a table of records.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as json

from oncelog.examples.flights.data import FLIGHT_SCHEMA

LATE_MINUTES: Final = 15
VERY_LATE_MINUTES: Final = 60
LOW_VISIBILITY_MILES: Final = 3.0
STRONG_WIND_MPH: Final = 25.0


def parse_flights(values: pa.ChunkedArray) -> pa.Table:
    """Parse flights from JSON, one object per value; a missing field becomes null."""
    lines = b"\n".join(values.to_pylist())
    options = json.ParseOptions(explicit_schema=FLIGHT_SCHEMA, unexpected_field_behavior="ignore")
    return json.read_json(io.BytesIO(lines), parse_options=options)


def classify(flights: pa.Table, weather: pa.Table) -> pa.Table:
    """Add ``id``, ``weather`` and ``delay_class`` to each flight; keep the order.

    ``id`` is unique in the year: month, day, carrier, flight number and origin.
    """
    ident = pc.binary_join_element_wise(
        *(pc.cast(flights[name], pa.string()) for name in ("month", "day", "carrier", "flight")),
        flights["origin"],
        "-",
    )
    hours = pc.binary_join_element_wise(weather["origin"], weather["time_hour"], " ")
    wanted = pc.binary_join_element_wise(flights["origin"], flights["time_hour"], " ")
    row = pc.index_in(wanted, value_set=hours.combine_chunks())
    is_bad = pc.or_kleene(
        pc.or_kleene(
            pc.less(weather["visib"], LOW_VISIBILITY_MILES),
            pc.greater(weather["wind_speed"], STRONG_WIND_MPH),
        ),
        pc.greater(weather["precip"], 0.0),
    )
    conditions = pc.if_else(pc.fill_null(is_bad, False), "bad", "good")
    delay = flights["arr_delay"]
    delay_class = pc.case_when(
        pc.make_struct(
            pc.is_null(delay),
            pc.greater(delay, VERY_LATE_MINUTES),
            pc.greater(delay, LATE_MINUTES),
        ),
        "not arrived",
        "very late",
        "late",
        "on time",
    )
    return (
        flights.select(["carrier", "origin", "arr_delay"])
        .append_column("id", ident)
        .append_column("weather", pc.fill_null(conditions.take(row), "unknown"))
        .append_column("delay_class", delay_class)
    )


def to_json(classified: pa.Table) -> pa.ChunkedArray:
    """One JSON object per row, as bytes."""

    def text(name: str) -> pa.ChunkedArray:
        return pc.binary_join_element_wise(f'"{name}":"', classified[name], '"', "")

    minutes = pc.fill_null(pc.cast(classified["arr_delay"], pa.string()), "null")
    fields = [text(name) for name in ("id", "carrier", "origin", "weather", "delay_class")]
    fields.append(pc.binary_join_element_wise('"arr_delay":', minutes, ""))
    body = pc.binary_join_element_wise(*fields, ",")
    return pc.cast(pc.binary_join_element_wise("{", body, "}", ""), pa.binary())


def delays_with(weather: pa.Table) -> Callable[[pa.Table], pa.Table]:
    """The function of the job: a batch of flights in, a batch of classified delays out."""

    def delays(batch: pa.Table) -> pa.Table:
        classified = classify(parse_flights(batch["value"]), weather)
        return pa.table({"key": batch["key"], "value": to_json(classified)})

    return delays
