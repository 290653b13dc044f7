"""What the console may change, if it was started with ``--write``: a few commands as forms.

Each action names the ``oncelog`` command that it equals. A form leads to a page that shows the
command and what will happen; only that page's form does it. Both are POST with a token.
"""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from oncelog.api.admin.admin import AsyncAdmin
from oncelog.storage.exceptions import (
    GroupIdNotFoundError,
    InvalidRequestError,
    NonEmptyGroupError,
)
from oncelog.storage.model import (
    EARLIEST_TIMESTAMP,
    INT32_MAX,
    INT64_MAX,
    LATEST_TIMESTAMP,
    TopicPartition,
)

VALUE_CHARS_MAX: Final = 1_000
"""Of one field of a form."""

Values: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a form; ``choices`` if only these are allowed."""

    name: str
    label: str
    hint: str = ""
    choices: tuple[str, ...] = ()
    is_optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something to do: its form, the arguments of its command, what it leads to, and the doing.

    ``run`` returns what was done, in a sentence.
    """

    name: str
    title: str
    fields: tuple[Field, ...]
    leads_to: str
    arguments: Callable[[Values], list[str]]
    run: Callable[[AsyncAdmin, Values], Awaitable[str]]

    def checked(self, given: Mapping[str, object]) -> dict[str, str]:
        """The fields' values; ``InvalidRequestError`` names one that is missing or too long."""
        found: dict[str, str] = {}
        for one in self.fields:
            value = given.get(one.name, "")
            text = value if isinstance(value, str) else ""
            if not text and not one.is_optional:
                raise InvalidRequestError(f"{one.label!r} is empty", advice="fill it in")
            if len(text) > VALUE_CHARS_MAX:
                raise InvalidRequestError(
                    f"{one.label!r} has {len(text)} characters",
                    advice=f"give at most {VALUE_CHARS_MAX}",
                )
            if one.choices and text not in one.choices:
                raise InvalidRequestError(
                    f"{one.label}={text!r} is not allowed",
                    advice=f"give one of {', '.join(one.choices)}",
                )
            found[one.name] = text
        # What is no number is refused before anything is confirmed.
        self.arguments(found)
        return found

    def command(self, values: Values, options: Sequence[str] = ()) -> str:
        """The command line that does the same."""
        return shlex.join(["oncelog", *self.arguments(values), *options])


# --- fields -----------------------------------------------------------------------------------


def _whole(values: Values, name: str, most: int = INT64_MAX) -> int:
    text = values[name].strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= most):
        raise InvalidRequestError(
            f"{name}={values[name]!r} is not a whole number", advice=f"give one from 0 to {most}"
        )
    return int(text)


def _brokers(values: Values) -> tuple[int, ...]:
    parts = [part.strip() for part in values["replicas"].split(",")]
    if not all(part.isascii() and part.isdecimal() and int(part) <= INT32_MAX for part in parts):
        raise InvalidRequestError(
            f"replicas={values['replicas']!r} is not a list of brokers",
            advice="give their ids, preferred leader first, as in 1,2,3",
        )
    return tuple(map(int, parts))


def _time_ms(values: Values) -> int:
    try:
        moment = datetime.datetime.fromisoformat(values["at"].strip())
    except ValueError:
        raise InvalidRequestError(
            f"{values['at']!r} is not a time", advice="give one like 2026-01-31T12:00, in UTC"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    return max(int(moment.timestamp() * 1_000), 0)


# --- what is done -----------------------------------------------------------------------------


def _place(values: Values) -> TopicPartition:
    return TopicPartition(values["topic"], _whole(values, "partition", INT32_MAX))


async def _abort_hanging(admin: AsyncAdmin, values: Values) -> str:
    done = await admin.abort_hanging_transaction(
        _place(values), start_offset=_whole(values, "offset")
    )
    return (
        f"Aborted the transaction of producer {done.producer_id}, epoch {done.producer_epoch}, on "
        f"{done.topic_partition} from offset {done.start_offset} on."
    )


async def _abort(admin: AsyncAdmin, values: Values) -> str:
    is_visible = await admin.abort_transaction(values["id"])
    rest = "." if is_visible else "; some partitions get their markers later."
    return f"Aborted the transaction of {values['id']}{rest}"


async def _reassign(admin: AsyncAdmin, values: Values) -> str:
    tp, brokers = _place(values), _brokers(values)
    await admin.reassign_partition(tp.topic, tp.partition, brokers)
    return f"{tp} moves to brokers {', '.join(map(str, brokers))}; its topic shows the progress."


async def _drain(admin: AsyncAdmin, values: Values) -> str:
    broker = _whole(values, "broker", INT32_MAX)
    await admin.drain_broker(broker)
    return f"Broker {broker} is being drained; Brokers shows how many replicas are left."


async def _resume(admin: AsyncAdmin, values: Values) -> str:
    broker = _whole(values, "broker", INT32_MAX)
    await admin.resume_broker(broker)
    return f"Broker {broker} is used again."


async def _reset(admin: AsyncAdmin, values: Values) -> str:
    group_id, topic = values["group"], values["topic"]
    try:
        group = await admin.describe_group(group_id)
    except GroupIdNotFoundError:
        group = None
    if group is not None and group.members:
        count = len(group.members)
        raise NonEmptyGroupError(
            f"the group {group_id!r} has {count} {'member' if count == 1 else 'members'}, which "
            "would overwrite the new offsets with theirs",
            advice="stop its consumers first",
        )
    described = await admin.describe_topic(topic)
    tps = [TopicPartition(topic, one.partition) for one in described.partitions]
    starts = await admin.list_offsets(dict.fromkeys(tps, EARLIEST_TIMESTAMP))
    ends = await admin.list_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP))
    if values["to"] == "earliest":
        targets = starts
    elif values["to"] == "latest":
        targets = ends
    elif values["to"] == "offset":
        targets = dict.fromkeys(tps, _whole(values, "at"))
    else:
        found = await admin.list_offsets(dict.fromkeys(tps, _time_ms(values)))
        targets = {tp: offset if offset >= 0 else ends[tp] for tp, offset in found.items()}
    planned = {tp: min(max(targets[tp], starts[tp]), ends[tp]) for tp in tps}
    await admin.alter_group_offsets(group_id, planned)
    return f"Set the offsets of {group_id} for {len(planned)} partitions of {topic}."


def _reset_arguments(values: Values) -> list[str]:
    to = values["to"]
    target = {
        "earliest": lambda: ["--to-earliest"],
        "latest": lambda: ["--to-latest"],
        "offset": lambda: ["--to-offset", str(_whole(values, "at"))],
        "time": lambda: ["--to-datetime", _utc(_time_ms(values))],
    }[to]()
    group, topic = values["group"], values["topic"]
    return ["groups", "reset-offsets", group, "--topic", topic, *target, "--execute"]


def _utc(time_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(time_ms / 1_000, datetime.timezone.utc)
    return moment.isoformat(timespec="milliseconds")


_TOPIC: Final = Field(name="topic", label="topic")
_PARTITION: Final = Field(name="partition", label="partition")
_BROKER: Final = Field(name="broker", label="broker", hint="its number")

ACTIONS: Final[Mapping[str, Action]] = {
    one.name: one
    for one in (
        Action(
            name="abort-hanging",
            title="Abort a hanging transaction",
            fields=(
                _TOPIC,
                _PARTITION,
                Field(name="offset", label="start offset", hint="where it begins"),
            ),
            leads_to="The leader writes the missing marker. Readers go on; what the transaction "
            "wrote there is never seen. It is refused if some transactional id may still end it.",
            arguments=lambda values: [
                *("transactions", "abort", "--topic", values["topic"]),
                *("--partition", str(_place(values).partition)),
                *("--start-offset", str(_whole(values, "offset"))),
            ],
            run=_abort_hanging,
        ),
        Action(
            name="abort",
            title="Abort an open transaction",
            fields=(Field(name="id", label="transactional id"),),
            leads_to="Its producer sees the same as after a transaction timeout: a commit fails, "
            "and it may begin again. Nothing that it wrote is ever seen.",
            arguments=lambda values: ["transactions", "abort", values["id"]],
            run=_abort,
        ),
        Action(
            name="reassign",
            title="Move a partition",
            fields=(
                _TOPIC,
                _PARTITION,
                Field(name="replicas", label="brokers", hint="preferred leader first: 2,3,1"),
            ),
            leads_to="New replicas copy the log. Once all are in sync, the old ones and their "
            "files are deleted.",
            arguments=lambda values: [
                *("partitions", "reassign", values["topic"], str(_place(values).partition)),
                *("--replicas", ",".join(map(str, _brokers(values)))),
            ],
            run=_reassign,
        ),
        Action(
            name="drain",
            title="Drain a broker",
            fields=(_BROKER,),
            leads_to="It gives up leadership and gets no new replicas. Its replicas move to other "
            "brokers, ten partitions at a time.",
            arguments=lambda values: ["brokers", "drain", str(_whole(values, "broker", INT32_MAX))],
            run=_drain,
        ),
        Action(
            name="resume",
            title="Use a drained broker again",
            fields=(_BROKER,),
            leads_to="It gets replicas and leaders again. What has moved away stays there.",
            arguments=lambda values: [
                *("brokers", "resume", str(_whole(values, "broker", INT32_MAX))),
            ],
            run=_resume,
        ),
        Action(
            name="reset-offsets",
            title="Reset the offsets of a group",
            fields=(
                Field(name="group", label="group"),
                _TOPIC,
                Field(name="to", label="to", choices=("earliest", "latest", "offset", "time")),
                Field(
                    name="at",
                    label="offset or time",
                    hint="for these two: 1200, or 2026-01-31T12:00 in UTC",
                    is_optional=True,
                ),
            ),
            leads_to="Its consumers begin there in every partition of the topic when they start "
            "again: they read records again, or never. The group must have no members.",
            arguments=_reset_arguments,
            run=_reset,
        ),
    )
}
