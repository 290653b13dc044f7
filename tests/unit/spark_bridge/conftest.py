"""Schemas of Spark, topics in memory, and a connection that only notes writes."""

from __future__ import annotations

import pytest
from distributed_world import FakeConnection, TimedConnection, Topics
from pyspark.sql.types import StructType

from oncelog.api.session.event_loop import LoopThread
from oncelog.spark_bridge.errors import warn_once


@pytest.fixture(autouse=True)
def _nothing_is_told():
    warn_once.cache_clear()


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
def topics():
    """Topics in memory, none yet."""
    return Topics()


@pytest.fixture
def timed_connection(topics):
    """The real connection to ``topics``, in its own time."""
    loop_thread = LoopThread("test")
    yield TimedConnection(topics, loop_thread)
    loop_thread.close()


@pytest.fixture
def fake_connection():
    """A connection that notes what is written."""
    return FakeConnection()
