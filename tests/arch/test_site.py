"""What the site makes of the code has everything that the code has."""

from __future__ import annotations

import dataclasses
import importlib.util
import re

import pytest

import oncelog
from oncelog.actors.process.metrics import METRICS
from oncelog.api.monitoring.alerts import ALERTS
from oncelog.storage.errors import ErrorCode


@pytest.fixture(scope="module")
def generate(root):
    """``docs/tools/generate.py``, which is in no package."""
    spec = importlib.util.spec_from_file_location("generate", root / "docs/tools/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_table_has_the_page_that_shows_it(generate, root):
    marks = {
        name: re.findall(r"^<!-- generated: (\w+) -->$", path.read_text(), re.MULTILINE)
        for path in (root / "docs/reference").glob("*.md")
        for name in [path.stem]
    }
    assert {name: found for name, found in marks.items() if found} == {
        name: [name] for name in generate.TABLES
    }


def test_each_setting_is_shown_with_its_default_and_what_it_allows(generate):
    rows = re.findall(r"^\| `(\w+)` \| `[^`]+` \| (.+) \|$", generate.settings(), re.MULTILINE)
    kinds = [kind for _, kind, _ in generate.SETTINGS]
    names = [field.name for kind in kinds for field in dataclasses.fields(kind)]
    assert [name for name, _ in rows] == names
    assert [name for name, allowed in rows if not allowed.strip()] == []


def test_a_range_that_a_later_check_narrows_is_shown_as_narrow(generate):
    row = "| `transaction_max_timeout_ms` | `900_000` | a whole number from 1 to 39,600,000 |"
    assert row in generate.settings()


def test_each_command_is_shown(generate):
    shown = re.findall(r"^#+ `(oncelog [\w -]+)`$", generate.commands(), re.MULTILINE)
    assert len(shown) == len(set(shown)) > 30
    assert {"oncelog status", "oncelog topics create", "oncelog brokers drain"} <= set(shown)


def test_each_metric_and_alert_is_shown(generate):
    text = generate.metrics()
    names = [name for metric in METRICS for name in metric.exported_names]
    names += [alert.name for alert in ALERTS]
    assert [name for name in names if f"`{name}`" not in text] == []
    assert "{{" not in text


def test_each_error_is_shown(generate):
    text = generate.errors()
    errors = [name for name in oncelog.__all__ if name.endswith("Error") and name != "OncelogError"]
    errors.remove("ProcessFailedError")  # Documented with the job that raises it.
    assert [name for name in errors if f"`oncelog.{name}`" not in text] == []
    raised = {code.name for code in ErrorCode} - {"NONE"}
    assert raised - set(re.findall(r"`([A-Z_]+)`", text)) == set()
