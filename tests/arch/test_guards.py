"""The guards of ``tests/conftest.py`` do refuse, and say what to do."""

from __future__ import annotations

import subprocess
import sys
import time
import types

import pytest


@pytest.fixture(autouse=True, scope="module")
def ray():
    """A stand-in that is there before the guard of each test looks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ray", types.SimpleNamespace(init=lambda: "started"))
        yield


def test_sleep_in_a_plain_test_is_refused():
    with pytest.raises(AssertionError, match=r"time\.sleep"):
        time.sleep(0)


@pytest.mark.parametrize("program", ["java", "/opt/ray/raylet", "spark-submit"])
def test_starting_ray_or_spark_in_a_plain_test_is_refused(program):
    with pytest.raises(AssertionError, match="mark it ray or spark"):
        subprocess.run([program, "-version"], check=False)


def test_ray_init_in_a_plain_test_is_refused():
    with pytest.raises(AssertionError, match=r"ray\.init"):
        sys.modules["ray"].init()


@pytest.mark.ray
def test_ray_init_in_a_marked_test_is_let_through():
    assert sys.modules["ray"].init() == "started"


def test_the_seed_of_the_run_is_known(seed, pytestconfig):
    assert str(seed) == str(pytestconfig.getoption("--hypothesis-seed"))
