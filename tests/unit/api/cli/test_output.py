"""One line per error with what to do, and tables that line up."""

from __future__ import annotations

import pytest

from oncelog.api.cli import terminal as cli_terminal
from oncelog.api.cli.terminal import CliError, UsageError, describe_error, report, split_line, table
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    ConnectionFailedError,
    InvalidSettingError,
    ProducerFencedError,
    exception_for,
)


def test_an_error_of_the_command_line_is_one_line_of_what_and_what_to_do(capsys):
    status = report(CliError("no cluster\nruns", "start one"))
    assert (status, *capsys.readouterr()) == (1, "", "oncelog: no cluster runs — start one\n")


def test_wrong_usage_has_a_status_of_its_own():
    assert report(UsageError("no such option", "see `oncelog --help`")) == 2


def test_an_error_of_the_library_brings_its_advice():
    error = InvalidSettingError("data_dir='/x' is a file: no; it is", advice="give a directory")
    assert str(error) == "data_dir='/x' is a file: no; it is; give a directory"
    assert describe_error(error) == (
        "oncelog: data_dir='/x' is a file: no; it is — give a directory"
    )


def test_an_error_without_advice_gets_that_of_its_class():
    error = ProducerFencedError("epoch 3 is over")
    assert str(error) == "epoch 3 is over"
    assert describe_error(error) == f"oncelog: epoch 3 is over — {ProducerFencedError.advice}"


def test_a_line_is_split_where_it_was_joined():
    line = describe_error(CliError("end of log; none left", "enable flush"))
    assert split_line(line.removeprefix("oncelog: ")) == ("end of log; none left", "enable flush")


def test_a_retriable_error_without_advice_asks_to_try_again():
    assert " — try again" in describe_error(ConnectionFailedError("the log did not start: why"))


@pytest.mark.parametrize("code", [code for code in ErrorCode if code.error_class.value != "none"])
def test_every_code_becomes_one_line_with_advice(code):
    what, dash, advice = describe_error(exception_for(code)).partition(" — ")
    assert dash
    assert what.startswith("oncelog: ")
    assert advice
    assert "\n" not in what + advice


def test_an_unexpected_error_names_its_type_and_how_to_see_more(capsys):
    status = report(KeyError("topic"))
    assert status == 1
    assert capsys.readouterr().err == (
        "oncelog: KeyError: 'topic' — run it again with ONCELOG_DEBUG=1 to see where this comes "
        "from\n"
    )


def test_debugging_prints_the_stack_trace_before_the_line(capsys, monkeypatch):
    monkeypatch.setenv("ONCELOG_DEBUG", "1")
    try:
        raise KeyError("topic")
    except KeyError as error:
        report(error)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("oncelog: KeyError")


def test_a_table_aligns_numbers_to_the_right_and_text_to_the_left():
    assert table(("topic", "size"), [("flights", 12_345), ("d", None)]) == (
        "TOPIC      SIZE\nflights  12,345\nd             -"
    )


def test_a_table_without_rows_is_its_headings():
    assert table(("topic", "size"), []) == "TOPIC  SIZE"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_536, "1.5 KiB"),
        (268_435_456, "256.0 MiB"),
        (2**41, "2.0 TiB"),
    ],
)
def test_sizes_are_written_for_people(size_bytes, text):
    assert cli_terminal.size_text(size_bytes) == text
