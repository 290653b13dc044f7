"""Schemas of Spark, and a connection that only notes writes."""

from __future__ import annotations

import pytest
from distributed_world import FakeConnection
from pyspark.sql.types import StructType


def new_struct(**columns):
    """A schema from names to types, which are Spark's own or the names of simple ones."""
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind)
    return schema


@pytest.fixture
def struct():
    """Makes a schema."""
    return new_struct


@pytest.fixture
def fake_connection():
    """A connection that notes what is written."""
    return FakeConnection()
