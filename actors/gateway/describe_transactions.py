"""Transactions and producers, for those who look after Kafka's clients: listing and describing.

A node of Kafka lists the transactions of its own coordinators, and clients ask every node. So the
gateway lists the shards that its broker leads: each transaction is in one node's list.

A pattern for transactional ids is a regular expression of RE2, which fits whole ids. It comes from
a stranger, and Python's ``re`` may take for ever over one. So it becomes an automaton of
*positions*, its characters and classes, which reads each character of an id once. What it does not
know it refuses: references, look-around, flags, assertions within the pattern.

| request | whom it is for |
|---|---|
| DescribeProducers | the leaders of partitions |
| ListTransactions | this broker's transaction coordinators |
| DescribeTransactions | the coordinator of each transactional id |

Source: KIP-664, KIP-994, KIP-1152; Glushkov, "The abstract theory of automata" (1961).

One file: the requests, and the automaton that only one of them needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from oncelog.actors.gateway.calls import FRESH_MS, Call
from oncelog.actors.gateway.cluster_admin import (
    PARTITIONS_AT_ONCE_MAX,
    Handler,
    ask_leader,
    deadline_of,
    in_parallel,
    text_of,
    throttle_of,
)
from oncelog.actors.gateway.errors import of_coordinator, of_leader
from oncelog.actors.gateway.messages import describe_transactions as describing
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from oncelog.actors.gateway.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from oncelog.actors.gateway.messages.list_transactions import TransactionState as ListedState
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages import partition, transaction
from oncelog.actors.protocol.messages.partition import ProducerDescription
from oncelog.actors.protocol.messages.transaction import ANY_DURATION_MS, TransactionDescription
from oncelog.actors.protocol.transaction.transaction_state import TransactionState
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TRANSACTION_STATE_TOPIC, TopicPartition

STATES: Final = tuple(
    state.value
    for state in TransactionState
    if state not in (TransactionState.DEAD, TransactionState.PREPARED)
)
"""Kafka's names of the states; in Kafka a transaction that is prepared is still ongoing."""

PATTERN_CHARS_MAX: Final = 249
POSITIONS_MAX: Final = 250
"""Characters and classes that a pattern of transactional ids has once its repeats are written out;
beyond these it is refused."""

ATOMS_MAX: Final = 1_000
"""Groups, characters and classes that are read of a pattern, again for each time that a repeat
wants them; beyond these it is refused."""

GROUPS_DEEP_MAX: Final = 20
"""Groups within each other; beyond that a pattern is refused."""

MOVES_MAX: Final = 10_000
"""Moves of an automaton that are remembered; beyond that all are forgotten."""

_IDS_A_TURN: Final = 16
"""So many ids are compared with a pattern before the event loop's other callbacks run."""


# --- producers --------------------------------------------------------------------------------


async def describe_producers(
    call: Call, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """The producers that leaders of partitions know, with their open transactions."""
    timeout_ms = deadline_of(0) - loop_ms()
    wanted = dict.fromkeys(
        TopicPartition(topic.name, number)
        for topic in request.topics
        for number in topic.partition_indexes
    )
    replies = await in_parallel(
        wanted,
        lambda tp: ask_leader(
            *(call, tp, partition.DescribeProducersRequest(topic_partition=tp)),
            timeout_ms=timeout_ms,
        ),
        at_once_max=PARTITIONS_AT_ONCE_MAX,
    )
    by_topic: dict[str, list[PartitionResponse]] = {}
    for tp, reply in zip(wanted, replies, strict=True):
        described = PartitionResponse(
            partition_index=tp.partition,
            error_code=of_leader(reply.error),
            error_message=text_of(reply, f"producers of {tp}: {reply.error.name}"),
            active_producers=[_as_state(one) for one in reply.producers],
        )
        by_topic.setdefault(tp.topic, []).append(described)
    return DescribeProducersResponse(
        throttle_time_ms=throttle_of(*replies),
        topics=[
            TopicResponse(name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ],
    )


def _as_state(one: ProducerDescription) -> ProducerState:
    return ProducerState(
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        last_sequence=one.last_sequence,
        last_timestamp=one.last_timestamp_ms,
        coordinator_epoch=one.coordinator_epoch,
        current_txn_start_offset=one.current_txn_first_offset,
    )


# --- transactions -----------------------------------------------------------------------------


async def list_transactions(
    call: Call, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """The transactional ids of this broker's coordinators that pass all filters."""
    known = [state for state in request.state_filters if state in STATES]
    unknown = [state for state in request.state_filters if state not in STATES]
    pattern = None
    try:
        if request.transactional_id_pattern:
            pattern = Pattern(request.transactional_id_pattern)
    except ValueError:
        return ListTransactionsResponse(error_code=int(ErrorCode.INVALID_REGULAR_EXPRESSION))
    if unknown and not known:
        return ListTransactionsResponse(unknown_state_filters=unknown)
    asked = transaction.DescribeTransactionsRequest(
        states=_ours_of(known),
        producer_ids=tuple(request.producer_id_filters),
        running_longer_than_ms=max(request.duration_filter, ANY_DURATION_MS),
    )
    timeout_ms = deadline_of(0) - loop_ms()
    replies = await in_parallel(
        await _own_shards(call),
        lambda shard: ask_leader(call, shard, asked, timeout_ms=timeout_ms),
        at_once_max=PARTITIONS_AT_ONCE_MAX,
    )
    if any(reply.error is not ErrorCode.NONE for reply in replies):
        # Clients ask again for this one code only.
        loading = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return ListTransactionsResponse(error_code=loading, unknown_state_filters=unknown)
    found = [one for reply in replies for one in reply.transactions]
    if pattern is not None:
        found = await _matching(pattern, found)
    return ListTransactionsResponse(
        throttle_time_ms=throttle_of(*replies),
        unknown_state_filters=unknown,
        transaction_states=[
            ListedState(
                transactional_id=one.transactional_id,
                producer_id=producer_id,
                transaction_state=_kafkas(one.state),
            )
            for one in found
            for producer_id in _producer_ids(one, set(request.producer_id_filters))
        ],
    )


def _producer_ids(one: TransactionDescription, wanted: Collection[int]) -> Iterable[int]:
    """The producer id of a transactional id, or those of its writers that are looked for.

    Who looks for the owner of a producer id finds it by the id that he asked about.
    """
    if not wanted:
        return (one.producer_id,)
    others = [member.producer_id for member in one.members]
    if one.prepared is not None:
        others.append(one.prepared.producer_id)
    return [each for each in dict.fromkeys((one.producer_id, *others)) if each in wanted]


async def _own_shards(call: Call) -> list[TopicPartition]:
    """The shards of coordinators that this broker leads, and those that nobody leads now."""
    own = (call.cluster.broker_id, -1)
    view, topic = call.cluster.view, TRANSACTION_STATE_TOPIC
    _, topics = await view.topics((topic,), as_of_ms=loop_ms() - FRESH_MS)
    if topic not in topics:
        # Nothing is known yet: the error of the one that there always is, is the answer.
        return [TopicPartition(topic, 0)]
    return [
        TopicPartition(topic, one.partition)
        for one in topics[topic].partitions
        if one.leader in own
    ]


def _ours_of(states: Iterable[str]) -> tuple[str, ...]:
    """The states that are meant by Kafka's names."""
    names = set(states)
    if TransactionState.ONGOING.value in names:
        names.add(TransactionState.PREPARED.value)
    return tuple(sorted(names))


def _kafkas(state: str) -> str:
    is_prepared = state == TransactionState.PREPARED.value
    return TransactionState.ONGOING.value if is_prepared else state


async def _matching(
    pattern: Pattern, found: Sequence[TransactionDescription]
) -> list[TransactionDescription]:
    """Those whose id the pattern fits, with turns for other callbacks."""
    matching = []
    for number, one in enumerate(found):
        if number % _IDS_A_TURN == 0:
            await asyncio.sleep(0)
        if pattern.fits(one.transactional_id):
            matching.append(one)
    return matching


async def describe_transactions(
    call: Call, request: describing.DescribeTransactionsRequest
) -> describing.DescribeTransactionsResponse:
    """The state of each transactional id, and the partitions of its open transaction."""
    timeout_ms = deadline_of(0) - loop_ms()
    ids = list(dict.fromkeys(request.transactional_ids))

    async def ask(transactional_id: str) -> transaction.DescribeTransactionsReply:
        # One by one: an id that is unknown would be the error of all.
        asked = transaction.DescribeTransactionsRequest(transactional_ids=(transactional_id,))
        shard = await call.shard(TRANSACTION_STATE_TOPIC, transactional_id)
        if shard is None:
            return asked.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return await ask_leader(call, shard, asked, timeout_ms=timeout_ms)

    replies = await in_parallel(ids, ask, at_once_max=PARTITIONS_AT_ONCE_MAX)
    return describing.DescribeTransactionsResponse(
        throttle_time_ms=throttle_of(*replies),
        transaction_states=[
            _described(transactional_id, reply)
            for transactional_id, reply in zip(ids, replies, strict=True)
        ],
    )


def _described(
    transactional_id: str, reply: transaction.DescribeTransactionsReply
) -> describing.TransactionState:
    found = (one for one in reply.transactions if one.transactional_id == transactional_id)
    one = next(found, None)
    if reply.error is not ErrorCode.NONE or one is None:
        error = reply.error or ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return describing.TransactionState(
            error_code=of_coordinator(error), transactional_id=transactional_id
        )
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(one.partitions):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return describing.TransactionState(
        transactional_id=transactional_id,
        transaction_state=_kafkas(one.state),
        transaction_timeout_ms=one.transaction_timeout_ms,
        transaction_start_time_ms=one.transaction_start_ms,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        topics=[
            describing.TopicData(topic=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ],
    )


HANDLERS: Final[Mapping[ApiKey, Handler]] = {
    ApiKey.DESCRIBE_PRODUCERS: describe_producers,
    ApiKey.LIST_TRANSACTIONS: list_transactions,
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
}


# --- patterns ---------------------------------------------------------------------------------


class _Class(NamedTuple):
    """A set of characters: those in some ranges, both ends included, or all others."""

    ranges: tuple[tuple[str, str], ...]
    is_negated: bool = False

    def has(self, char: str) -> bool:
        """Whether it has this character."""
        return any(low <= char <= high for low, high in self.ranges) != self.is_negated


class _Part(NamedTuple):
    """A part of a pattern. Positions are bits: where it may begin, and where it may end."""

    may_be_empty: bool
    first: int
    last: int


_EMPTY: Final = _Part(True, 0, 0)
_DOT: Final = _Class((("\n", "\n"),), is_negated=True)
_DIGITS: Final = (("0", "9"),)
_WORDS: Final = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACES: Final = (("\t", "\n"), ("\f", "\r"), (" ", " "))
_CLASSES: Final[Mapping[str, _Class]] = {
    "d": _Class(_DIGITS),
    "D": _Class(_DIGITS, is_negated=True),
    "w": _Class(_WORDS),
    "W": _Class(_WORDS, is_negated=True),
    "s": _Class(_SPACES),
    "S": _Class(_SPACES, is_negated=True),
}
_CONTROLS: Final[Mapping[str, str]] = {"t": "\t", "n": "\n", "f": "\f", "r": "\r", "v": "\v"}


class Pattern:
    """A regular expression that fits whole texts; ``ValueError`` if it is none that is known."""

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_CHARS_MAX:
            raise ValueError(f"a pattern of {len(text)} characters: give {PATTERN_CHARS_MAX}")
        self._text = text
        self._at = 0
        self._deep = 0
        self._atoms = 0
        self._classes: list[_Class] = []
        """The class of each position."""
        self._next: list[int] = []
        """The positions that may follow each, as bits."""
        self._moves: dict[tuple[int, str], int] = {}
        self._accept("^")
        self._whole = self._alternatives()
        if self._at < len(text):
            raise self._error("a group ends that did not begin")

    def fits(self, text: str) -> bool:
        """Whether the whole of ``text`` is one of those that it describes."""
        if not text:
            return self._whole.may_be_empty
        reached = self._at_char(self._whole.first, text[0])
        for char in text[1:]:
            if not reached:
                return False
            reached = self._move(reached, char)
        return bool(reached & self._whole.last)

    def _move(self, reached: int, char: str) -> int:
        """The positions after ``char`` of those that were reached before it."""
        moved = self._moves.get((reached, char))
        if moved is None:
            following = 0
            for position in _bits(reached):
                following |= self._next[position]
            if len(self._moves) >= MOVES_MAX:
                self._moves.clear()
            moved = self._moves[reached, char] = self._at_char(following, char)
        return moved

    def _at_char(self, positions: int, char: str) -> int:
        return sum(1 << one for one in _bits(positions) if self._classes[one].has(char))

    # --- reading --------------------------------------------------------------------------

    def _error(self, what: str) -> ValueError:
        return ValueError(f"pattern {self._text!r} at character {self._at}: {what}")

    def _accept(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _take(self) -> str:
        if self._at >= len(self._text):
            raise self._error("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self) -> _Part:
        part = self._sequence()
        while self._accept("|"):
            other = self._sequence()
            part = _Part(
                part.may_be_empty or other.may_be_empty,
                part.first | other.first,
                part.last | other.last,
            )
        return part

    def _sequence(self) -> _Part:
        part = _EMPTY
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if self._text[self._at :] == "$" and not self._deep:
                self._at += 1
                break
            part = self._joined(part, self._repeated())
        return part

    def _joined(self, part: _Part, after: _Part) -> _Part:
        for position in _bits(part.last):
            self._next[position] |= after.first
        return _Part(
            part.may_be_empty and after.may_be_empty,
            part.first | (after.first if part.may_be_empty else 0),
            after.last | (part.last if after.may_be_empty else 0),
        )

    def _repeated(self) -> _Part:
        """An atom, as often as what follows it says."""
        begin = self._at
        part = self._atom()
        low, high = self._times()
        if (low, high) == (1, 1):
            return part
        if self._at < len(self._text) and self._text[self._at] in "*+?{":
            raise self._error("a repeat of a repeat: put the inner one into a group")
        rest = self._at
        copies = [part]
        # Each copy has positions of its own: it is read again.
        while len(copies) < max(low, high or 0, 1):
            self._at = begin
            copies.append(self._atom())
        self._at = rest
        return self._chain(copies, low, high)

    def _chain(self, copies: Sequence[_Part], low: int, high: int | None) -> _Part:
        """Copies of a part in a row, of which those beyond ``low`` may be missing."""
        if high == 0:
            return _EMPTY
        chained = _EMPTY
        for number, copy in enumerate(copies):
            if high is None and number == len(copies) - 1:
                for position in _bits(copy.last):
                    self._next[position] |= copy.first
            may_be_missing = number >= low
            chained = self._joined(
                chained, copy._replace(may_be_empty=copy.may_be_empty or may_be_missing)
            )
        return chained

    def _times(self) -> tuple[int, int | None]:
        """How often at least and at most, ``None`` without end; a lazy repeat fits the same."""
        times: tuple[int, int | None] = (1, 1)
        if self._accept("*"):
            times = (0, None)
        elif self._accept("+"):
            times = (1, None)
        elif self._accept("?"):
            times = (0, 1)
        elif self._accept("{"):
            times = self._counts()
        else:
            return times
        self._accept("?")
        return times

    def _counts(self) -> tuple[int, int | None]:
        inner, closes, _ = self._text[self._at :].partition("}")
        low, comma, high = inner.partition(",")
        if not (closes and _is_count(low) and (not high or _is_count(high))):
            raise self._error("give {2}, {2,} or {2,5}")
        self._at += len(inner) + 1
        most = int(high) if high else None if comma else int(low)
        if most is not None and most < int(low):
            raise self._error(f"{{{inner}}} is from more to less")
        return int(low), most

    def _atom(self) -> _Part:
        # Groups may be empty, so positions do not count how often they are read.
        self._atoms += 1
        if self._atoms > ATOMS_MAX:
            raise self._error(f"more than {ATOMS_MAX} parts with all repeats")
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return self._position(self._bracketed())
        if char == "\\":
            return self._position(self._escaped())
        if char == ".":
            return self._position(_DOT)
        if char in "*+?{^$":
            raise self._error(f"{char!r} cannot be here")
        return self._position(_Class(((char, char),)))

    def _group(self) -> _Part:
        if not self._accept("?:") and self._accept("?"):
            raise self._error("groups are (...) and (?:...)")
        self._deep += 1
        if self._deep > GROUPS_DEEP_MAX:
            raise self._error(f"more than {GROUPS_DEEP_MAX} groups in each other")
        part = self._alternatives()
        self._deep -= 1
        if not self._accept(")"):
            raise self._error("a group does not end")
        return part

    def _position(self, kind: _Class) -> _Part:
        if len(self._classes) >= POSITIONS_MAX:
            raise self._error(f"more than {POSITIONS_MAX} characters with all repeats")
        bit = 1 << len(self._classes)
        self._classes.append(kind)
        self._next.append(0)
        return _Part(False, bit, bit)

    def _escaped(self) -> _Class:
        char = self._take()
        if char in _CLASSES:
            return _CLASSES[char]
        char = _CONTROLS.get(char, char)
        if char.isalnum():
            raise self._error(f"\\{char} is not known")
        return _Class(((char, char),))

    def _bracketed(self) -> _Class:
        is_negated = self._accept("^")
        ranges: list[tuple[str, str]] = []
        while not ranges or not self._accept("]"):
            if self._accept("[:"):
                raise self._error("names of classes are not known")
            low = self._member()
            if not self._is_range():
                ranges += low
                continue
            self._at += 1
            high = self._member()
            ends = {*low, *high}
            if any(begin != end for begin, end in ends) or low > high:
                raise self._error("a range is from one character to a later one")
            ranges.append((low[0][0], high[0][0]))
        return _Class(tuple(ranges), is_negated)

    def _is_range(self) -> bool:
        """Whether a hyphen is next that is not the class's last character."""
        return self._text[self._at : self._at + 1] == "-" and (
            self._text[self._at + 1 : self._at + 2] not in ("", "]")
        )

    def _member(self) -> tuple[tuple[str, str], ...]:
        char = self._take()
        if char != "\\":
            return ((char, char),)
        kind = self._escaped()
        if kind.is_negated:
            raise self._error("a class that excludes is not known within another")
        return kind.ranges


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 4


def _bits(positions: int) -> Iterable[int]:
    """The numbers of the bits that are set."""
    while positions:
        lowest = positions & -positions
        yield lowest.bit_length() - 1
        positions ^= lowest
