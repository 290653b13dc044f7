"""What follows from the declarations of settings is written, and each declaration says all."""

from __future__ import annotations

import pytest
from written_settings import COMMAND, SECTIONS, written_files

from oncelog.storage.settings import Either, Number, Text

DECLARED = [(section.title, setting) for section in SECTIONS for setting in section.settings]


def rules(rule):
    return rule.rules if isinstance(rule, Either) else (rule,)


@pytest.mark.parametrize("path", written_files())
def test_what_is_written_from_the_declarations_is_up_to_date(root, path):
    is_new = (root / path).read_text(encoding="utf-8") == written_files()[path]
    assert is_new, f"{path} is old; run `{COMMAND}` to write it anew"


def test_every_setting_has_a_sentence_that_fits_a_table():
    assert len(DECLARED) > 100
    wrong = [
        f"{title}: {setting.name}: {setting.sentence}"
        for title, setting in DECLARED
        if not setting.sentence.endswith(".") or "|" in setting.sentence
    ]
    assert not wrong, "\n".join(wrong)


def test_every_setting_says_what_it_may_be():
    wrong = [
        f"{title}: {setting.name}"
        for title, setting in DECLARED
        for rule in rules(setting.rule)
        if not rule.allowed or (isinstance(rule, Number) and rule.low is None)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_size_and_time_has_its_unit():
    units = {setting.name: setting.unit for _, setting in DECLARED}
    assert units["linger_ms"] == units["transaction.timeout.ms"] == "ms"
    assert units["batch_size"] == units["kafka.batch.size"] == units["segment_bytes"] == "bytes"
    assert set(units.values()) == {"", "ms", "bytes"}


def test_ids_have_a_length():
    wrong = [
        f"{title}: {setting.name}"
        for title, setting in DECLARED
        for rule in rules(setting.rule)
        if isinstance(rule, Text) and setting.name.endswith("id") and rule.bytes_max is None
    ]
    assert wrong == ["Ray Data write: txn_app_id"], "it is part of a longer id, which is checked"
