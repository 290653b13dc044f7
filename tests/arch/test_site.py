"""What the site makes of the code has everything that the code has."""

from __future__ import annotations

import importlib.util
import re

import pytest

import oncelog
from oncelog.actors.gateway.messages.apis import APIS
from oncelog.actors.gateway.versions import NOT_SERVED
from oncelog.actors.process.metrics import METRICS
from oncelog.api.monitoring import ALERTS
from oncelog.storage.errors import ErrorCode


@pytest.fixture(scope="module")
def generate(root):
    """``docs/tools/generate.py``, which is in no package."""
    spec = importlib.util.spec_from_file_location("generate", root / "docs/tools/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["commands", "consumer", "errors", "metrics", "producer"])
def test_the_table_of_a_page_is_that_of_the_code(generate, root, name):
    page = (root / f"docs/reference/{name}.md").read_text(encoding="utf-8")
    assert f"<!-- generated: {name} -->" in page
    assert generate.filled(page) == page, "run `./run docs` to write it anew"


def test_the_guide_has_every_api_of_kafka_that_is_served_or_not(generate, root):
    page = (root / "docs/guides/kafka.md").read_text(encoding="utf-8")
    assert generate.filled(page) == page, "run `./run docs` to write it anew"
    tables = dict(re.findall(r"<!-- generated: (\w+) -->(.*?)<!-- end -->", page, re.DOTALL))
    assert tables.keys() == {"kafka_apis", "kafka_missing"}
    served = dict(re.findall(r"^\| `(\w+)` \| ([\d to]+) \|$", tables["kafka_apis"], re.MULTILINE))
    assert served.keys() == {api.name for api in APIS.values()}
    assert served["Produce"] == "3 to 12"
    assert served["AddPartitionsToTxn"] == "0 to 3"
    assert set(re.findall(r"`(\w+)`", tables["kafka_missing"])) >= NOT_SERVED.keys()


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
