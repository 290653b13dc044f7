"""What tests of machines are given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from led_partition import LedPartition, make_header

from oncelog.storage.records.batch import BatchHeader


@pytest.fixture
def leader() -> LedPartition:
    """A new leader of an empty partition."""
    return LedPartition()


@pytest.fixture
def header_of() -> Callable[..., BatchHeader]:
    """``make_header``."""
    return make_header
