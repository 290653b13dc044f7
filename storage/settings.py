"""Settings, each declared once: by the annotation of its field in a dataclass.

    linger_ms: Annotated[int, Meta(ge=0, le=INT32_MAX), "How long a batch waits for more."] = 5

The type says what kind of value it is, ``Meta`` or ``Text`` its limits, and the sentence what it
does; the unit is in the name, or a ``Unit``. From this follow the check and its error (``check``,
from ``__post_init__``), the rejection of unknown names (``build``), the keywords for editors
(``option_types.py`` of ``actors`` and ``api``) and ``docs/SETTINGS.md`` (``describe``). Relations
between settings are checked by code beside the declarations.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import enum
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Meta

from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import has_utf8_bytes

SettingsT = TypeVar("SettingsT")

REFUSED: Final = object()
"""What ``take`` returns for a value that is not allowed."""

REQUIRED: Final = object()
"""Marks a setting without a default."""

SHOWN_MAX: Final = 100
"""Characters of a value that an error shows."""

_DIGITS_MAX: Final = 19
"""Digits of a number given as text: as many as an int64 has."""

_UNITS: Final = {"ms": "ms", "bytes": "bytes"}
"""Suffixes of names that give the unit."""


# --- what a value may be ----------------------------------------------------------------------


class Rule(Protocol):
    """What a kind of setting allows; errors say "give" and then ``allowed``."""

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        ...

    def take(self, value: object) -> Any:
        """The value to store, or ``REFUSED``."""
        ...


@dataclass(frozen=True, slots=True)
class Number:
    """A number, both limits inclusive; ``None`` is no limit. True and False are no numbers."""

    kind: type[int] | type[float] = int
    low: float | None = None
    high: float | None = None

    @property
    def allowed(self) -> str:
        """The limits, in words."""
        text = "a whole number" if self.kind is int else "a number"
        if self.low is not None:
            text += f" from {self.low} on" if self.high is None else f" from {self.low}"
        return text if self.high is None else f"{text} to {self.high}"

    def take(self, value: object) -> Any:
        """The number."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return REFUSED
        if self.kind is int and not isinstance(value, int):
            return REFUSED
        is_high_enough = self.low is None or self.low <= value
        return value if is_high_enough and (self.high is None or value <= self.high) else REFUSED


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is not empty; also written in a declaration, for the limits."""

    bytes_max: int | None = None
    may_be_blank: bool = True

    @property
    def allowed(self) -> str:
        """The length limits, in words."""
        if self.bytes_max is not None:
            return f"text of 1 to {self.bytes_max} bytes of UTF-8"
        return "text that is not empty"

    def take(self, value: object) -> Any:
        """The text."""
        if not isinstance(value, str) or not (value if self.may_be_blank else value.strip()):
            return REFUSED
        if self.bytes_max is not None and not has_utf8_bytes(value, 1, self.bytes_max):
            return REFUSED
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    """True or False; no other truthy or falsy value."""

    @property
    def allowed(self) -> str:
        """The words "True or False"."""
        return "True or False"

    def take(self, value: object) -> Any:
        """The truth value."""
        return value if isinstance(value, bool) else REFUSED


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words or numbers."""

    choices: tuple[Any, ...]

    @property
    def allowed(self) -> str:
        """All of them."""
        names = ", ".join(map(repr, self.choices))
        return f"one of {names}" if len(self.choices) > 1 else names

    def take(self, value: object) -> Any:
        """The choice."""
        return REFUSED if isinstance(value, bool) or value not in self.choices else value


@dataclass(frozen=True, slots=True)
class EnumMember:
    """A member of an enumeration, or its value, for which the member is taken."""

    kind: type[enum.Enum]

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of the members."""
        return tuple(member.value for member in self.kind)

    @property
    def allowed(self) -> str:
        """All values, in words."""
        return Choice(self.choices).allowed

    def take(self, value: object) -> Any:
        """The member."""
        try:
            return self.kind(value)
        except ValueError:
            return REFUSED


@dataclass(frozen=True, slots=True)
class Several:
    """One of some words, or several of them in order and none twice; kept as a tuple."""

    choices: tuple[Any, ...]

    @property
    def allowed(self) -> str:
        """All of them."""
        return f"one or several of {', '.join(map(repr, self.choices))}"

    def take(self, value: object) -> Any:
        """The choices."""
        given = (value,) if isinstance(value, str) else value
        if not isinstance(given, list | tuple) or not given:
            return REFUSED
        if any(one not in self.choices for one in given) or len(set(given)) < len(given):
            return REFUSED
        return tuple(given)


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects of a class, kept as a tuple."""

    kind: type[Any]

    @property
    def allowed(self) -> str:
        """The class, in words."""
        return f"a list of {self.kind.__name__} objects"

    def take(self, value: object) -> Any:
        """The objects."""
        if not isinstance(value, list | tuple):
            return REFUSED
        return tuple(value) if all(isinstance(one, self.kind) for one in value) else REFUSED


@dataclass(frozen=True, slots=True)
class Function:
    """Anything that can be called."""

    @property
    def allowed(self) -> str:
        """That."""
        return "a callable"

    def take(self, value: object) -> Any:
        """The function."""
        return value if callable(value) else REFUSED


@dataclass(frozen=True, slots=True)
class Nothing:
    """``None``."""

    @property
    def allowed(self) -> str:
        """That."""
        return "None"

    def take(self, value: object) -> Any:
        """Nothing."""
        return None if value is None else REFUSED


@dataclass(frozen=True, slots=True)
class Either:
    """A value that one of several rules allows. If one of them is a word, a number may be text."""

    rules: tuple[Rule, ...]

    @property
    def allowed(self) -> str:
        """What each rule allows, joined by "or"."""
        return ", or ".join(rule.allowed for rule in self.rules)

    def take(self, value: object) -> Any:
        """The result of the first rule that allows it."""
        if isinstance(value, str) and value.isdecimal() and len(value) <= _DIGITS_MAX:
            is_number = any(isinstance(rule, Number) for rule in self.rules)
            value = int(value) if is_number else value
        taken = (rule.take(value) for rule in self.rules)
        return next((one for one in taken if one is not REFUSED), REFUSED)


@dataclass(frozen=True, slots=True)
class Checked:
    """Written in a declaration: what is allowed, in words, if code checks it elsewhere."""

    allowed: str
    kind: str = "text"

    def take(self, value: object) -> Any:
        """Anything."""
        return value


@dataclass(frozen=True, slots=True)
class Unit:
    """Written in a declaration: the unit, if Kafka's name for the setting does not give it."""

    name: str


# --- declarations -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting as it is declared."""

    name: str
    rule: Rule
    default: Any = REQUIRED
    unit: str = ""
    sentence: str

    def take(self, value: object) -> Any:
        """The value to store; ``InvalidSettingError`` says what is allowed instead."""
        taken = self.rule.take(value)
        if taken is REFUSED:
            raise refused(self.name, value, self.rule.allowed)
        return taken

    def of_text(self, text: str) -> Any:
        """Convert text to a value, unchecked; numbers stay text."""
        if not isinstance(self.rule, Number):
            return text
        try:
            return self.rule.kind(text)
        except ValueError:
            raise refused(self.name, text, self.rule.allowed) from None


def declared(name: str, annotation: Any, default: Any = REQUIRED) -> Setting:
    """The setting that an annotation declares: its type, limits, and a sentence."""
    kind, *marks = get_args(annotation)
    found = {type(mark): mark for mark in marks}
    unit = found[Unit].name if Unit in found else ""
    return Setting(
        name=name,
        rule=found.get(Checked) or _rule(kind, found),
        default=default,
        unit=unit or _UNITS.get(name.replace(".", "_").rpartition("_")[2], ""),
        sentence=found[str],
    )


def _rule(kind: Any, marks: Mapping[type[Any], Any]) -> Rule:
    origin, args = get_origin(kind), get_args(kind)
    if kind in (int, float):
        limits = marks.get(Meta, Meta())
        return Number(kind, limits.ge, limits.le)
    if kind is str:
        limits_of_text: Text = marks.get(Text, Text())
        return limits_of_text
    if kind is bool:
        return Flag()
    if kind is type(None):
        return Nothing()
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return EnumMember(kind)
    if origin is Literal:
        return Choice(args)
    if origin in (Union, types.UnionType):
        return _either([_rule(one, marks) for one in args])
    if origin is collections.abc.Sequence and get_origin(args[0]) is Literal:
        return Several(get_args(args[0]))
    if origin is collections.abc.Sequence:
        return Objects(args[0])
    if origin is collections.abc.Callable:
        return Function()
    raise TypeError(f"{kind}: there is no rule for settings of this type")


def _either(rules: list[Rule]) -> Rule:
    """Merge rules into one; all words go into one list of choices."""
    for rule in rules:
        if isinstance(rule, Several):
            return rule
    words = [word for rule in rules if isinstance(rule, Choice) for word in rule.choices]
    merged = [rule for rule in rules if not isinstance(rule, Choice | Nothing)]
    merged += [Choice(tuple(words))] if words else []
    merged += [rule for rule in rules if isinstance(rule, Nothing)]
    return Either(tuple(merged)) if len(merged) > 1 else merged[0]


_settings_by_kind: dict[type[Any], Mapping[str, Setting]] = {}
"""What ``settings_of`` has read: an entry per settings class of the program."""


def settings_of(kind: type[Any]) -> Mapping[str, Setting]:
    """The declared settings of a dataclass, by name; its other fields are none."""
    known = _settings_by_kind.get(kind)
    if known is not None:
        return known
    hints = get_type_hints(kind, include_extras=True)
    found = {
        field.name: declared(field.name, hints[field.name], _default(field))
        for field in dataclasses.fields(kind)
        if get_origin(hints[field.name]) is Annotated
    }
    return _settings_by_kind.setdefault(kind, types.MappingProxyType(found))


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED if field.default is dataclasses.MISSING else field.default


def describe(kind: type[Any]) -> tuple[Setting, ...]:
    """The settings of a dataclass in their order, for a page or a help text."""
    return tuple(settings_of(kind).values())


# --- checks -----------------------------------------------------------------------------------


def check(settings: Any) -> None:
    """Check each setting by itself, from ``__post_init__``; the error names the first bad one.

    Each value is normalised: an enumeration's value becomes its member, a list a tuple.
    """
    for name, setting in settings_of(type(settings)).items():
        value = getattr(settings, name)
        taken = setting.take(value)
        if taken is not value:
            object.__setattr__(settings, name, taken)


def build(kind: type[SettingsT], values: Mapping[str, Any]) -> SettingsT:
    """Build a dataclass of settings from keywords; reject unknown ones, and name missing ones."""
    for name, value in values.items():
        check_name(kind, name, f"{name}={value!r}")
    for name, setting in settings_of(kind).items():
        if setting.default is REQUIRED and name not in values:
            raise InvalidSettingError(f"{name} is not given", advice=f"give {setting.rule.allowed}")
    return kind(**values)


def check_name(kind: type[Any], name: str, given: str = "") -> None:
    """Reject a name that is not a setting of the dataclass ``kind``; the error shows ``given``."""
    if name not in settings_of(kind):
        raise unknown(given or name, name, settings_of(kind))


def check_range(name: str, value: object, low: int, high: int) -> None:
    """Reject anything but a whole number from ``low`` to ``high``; for arguments, not settings."""
    Setting(name=name, rule=Number(int, low, high), sentence="").take(value)


def refused(name: str, value: object, allowed: str) -> InvalidSettingError:
    """The error for a value that is not allowed: "give", then ``allowed``."""
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}..."
    return InvalidSettingError(f"{name}={shown} is not allowed", advice=f"give {allowed}")


def unknown(given: str, name: str, known: Iterable[str]) -> InvalidSettingError:
    """The error for an unknown name: suggests the nearest known name, else lists all."""
    names = {one.lower().replace(".", "_"): one for one in known}
    close = difflib.get_close_matches(str(name).lower().replace(".", "_"), names, n=1)
    told = f"did you mean {names[close[0]]}?" if close else f"known are {', '.join(names.values())}"
    return InvalidSettingError(f"{given} is not a setting", advice=told)
