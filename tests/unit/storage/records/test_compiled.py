"""The kernel is the one of this source; without it nothing begins, and one line says what to do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from oncelog.storage.records import compiled


def test_the_kernel_and_its_callers_have_the_same_number_in_the_source():
    """A change to what it offers raises both; a build from other source then has another one."""
    source = Path(compiled.__file__).with_name("_kernel.pyx").read_text(encoding="utf-8")
    assert re.findall(r"^INTERFACE = (\d+)$", source, re.MULTILINE) == [str(compiled._INTERFACE)]


@pytest.mark.parametrize(("stale", "number"), [({"INTERFACE": 5}, 5), ({}, 0)])
def test_a_module_built_from_other_source_is_refused_with_how_to_build_it(stale, number):
    module = SimpleNamespace(__name__="oncelog.storage.records._kernel", **stale)
    with pytest.raises(ImportError) as refused:
        compiled.require(module, 6)
    assert str(refused.value) == (
        f"oncelog.storage.records._kernel was built from other source (interface {number}, not 6); "
        "build it with ./run, or with pip install --editable ."
    )


def test_without_the_kernel_one_line_says_how_to_build_it():
    script = (
        "import sys; sys.modules['oncelog.storage.records._kernel'] = None; "
        "import oncelog.storage.records.codec"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: oncelog's compiled half does not load (")
    assert last.endswith(compiled.HOW_TO_BUILD)
