from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.readwriter import DataFrameWriter

from oncelog import spark_bridge
from oncelog.spark_bridge.spark_session import (
    explain_modes,
    explained,
    java_problem,
    session,
    session_configs,
)
from oncelog.storage.exceptions import InvalidSettingError

JAVA_8 = 'java version "1.8.0_362"\nJava(TM) SE Runtime Environment\n'
JAVA_17 = 'openjdk version "17.0.15" 2025-04-15\n'
JAVA_25 = 'openjdk version "25" 2025-09-16\n'


def test_importing_the_bridge_imports_neither_spark_nor_ray():
    code = (
        "import sys; from oncelog import spark_bridge; "
        "sys.exit(bool({'pyspark', 'ray', 'raydp'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_bridge_has_its_functions_each_time_they_are_asked_for():
    assert spark_bridge.session is session
    assert spark_bridge.session is session
    with pytest.raises(AttributeError, match="no attribute 'sessions'"):
        _ = spark_bridge.sessions


@pytest.mark.parametrize(
    ("source", "is_told"), [("oncelog", True), ("kafka", False)], ids=["ours", "another's"]
)
def test_a_save_without_a_mode_is_told_which_and_why(source, is_told):
    """Spark refuses it before it asks the data source anything."""
    refusal = AnalysisException(
        f'[UNSUPPORTED_DATA_SOURCE_SAVE_MODE] The data source "{source}" cannot be written in the '
        '"Create" mode. Please use either the "Append" or "Overwrite" mode instead.'
    )

    def save(writer, path=None):
        raise refusal

    with pytest.raises(AnalysisException) as told:
        explained(save)("writer", path="t")
    assert told.value is refusal
    if sys.version_info >= (3, 11):  # Python 3.10 has no notes
        advice = "\n".join(getattr(refusal, "__notes__", []))
        assert (".mode('append')" in advice) is is_told


class NotedWriter:
    """``DataFrame.write`` that notes what it is told."""

    def __init__(self):
        self.told = {}

    def __getattr__(self, name):
        def note(*arguments, **named):
            self.told[name] = named or arguments
            return self

        return note


def test_a_batch_of_foreach_batch_is_a_version_of_what_it_is_named():
    writer = NotedWriter()
    spark_bridge.write_once(SimpleNamespace(write=writer), "totals", 7, topic="t")
    assert writer.told == {
        "format": ("oncelog",),
        "options": {"topic": "t", "txnAppId": "totals", "txnVersion": 7},
        "mode": ("append",),
        "save": (),
    }


def test_sparks_own_save_is_explained_once(monkeypatch):
    monkeypatch.setattr(DataFrameWriter, "save", DataFrameWriter.save)
    plain = DataFrameWriter.save
    for _ in range(2):
        explain_modes()
    assert DataFrameWriter.save.__wrapped__ is plain


def test_what_a_save_gives_and_takes_is_left_as_it_is():
    assert explained(lambda writer, path, mode: (writer, path, mode))(1, "t", mode="m") == (
        1,
        "t",
        "m",
    )


@pytest.mark.parametrize("text", [JAVA_17, JAVA_25])
def test_a_java_that_is_new_enough_is_fine(text):
    assert java_problem(text) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "there is no Java in JAVA_HOME or on the path"),
        (JAVA_8, "the Java that was found is version 8"),
        ("", "does not tell its version"),
    ],
)
def test_a_java_that_does_not_do_is_named_with_what_to_do(text, problem):
    assert problem in java_problem(text)
    assert "Spark needs Java 17 or newer: install it" in java_problem(text)
    assert "\n" not in java_problem(text)


def test_settings_of_the_user_go_before_ours_and_java_options_are_joined():
    configs = session_configs(
        {"spark.log.level": "INFO", "spark.executor.extraJavaOptions": "-Dx=1"}
    )
    assert configs["spark.log.level"] == "INFO"
    assert configs["spark.executor.extraJavaOptions"].endswith("=ALL-UNNAMED -Dx=1")
    assert "--add-opens=java.base/java.nio=" in configs["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"executors": 0}, "executors=0"),
        ({"cores": True}, "cores=True"),
        ({"memory": "much"}, "memory='much' is not allowed; give text such as '500m'"),
    ],
)
def test_an_impossible_size_is_refused(arguments, text):
    with pytest.raises(InvalidSettingError, match=text):
        session(None, **arguments)


def test_a_session_of_spark_connect_is_told_that_it_needs_no_registration() -> None:
    kind = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    with pytest.raises(InvalidSettingError, match="a Spark Connect session takes no registration"):
        spark_bridge.register(kind())


def test_an_older_spark_is_refused_with_its_version() -> None:
    program = (
        "import sys; sys.modules['pyspark.sql.streaming.datasource'] = None\n"
        "import oncelog.spark_bridge.source"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "needs Spark 4.2 or newer, this is 4." in done.stderr.splitlines()[-1]
