"""Every state that a small world can reach, breadth first; and the shortest way to a wrong one.

A *world* is parts (a node with its machines, the controller) and one value beside them. A step is
taken in a copy of the world, which shares with the one before it all parts that the step does not
``own``. Two worlds are the same if their parts and values are equal field by field (``frozen``);
each such state is looked at once. A model says what can happen in a world, and what must be true.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from oncelog.storage.errors import InvariantViolation

SECONDS_CHECKED = 64
"""States between two looks at the clock."""


class BrokenPromiseError(AssertionError):
    """Something that must be true of every state is not."""


class ExploredWorld:
    """Parts by name, shared with other worlds until a step owns them; ``facts`` are hashable."""

    __slots__ = ("_keys", "_owned", "_parts", "facts")

    def __init__(
        self,
        parts: dict[Hashable, Any],
        facts: Any,
        keys: dict[Hashable, Hashable] | None = None,
        owned: set[Hashable] | None = None,
    ) -> None:
        self._parts = parts
        self._keys = {} if keys is None else keys
        self._owned = set(parts) if owned is None else owned
        self.facts = facts

    def next(self) -> ExploredWorld:
        """A copy to take a step in."""
        return ExploredWorld(dict(self._parts), self.facts, dict(self._keys), set())

    def see(self, name: Hashable) -> Any:
        """A part, to be read only."""
        return self._parts[name]

    def own(self, name: Hashable) -> Any:
        """A part, to be changed in this world only."""
        if name not in self._owned:
            self._parts[name] = cloned(self._parts[name])
            self._owned.add(name)
        self._keys.pop(name, None)
        return self._parts[name]

    def owns(self, name: Hashable) -> bool:
        """Whether the part has been changed in this world."""
        return name in self._owned

    def put(self, name: Hashable, part: Any) -> None:
        """Another part under this name, which this world owns."""
        self._parts[name] = part
        self._owned.add(name)
        self._keys.pop(name, None)

    def keys(self, of: Callable[[Any], Hashable]) -> tuple[Hashable, ...]:
        """What tells each part from others, by ``of``, which sees only those that have changed."""
        for name in self._parts:
            if name not in self._keys:
                self._keys[name] = of(self._parts[name])
        return tuple(self._keys[name] for name in self._parts)


Step = tuple[str, Callable[[ExploredWorld], None]]


class Model(Protocol):
    """A world and its rules. ``steps`` only reads; each changes the copy that it is given."""

    name: str

    def start(self) -> ExploredWorld:
        """The first state."""

    def steps(self, world: ExploredWorld) -> Iterable[Step]:
        """What can happen, each with its line in a story; one that changes nothing is harmless."""

    def is_in_scope(self, world: ExploredWorld) -> bool:
        """Whether to go on from here."""

    def key(self, world: ExploredWorld, frozen_part: Callable[[Any], Hashable]) -> Hashable:
        """What tells this state from others."""

    def check(self, world: ExploredWorld) -> None:
        """Raises ``BrokenPromiseError``."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was explored. ``story``: the steps to the broken promise, which ``broken`` tells."""

    model: str
    states: int
    transitions: int
    depth: int
    seconds: float
    is_complete: bool
    story: tuple[str, ...] = ()
    broken: str = ""

    def __str__(self) -> str:
        extent = "all" if self.is_complete else f"all up to depth {max(self.depth - 1, 0)}"
        told = (
            f"{self.model}: {self.states} states ({extent}), {self.transitions} transitions, "
            f"depth {self.depth}, {self.states / max(self.seconds, 1e-6):.0f} states/s"
        )
        if self.broken:
            steps = (f"  {number}. {step}" for number, step in enumerate(self.story, 1))
            told = "\n".join((told, f"BROKEN: {self.broken}", *steps))
        return told


def explore(model: Model, *, seconds: float, states_max: int = 10_000_000) -> Report:
    """Look at every state in scope, the nearest first, until one is wrong or a bound is reached.

    Not complete up to ``depth``, which was begun, but to the one before it.
    """
    began = time.monotonic()
    interned: dict[Hashable, int] = {}

    def frozen_part(part: Any) -> int:
        return interned.setdefault(frozen(part), len(interned))

    origins: list[tuple[int, str]] = [(-1, "")]
    depths, transitions, is_complete = [0], 0, True
    first = model.start()
    seen = {model.key(first, frozen_part)}
    queue = deque([(0, first)])

    def report(broken: str = "", last: tuple[int, str] | None = None) -> Report:
        return Report(
            model=model.name,
            states=len(seen),
            transitions=transitions,
            depth=depths[-1],
            seconds=time.monotonic() - began,
            is_complete=is_complete and not broken,
            story=() if last is None else _story(origins, last),
            broken=broken,
        )

    while queue:
        number, world = queue.popleft()
        is_late = number % SECONDS_CHECKED == 0 and time.monotonic() - began > seconds
        if is_late or len(seen) >= states_max:
            is_complete = False
            break
        for label, step in model.steps(world):
            following = world.next()
            try:
                step(following)
                model.check(following)
            except (BrokenPromiseError, InvariantViolation) as error:
                return report(str(error), (number, label))
            transitions += 1
            key = model.key(following, frozen_part)
            if key in seen or not model.is_in_scope(following):
                continue
            seen.add(key)
            origins.append((number, label))
            depths.append(depths[number] + 1)
            queue.append((len(origins) - 1, following))
    return report()


def _story(origins: list[tuple[int, str]], last: tuple[int, str]) -> tuple[str, ...]:
    steps, (number, label) = [], last
    while number >= 0:
        steps.append(label)
        number, label = origins[number]
    return tuple(reversed(steps))


# --- copies and keys of machines ------------------------------------------------------------------

OMITTED: dict[str, frozenset[str]] = {}
"""By class: fields that no decision looks at, or that the model accounts for elsewhere."""

_ATOMS = (int, str, bytes, float, type(None), enum.Enum, tuple, frozenset)
_NOTHING: frozenset[str] = frozenset()
_IMMUTABLE: set[type] = {type}
_MUTABLE: set[type] = set()
_fields: dict[type, tuple[str, ...]] = {}


def cloned(thing: Any, memo: dict[int, Any] | None = None) -> Any:
    """A deep copy that shares what cannot change: tuples, too, hold only that in machines."""
    kind = type(thing)
    if kind in _IMMUTABLE or _is_immutable(thing, kind):
        return thing
    memo = {} if memo is None else memo
    if id(thing) in memo:
        return memo[id(thing)]
    if kind is dict:
        made: Any = {
            key: value if type(value) in _IMMUTABLE else cloned(value, memo)
            for key, value in thing.items()
        }
    elif kind is list:
        made = [value if type(value) in _IMMUTABLE else cloned(value, memo) for value in thing]
    elif kind in (set, deque):
        made = thing.copy()
    else:
        made = memo[id(thing)] = kind.__new__(kind)
        for name in _names(thing, kind):
            value = getattr(thing, name)
            if type(value) not in _IMMUTABLE:
                value = cloned(value, memo)
            setattr(made, name, value)
    memo[id(thing)] = made
    return made


def frozen(thing: Any, memo: dict[int, int] | None = None) -> Hashable:
    """What a thing is, field by field, whatever object it is."""
    kind = type(thing)
    if kind in _IMMUTABLE or _is_immutable(thing, kind):
        return thing  # type: ignore[no-any-return]
    memo = {} if memo is None else memo
    if id(thing) in memo:
        return memo[id(thing)]
    memo[id(thing)] = len(memo)
    if kind is dict:
        values: Any = [key for pair in thing.items() for key in pair]
    elif kind in (list, deque):
        values = thing
    elif kind is set:
        return frozenset(thing)
    else:
        omitted = OMITTED.get(kind.__name__, _NOTHING)
        values = [getattr(thing, n) for n in _names(thing, kind) if n not in omitted]
        values.append(kind)
    return tuple([v if type(v) in _IMMUTABLE else frozen(v, memo) for v in values])


def _is_immutable(thing: Any, kind: type) -> bool:
    if kind in _MUTABLE:
        return False
    if isinstance(thing, _ATOMS) or (
        isinstance(thing, msgspec.Struct) and kind.__struct_config__.frozen  # type: ignore[attr-defined]
    ):
        _IMMUTABLE.add(kind)
        return True
    _MUTABLE.add(kind)
    return False


def share(kind: type) -> None:
    """Things of this kind do not change in any model: worlds share them, as equal ones."""
    _IMMUTABLE.add(kind)


def _names(thing: Any, kind: type) -> tuple[str, ...]:
    """The fields of a thing: its slots, and what it has besides."""
    slots = _fields.get(kind)
    if slots is None:
        slots = _fields[kind] = tuple(dict.fromkeys(_slots(kind)))
    return (*slots, *thing.__dict__) if hasattr(thing, "__dict__") else slots


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        yield from (name for name in names if name not in ("__dict__", "__weakref__"))
