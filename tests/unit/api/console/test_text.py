"""What anybody may have written is shown, and neither hides nor acts."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.api.console import text

VISIBLE_CONTROLS = "\n\t"


def is_hidden(character: str) -> bool:
    """Whether it is a control or format character, or half of one."""
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_every_control_and_format_character_of_unicode_is_shown_by_its_number():
    hidden = [one for one in map(chr, range(sys.maxunicode + 1)) if is_hidden(one)]
    assert len(hidden) > 2_000
    left = [one for one in hidden if is_hidden(text.shown(one)[0])]
    assert left == []


@given(st.text(max_size=200))
def test_no_control_or_format_character_is_left(given_text):
    assert not [one for one in text.shown(given_text) if is_hidden(one)]


@given(st.text(max_size=200))
def test_lines_are_kept_only_where_they_are_wanted(given_text):
    left = {one for one in text.shown(given_text, keeps_lines=True) if is_hidden(one)}
    assert left <= set(VISIBLE_CONTROLS)


@given(st.binary(max_size=3_000))
def test_every_form_of_a_value_is_visible_and_bounded(data):
    lines = (text.as_text(data), text.as_hex(data), text.preview(data), text.as_json(data) or "")
    for one in lines:
        assert not [c for c in one if is_hidden(c) and c not in VISIBLE_CONTROLS]
        assert len(one) <= 10 * text.SHOWN_BYTES_MAX
    assert len(text.preview(data)) <= 10 * text.PREVIEW_CHARS_MAX


@pytest.mark.parametrize(
    ("given_text", "seen"),
    [
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("\x1b[2J\x07", "⟨U+001B⟩[2J⟨U+0007⟩"),
        ("a\n\tb", "a↵→b"),
        ("\x7f\x85", "⟨U+007F⟩⟨U+0085⟩"),
        ("zero\u200bwidth", "zero⟨U+200B⟩width"),
        ("plain ÄÖ 漢字 🙂", "plain ÄÖ 漢字 🙂"),
    ],
)
def test_characters_that_act_are_shown_by_name(given_text, seen):
    assert text.shown(given_text) == seen


def test_marks_on_one_character_are_bounded():
    assert text.shown("e" + "\u0301" * 50) == "e" + "\u0301" * text.MARKS_MAX


def test_what_is_too_long_is_cut_and_says_so():
    assert text.shown("x" * 600) == "x" * 500 + "… 100 more characters"
    assert text.preview(b"x" * 5_000).endswith("… 5,000 bytes")
    assert text.as_text(b"x" * (text.SHOWN_BYTES_MAX + 7)).endswith("… 7 more bytes")


def test_bytes_that_are_no_text_become_digits_and_a_cut_character_does_not():
    assert text.preview(b"\xff\xfe\x01") == "0xfffe01"
    assert text.preview(None) == "null"
    long = ("ä" * 1_000).encode()
    assert text.preview(long).startswith("ää")
    assert text.preview(b"x" + long).startswith("xää")


def test_json_that_is_too_deep_is_no_json():
    assert text.as_json(b'{"a": [1]}') == '{\n  "a": [\n    1\n  ]\n}'
    assert text.as_json(b"[" * 50_000) is None
    assert text.as_json(b"not json") is None
    most = text.JSON_DEPTH_MAX
    assert text.as_json(b"[" * most + b"]" * most) is not None
    assert text.as_json(b"[" * (most + 1) + b"]" * (most + 1)) is None
    assert text.as_json(b'["' + b"[" * 100 + b'"]') is not None
    assert text.as_json(b'["a\\"", ' + b"[" * most + b"]" * most + b"]") is None


def test_json_that_grows_when_it_is_indented_is_cut():
    most = text.JSON_DEPTH_MAX
    many = b"[" * most + b"1," * 20_000 + b"1" + b"]" * most
    shown = text.as_json(many)
    assert shown is not None
    assert shown.endswith("the rest is left out")
    assert len(shown) < 2 * text.SHOWN_BYTES_MAX


def test_hexadecimal_rows_have_positions_and_ascii():
    assert text.as_hex(b"AB\x00").startswith("00000000  41 42 00")
    assert text.as_hex(b"AB\x00").endswith("AB.")


def test_advice_keeps_commands_as_code_and_escapes_the_rest():
    assert str(text.advice_markup("type `a <b>` or <i>")) == (
        "type <code>a &lt;b&gt;</code> or &lt;i&gt;"
    )


@pytest.mark.parametrize(
    ("duration_ms", "said"),
    [(5, "5 ms"), (61_000, "1 min 01 s"), (7_500_000, "2 h 05 min"), (180_000_000, "2 d 02 h")],
)
def test_durations_have_their_two_largest_units(duration_ms, said):
    assert text.duration(duration_ms) == said


def test_figures_that_are_unknown_are_a_dash():
    assert {text.number(None), text.size(-1), text.duration(None), text.utc(-1)} == {"-"}
    assert text.utc(2**62) == f"{2**62} ms"
    assert (text.size(1_536), text.number(12_345), text.number(3.25)) == (
        "1.5 KiB",
        "12,345",
        "3.2",
    )
