"""Settings as they are declared: what each kind takes and refuses, and how it says so."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.settings import (
    REQUIRED,
    SHOWN_MAX,
    Checked,
    Text,
    Unit,
    build,
    check,
    check_name,
    check_range,
    declared,
    describe,
    refused,
    settings_of,
)

Colour = Literal["red", "green"]


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


class Thing:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    wait_ms: Annotated[int, Meta(ge=1, le=5), "How long to wait."] = 2
    many: Annotated[int, Meta(ge=0), "How many."] = 0
    share: Annotated[float, Meta(ge=0, le=1), "Which part."] = 0.5
    memory: Annotated[int, Meta(ge=1, le=9), Unit("bytes"), "How much."] = 1
    is_on: Annotated[bool, "Whether."] = True
    colour: Annotated[Colour, "Which colour."] = "red"
    acks: Annotated[Literal["all", 1, 0], "Whose."] = "all"
    number: Annotated[int | Literal["auto"], Meta(ge=1, le=9), "How many, or auto."] = "auto"
    name: Annotated[str | None, Text(4), "A name."] = None
    word: Annotated[str, Text(may_be_blank=False), "A word."] = "w"
    level: Annotated[Level, "How high."] = Level.LOW
    colours: Annotated[Colour | Sequence[Colour], "Which colours."] = ("red",)
    things: Annotated[Sequence[Thing], "Which things."] = ()
    function: Annotated[Callable[[Any], Any], "What to call."] = len
    free: Annotated[dict[str, int], Checked("a map", "map"), "What code checks."] = field(
        default_factory=dict
    )
    undeclared: int = 0

    def __post_init__(self) -> None:
        check(self)


THING = Thing()


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("wait_ms", 1, 1),
        ("wait_ms", 5, 5),
        ("many", 2**70, 2**70),
        ("share", 0, 0),
        ("share", 1.0, 1.0),
        ("is_on", False, False),
        ("acks", 0, 0),
        ("number", 9, 9),
        ("number", "7", 7),
        ("number", "auto", "auto"),
        ("name", None, None),
        ("name", "\u00e9\u00e9", "\u00e9\u00e9"),
        ("level", "high", Level.HIGH),
        ("level", Level.HIGH, Level.HIGH),
        ("colours", "green", ("green",)),
        ("colours", ["green", "red"], ("green", "red")),
        ("things", [THING], (THING,)),
        ("function", print, print),
        ("undeclared", "anything", "anything"),
    ],
)
def test_what_is_allowed_is_kept(name: str, given: object, kept: object) -> None:
    found = getattr(Sample(**{name: given}), name)
    assert (found, type(found)) == (kept, type(kept))


@pytest.mark.parametrize(
    ("name", "given", "advice"),
    [
        ("wait_ms", 0, "give a whole number from 1 to 5"),
        ("wait_ms", 6, "give a whole number from 1 to 5"),
        ("wait_ms", True, "give a whole number from 1 to 5"),
        ("wait_ms", 2.0, "give a whole number from 1 to 5"),
        ("wait_ms", "2", "give a whole number from 1 to 5"),
        ("wait_ms", None, "give a whole number from 1 to 5"),
        ("many", -1, "give a whole number from 0 on"),
        ("share", 1.01, "give a number from 0 to 1"),
        ("share", float("nan"), "give a number from 0 to 1"),
        ("share", False, "give a number from 0 to 1"),
        ("is_on", 1, "give True or False"),
        ("colour", "blue", "give one of 'red', 'green'"),
        ("acks", True, "give one of 'all', 1, 0"),
        ("acks", "1", "give one of 'all', 1, 0"),
        ("number", 0, "give a whole number from 1 to 9, or 'auto'"),
        ("number", "10", "give a whole number from 1 to 9, or 'auto'"),
        ("number", "many", "give a whole number from 1 to 9, or 'auto'"),
        ("number", "9" * 5_000, "give a whole number from 1 to 9, or 'auto'"),
        ("name", "", "give text of 1 to 4 bytes of UTF-8, or None"),
        ("name", "\u00e9\u00e9\u00e9", "give text of 1 to 4 bytes of UTF-8, or None"),
        ("name", "\ud800", "give text of 1 to 4 bytes of UTF-8, or None"),
        ("name", 3, "give text of 1 to 4 bytes of UTF-8, or None"),
        ("word", " ", "give text that is not empty"),
        ("word", None, "give text that is not empty"),
        ("level", "middle", "give one of 'low', 'high'"),
        ("level", [], "give one of 'low', 'high'"),
        ("colours", (), "give one or several of 'red', 'green'"),
        ("colours", ["red", "red"], "give one or several of 'red', 'green'"),
        ("colours", ["red", []], "give one or several of 'red', 'green'"),
        ("colours", None, "give one or several of 'red', 'green'"),
        ("things", [THING, 1], "give a list of Thing objects"),
        ("things", THING, "give a list of Thing objects"),
        ("function", 3, "give a callable"),
    ],
)
def test_what_is_not_is_refused_with_what_is(name: str, given: object, advice: str) -> None:
    with pytest.raises(InvalidSettingError) as refusal:
        build(Sample, {name: given})
    assert refusal.value.what.startswith(f"{name}={given!r:.50}"[:60])
    assert refusal.value.what.endswith(" is not allowed")
    assert refusal.value.advice == advice


def test_a_setting_that_must_be_given_is_named() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Needy:
        word: Annotated[str, Text(), "A word."]
        many: Annotated[int, Meta(ge=0), "Many."] = 1

    with pytest.raises(InvalidSettingError) as refusal:
        build(Needy, {"many": 2})
    assert (refusal.value.what, refusal.value.advice) == (
        "word is not given",
        "give text that is not empty",
    )
    assert build(Needy, {"word": "a"}).word == "a"


def test_an_unknown_name_is_refused_with_the_nearest_known() -> None:
    with pytest.raises(InvalidSettingError) as refusal:
        build(Sample, {"Wait.ms": 5})
    assert (refusal.value.what, refusal.value.advice) == (
        "Wait.ms=5 is not a setting",
        "did you mean wait_ms?",
    )


def test_an_unknown_name_that_is_like_no_other_is_refused_with_all_that_are_known() -> None:
    with pytest.raises(InvalidSettingError, match=r"^qqqq is not a setting; known are wait_ms, "):
        check_name(Sample, "qqqq")
    with pytest.raises(InvalidSettingError, match="undeclared=1 is not a setting"):
        build(Sample, {"undeclared": 1})
    check_name(Sample, "wait_ms")


def test_an_error_shows_the_beginning_of_a_long_value() -> None:
    what = refused("name", "x" * 10_000, "less").what
    assert what.startswith("name='xxx")
    assert len(what) < SHOWN_MAX + 50


def test_a_declaration_is_described_in_order_with_default_unit_and_sentence() -> None:
    settings = describe(Sample)
    assert [one.name for one in settings[:4]] == ["wait_ms", "many", "share", "memory"]
    told = {one.name: (one.default, one.unit, one.sentence) for one in settings}
    assert told["wait_ms"] == (2, "ms", "How long to wait.")
    assert told["memory"] == (1, "bytes", "How much.")
    assert told["free"] == ({}, "", "What code checks.")
    assert "undeclared" not in told
    assert settings_of(Sample) is settings_of(Sample)


def test_a_setting_may_be_declared_alone_and_without_a_default() -> None:
    option = declared("max.wait.ms", Annotated[int, Meta(ge=1, le=2), "How long."])
    assert (option.default, option.unit) == (REQUIRED, "ms")
    assert option.take(2) == 2
    with pytest.raises(InvalidSettingError, match=r"max.wait.ms=3 is not allowed; give a whole"):
        option.take(3)


def test_a_type_without_a_rule_is_told_at_once() -> None:
    with pytest.raises(TypeError, match="no rule for settings of this type"):
        declared("one", Annotated[bytes, "Bytes."])


def test_numbers_are_read_from_text_and_what_is_no_number_is_refused() -> None:
    wait, share, name = (settings_of(Sample)[name] for name in ("wait_ms", "share", "name"))
    assert (wait.of_text("3"), share.of_text("0.25"), name.of_text("3")) == (3, 0.25, "3")
    for setting, text in ((wait, "many"), (wait, "1.5"), (share, "half")):
        with pytest.raises(InvalidSettingError, match=f"{setting.name}='{text}' is not allowed"):
            setting.of_text(text)


def test_a_number_that_is_no_setting_is_checked_likewise() -> None:
    check_range("older_than_ms", 5, 0, 5)
    for wrong in (-1, 6, True, "5", None):
        with pytest.raises(InvalidSettingError, match="give a whole number from 0 to 5"):
            check_range("older_than_ms", wrong, 0, 5)
