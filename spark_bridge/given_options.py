"""Options as Spark hands them over, sorted into what they mean; for reads and writes alike.

Keys come in lower case and every value as text. An unknown or impossible option is refused with
its name, its value and what is allowed; options of Kafka's that mean nothing here are told once.
"""

from __future__ import annotations

import difflib
import fnmatch
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from oncelog.spark_bridge.errors import tell_once
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import is_valid_topic_name

SPARKS_OWN: Final = ("path", "paths", "checkpointLocation", "queryName")
"""What Spark itself adds to the options."""

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

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
"""What tunes Kafka's clients, in either direction: accepted where it means something, else told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionNames:
    """The options of a read, or of a write. ``docs/SPARK.md`` has the same as a table.

    ``aliases``: Kafka's spelling → ours. ``ignored``: names, or patterns as of files, of what has
    no effect, beside ``CLIENT_TUNING``. ``refused``: name → what to do instead.
    """

    accepted: tuple[str, ...]
    aliases: Mapping[str, str]
    ignored: tuple[str, ...]
    refused: Mapping[str, str]

    def own_name(self, key: str, value: str) -> str | None:
        """The name, in lower case, under which an option counts; ``None`` if it does not."""
        lower = key.lower()
        aliases = {alias.lower(): name.lower() for alias, name in self.aliases.items()}
        name = aliases.get(lower, lower)
        if name in {item.lower() for item in self.accepted}:
            return name
        advice = {item.lower(): text for item, text in self.refused.items()}.get(lower)
        if advice is not None:
            raise InvalidSettingError(f"{key}={value!r} is not allowed: {advice}")
        known = (*SPARKS_OWN, *self.ignored, *CLIENT_TUNING)
        if not any(fnmatch.fnmatchcase(lower, pattern.lower()) for pattern in known):
            raise self._unknown(key, value)
        return None

    def _unknown(self, key: str, value: str) -> InvalidSettingError:
        names = {name.lower(): name for name in (*self.accepted, *self.aliases)}
        close = difflib.get_close_matches(key.lower(), names, n=1)
        known = f"known are {', '.join(self.accepted)}"
        hint = f"did you mean {names[close[0]]}?" if close else known
        return InvalidSettingError(f"there is no option {key}={value!r}; {hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOptions:
    """The options that were given, under their own names in lower case."""

    values: dict[str, str] = field(default_factory=dict)
    path: str | None = None
    paths: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, str], names: OptionNames) -> GivenOptions:
        """Sort the options: accepted ones, Spark's own, those without meaning, unknown ones."""
        values: dict[str, str] = {}
        passed_over = []
        for key, value in options.items():
            name = names.own_name(key, value)
            if name is None:
                passed_over += [key] if key.lower() not in map(str.lower, SPARKS_OWN) else []
                continue
            if values.get(name, value) != value:
                raise InvalidSettingError(f"{key}={value!r} and {name}={values[name]!r} differ")
            values[name] = value
        if passed_over:
            # Not their values: some are passwords.
            tell_once(f"options that mean nothing to oncelog: {', '.join(sorted(passed_over))}")
        paths = tuple(_path_list(options["paths"])) if "paths" in options else ()
        return cls(values=values, path=options.get("path"), paths=paths)

    def has(self, name: str) -> bool:
        """Whether the option was given."""
        return name.lower() in self.values

    def text(self, name: str) -> str | None:
        """The option's value, which is not empty, or ``None``."""
        value = self.values.get(name.lower())
        if value is not None and not value.strip():
            raise self.refuse(name, "text that is not empty")
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        """The option as a truth value."""
        value = self.values.get(name.lower(), str(default)).strip().lower()
        if value not in ("true", "false"):
            raise self.refuse(name, "true or false")
        return value == "true"

    def integer(self, name: str, *, default: int, low: int, high: int) -> int:
        """The option as a whole number from ``low`` to ``high``, both inclusive."""
        number = self.maybe_integer(name, low=low, high=high)
        return default if number is None else number

    def maybe_integer(self, name: str, *, low: int, high: int) -> int | None:
        """The same, or ``None`` if it was not given."""
        value = self.values.get(name.lower())
        if value is None:
            return None
        if not re.fullmatch(r"-?[0-9]{1,19}", value.strip()) or not low <= int(value) <= high:
            raise self.refuse(name, f"a whole number from {low} to {high}")
        return int(value)

    def duration_ms(self, name: str, *, default: int) -> int:
        """The option as a time: a number and its unit, as ``15m``; milliseconds without one."""
        value = self.values.get(name.lower())
        if value is None:
            return default
        found = re.fullmatch(r"([0-9]{1,12})\s*([a-z]*)", value.strip().lower())
        unit_ms = _UNIT_MS.get(found.group(2) or "ms") if found else None
        if found is None or unit_ms is None:
            raise self.refuse(name, f"a whole number and one of {', '.join(_UNIT_MS)}")
        return int(found.group(1)) * unit_ms

    def choice(self, name: str, *choices: str) -> str:
        """The option as one of ``choices``, of which the first is the default."""
        value = self.values.get(name.lower(), choices[0]).strip().lower()
        if value not in choices:
            raise self.refuse(name, f"one of {', '.join(choices)}")
        return value

    def refuse(self, name: str, allowed: str) -> InvalidSettingError:
        """The refusal of an option's value."""
        return InvalidSettingError(
            f"{name}={self.values.get(name.lower())!r} is not allowed: {allowed}"
        )


def check_topic(option: str, topic: str) -> None:
    """Refuse what is no topic's name."""
    if not is_valid_topic_name(topic):
        raise InvalidSettingError(
            f"{option}: {topic!r} is not a topic name: 1 to 249 of letters, digits, '.', '_', '-'"
        )


def _path_list(text: str) -> list[str]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, list) or not all(isinstance(item, str) for item in parsed):
        raise InvalidSettingError(f"paths={text!r} is not allowed: a JSON list of topics")
    return parsed
