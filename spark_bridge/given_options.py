"""Options as Spark passes them, parsed by their declarations; for reads and writes.

Spark passes keys in lower case and every value as text. Each option is declared once, as settings
are. An unknown option or a value out of range is rejected; the error names the option, its value
and what is allowed. Kafka options without effect here are logged once.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from oncelog.spark_bridge.errors import warn_once
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import TOPIC_NAME_RULE, is_valid_topic_name
from oncelog.storage.settings import (
    REFUSED,
    Choice,
    Either,
    EnumMember,
    Flag,
    Nothing,
    Number,
    Setting,
    refused,
    settings_of,
    unknown,
)

SPARKS_OWN: Final = ("path", "paths", "checkpointLocation", "queryName")
"""Options that Spark itself adds."""

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

DURATION: Final = f"a whole number and one of {', '.join(_UNIT_MS)}"
"""The allowed values of a time."""

PASSWORDS: Final = (
    "password",
    "sasl.jaas.config",
    "sasl.password",
    "user.password",
    "kafka.password",
    "kafka.sasl.jaas.config",
    "kafka.sasl.password",
)
"""Options that would have a password. Spark would show it in plans, in its UI and in event logs."""

TOKEN: Final = "token"  # noqa: S105
"""The option that would have a signed token; see ``PASSWORDS``."""

CLIENT_TUNING: Final = (
    "kafka.acks",
    "kafka.allow.auto.create.topics",
    "kafka.auto.commit.interval.ms",
    "kafka.auto.include.jmx.reporter",
    "kafka.batch.size",
    "kafka.buffer.memory",
    "kafka.check.crcs",
    "kafka.client.*",
    "kafka.compression.*",
    "kafka.config.providers*",
    "kafka.connections.*",
    "kafka.default.api.timeout.ms",
    "kafka.delivery.timeout.ms",
    "kafka.enable.idempotence",
    "kafka.enable.metrics.push",
    "kafka.exclude.internal.topics",
    "kafka.fetch.*",
    "kafka.group.*",
    "kafka.heartbeat.interval.ms",
    "kafka.isolation.level",
    "kafka.linger.ms",
    "kafka.max.block.ms",
    "kafka.max.in.flight.requests.per.connection",
    "kafka.max.partition.fetch.bytes",
    "kafka.max.poll.*",
    "kafka.max.request.size",
    "kafka.metadata.*",
    "kafka.metric.reporters",
    "kafka.metrics.*",
    "kafka.partition.assignment.strategy",
    "kafka.partitioner.*",
    "kafka.receive.buffer.bytes",
    "kafka.reconnect.*",
    "kafka.request.timeout.ms",
    "kafka.retries",
    "kafka.retry.*",
    "kafka.sasl.*",
    "kafka.security.*",
    "kafka.send.buffer.bytes",
    "kafka.session.timeout.ms",
    "kafka.socket.*",
    "kafka.ssl.*",
    "kafka.transaction.*",
    "kafka.transactional.id",
)
"""Tuning of Kafka's clients, for reads or writes: accepted where supported, else logged."""


def client_option(kind: type[Any], setting: str, name: str, **changed: Any) -> Setting:
    """An option that is a client setting, with the setting's declaration except for ``changed``.

    Leaving it out stands for ``None``.
    """
    found = settings_of(kind)[setting]
    if isinstance(found.rule, Either):
        changed["rule"] = next(one for one in found.rule.rules if not isinstance(one, Nothing))
    return dataclasses.replace(found, name=name, **changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionNames:
    """The options of a read or a write; ``docs/SETTINGS.md`` has the accepted ones as a table.

    ``aliases``: Kafka's spelling → ours. ``ignored``: names or glob patterns of options without
    effect, in addition to ``CLIENT_TUNING``. ``refused``: name → what to do instead.
    """

    accepted: tuple[Setting, ...]
    aliases: Mapping[str, str]
    ignored: tuple[str, ...]
    refused: Mapping[str, str]

    def option(self, name: str) -> Setting:
        """The declaration of an accepted option."""
        return next(one for one in self.accepted if one.name == name)

    @property
    def names(self) -> list[str]:
        """The accepted options, and Kafka's spellings."""
        return [*(one.name for one in self.accepted), *self.aliases]

    def own_name(self, key: str, value: str) -> str | None:
        """The name, in lower case, under which an option counts; ``None`` if it is ignored."""
        lower = key.lower()
        aliases = {alias.lower(): name.lower() for alias, name in self.aliases.items()}
        name = aliases.get(lower, lower)
        if name in {one.name.lower() for one in self.accepted}:
            return name
        if lower in (*PASSWORDS, TOKEN):
            # Without its value. Not ignored: a program that means to log in must not be another.
            user, what = ("", "token") if lower == TOKEN else ("user, and ", "password")
            raise InvalidSettingError(
                f"{key} is not allowed: Spark shows options",
                advice=f"give {user}as {what}.file the path of a file with the {what}",
            )
        advice = {item.lower(): text for item, text in self.refused.items()}.get(lower)
        if advice is not None:
            raise InvalidSettingError(f"{key}={value!r} is not allowed", advice=advice)
        known = (*SPARKS_OWN, *self.ignored, *CLIENT_TUNING)
        if not any(fnmatch.fnmatchcase(lower, pattern.lower()) for pattern in known):
            # Without its value, which may be a password.
            raise unknown(key, key, self.names)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOptions:
    """The options that were given, under our names in lower case."""

    names: OptionNames
    values: dict[str, str] = field(default_factory=dict)
    path: str | None = None
    paths: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, str], names: OptionNames) -> GivenOptions:
        """Sort the options: accepted ones, Spark's own, ignored and unknown ones."""
        values: dict[str, str] = {}
        passed_over = []
        for key, value in options.items():
            name = names.own_name(key, value)
            if name is None:
                passed_over += [key] if key.lower() not in map(str.lower, SPARKS_OWN) else []
                continue
            if values.get(name, value) != value:
                raise InvalidSettingError(
                    f"{key}={value!r} and {name}={values[name]!r} differ", advice="give one of them"
                )
            values[name] = value
        if passed_over:
            # Without their values: some are passwords.
            warn_once(f"options without effect in oncelog: {', '.join(sorted(passed_over))}")
        paths = tuple(_path_list(options["paths"])) if "paths" in options else ()
        return cls(names=names, values=values, path=options.get("path"), paths=paths)

    def has(self, name: str) -> bool:
        """Whether the option was given."""
        return name.lower() in self.values

    def text(self, name: str) -> str | None:
        """The option's value as given, not empty, or ``None``."""
        value = self.values.get(name.lower())
        if value is not None and not value.strip():
            raise self.refuse(name, "text that is not empty")
        return value

    def value(self, name: str) -> Any:
        """The option's value as declared, or its default; words may have any case."""
        option, text = self.names.option(name), self.values.get(name.lower())
        if text is None:
            return option.default
        word = text.strip()
        if isinstance(option.rule, Flag):
            if word.lower() not in ("true", "false"):
                raise self.refuse(name, "true or false")
            return word.lower() == "true"
        taken: Any = REFUSED
        if isinstance(option.rule, Choice | EnumMember):
            taken = option.rule.take(word.lower())
        elif not isinstance(option.rule, Number):
            taken = option.rule.take(text) if word else REFUSED
        elif re.fullmatch(r"-?[0-9]{1,19}", word):
            taken = option.rule.take(int(word))
        if taken is REFUSED:
            raise self.refuse(name, option.rule.allowed)
        return taken

    def duration_ms(self, name: str) -> int:
        """The option as a time in ms: a number with a unit, as ``15m``, or in ms without one."""
        value = self.values.get(name.lower(), self.names.option(name).default)
        found = re.fullmatch(r"([0-9]{1,12})\s*([a-z]*)", value.strip().lower())
        unit_ms = _UNIT_MS.get(found.group(2) or "ms") if found else None
        if found is None or unit_ms is None:
            raise self.refuse(name, DURATION)
        return int(found.group(1)) * unit_ms

    def refuse(self, name: str, allowed: str) -> InvalidSettingError:
        """The error for an option's value."""
        return refused(name, self.values.get(name.lower()), allowed)


def check_topic(option: str, topic: str) -> None:
    """Reject an invalid topic name."""
    if not is_valid_topic_name(topic):
        raise InvalidSettingError(
            f"{option}: {topic!r} is not a topic name", advice=f"give {TOPIC_NAME_RULE}"
        )


def _path_list(text: str) -> list[str]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, list) or not all(isinstance(item, str) for item in parsed):
        raise refused("paths", text, "a JSON list of topics")
    return parsed
