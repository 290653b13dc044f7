"""Text that anybody may have written, as a page shows it: nothing hidden, nothing that acts.

Templates escape what has a meaning in HTML. This file does the rest. Control characters, and those
that reorder or hide text, become their numbers; the ends of lines become arrows. What is long is
cut.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any, Final

from markupsafe import Markup

PREVIEW_CHARS_MAX: Final = 200
"""Of a key, value or header in a list."""

HEAD_BYTES_MAX: Final = 4 * PREVIEW_CHARS_MAX
"""What is kept of such a one: a character has four bytes at most."""

SHOWN_BYTES_MAX: Final = 65_536
"""Of one value on its own page."""

NAME_CHARS_MAX: Final = 500
"""Of a name or a message anywhere."""

JSON_DEPTH_MAX: Final = 50
"""Brackets within brackets of JSON that is indented; each costs its depth for every element."""

MARKS_MAX: Final = 3
"""Combining marks on one character; more would cover the lines above and below."""

_DELETE: Final = 0x7F
_ARROWS: Final = {"\n": "↵", "\t": "→"}

_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f"
    # Soft hyphen and joiners, fillers without a width.
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u3164\uffa0\ufeff"
    # Line separators, bidi embeddings, overrides and isolates, invisible operators.
    "\u2028-\u202e\u2060-\u206f\ufff0-\ufffb"
    # Signs that stand below or around the digits or letters after them.
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
    # How hieroglyphs are put together, and shorthand.
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    # Halves of characters, private tags.
    "\ud800-\udfff\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_MARK: Final = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_MARKS: Final = re.compile(f"({_MARK}{{{MARKS_MAX}}}){_MARK}+")
_JSON_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_CODE: Final = re.compile(r"`([^`]+)`")


def shown(text: str, *, keeps_lines: bool = False, chars_max: int = NAME_CHARS_MAX) -> str:
    """``text`` with every character visible, at most ``chars_max`` of them and a note of the rest.

    With ``keeps_lines`` line feeds and tabs stay as they are.
    """
    rest = len(text) - chars_max
    text = _UNSAFE.sub(_number_or_line if keeps_lines else _number, text[:chars_max])
    text = _MARKS.sub(r"\1", text)
    return f"{text}… {rest:,} more characters" if rest > 0 else text


def _number(match: re.Match[str]) -> str:
    character = match.group()
    return _ARROWS.get(character) or f"⟨U+{ord(character):04X}⟩"


def _number_or_line(match: re.Match[str]) -> str:
    return match.group() if match.group() in _ARROWS else _number(match)


def finalized(value: Any) -> Any:
    """What a template puts into a page for ``value``; markup of our own stays as it is."""
    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def advice_markup(text: str) -> Markup:
    """An advice of ours, with what stands in backticks as code."""
    parts = _CODE.split(shown(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part
        for number, part in enumerate(parts)
    )


# --- bytes ------------------------------------------------------------------------------------


def decoded(data: bytes) -> str | None:
    """``data`` as UTF-8, or ``None`` if it is something else."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


class Head(bytes):
    """The beginning of bytes that were longer; ``size_bytes`` is of the whole."""

    size_bytes: int


def head(data: bytes | None) -> bytes | None:
    """What ``preview`` needs of ``data``, without the rest of it."""
    if data is None or len(data) <= HEAD_BYTES_MAX:
        return data
    kept = Head(data[:HEAD_BYTES_MAX])
    kept.size_bytes = len(data)
    return kept


def cut(text: str, chars_max: int) -> str:
    """``text``, or its first characters and an ellipsis."""
    return text if len(text) <= chars_max else f"{text[:chars_max]}…"


def preview(data: bytes | None, chars_max: int = PREVIEW_CHARS_MAX) -> str:
    """A key, value or header in one line; what is no text in hexadecimal digits."""
    if data is None:
        return "null"
    size_bytes = data.size_bytes if isinstance(data, Head) else len(data)
    # Four bytes are a character at most; a cut in the middle of one is no reason for digits.
    beginning = data[: 4 * chars_max]
    text = decoded(beginning)
    if text is None and size_bytes > len(beginning):
        text = next(
            (cut for at in (1, 2, 3) if (cut := decoded(beginning[:-at])) is not None), None
        )
    if text is None or "\x00" in text:
        digits = data[: chars_max // 2].hex()
        rest = size_bytes - chars_max // 2
        return f"0x{digits}… {size_bytes:,} bytes" if rest > 0 else f"0x{digits}"
    if len(text) > chars_max or size_bytes > len(beginning):
        return f"{shown(text[:chars_max])}… {size_bytes:,} bytes"
    return shown(text)


def as_text(data: bytes) -> str:
    """A value as lines of text; what is not UTF-8 becomes replacement characters."""
    text = data[:SHOWN_BYTES_MAX].decode("utf-8", "replace")
    return shown(text, keeps_lines=True, chars_max=SHOWN_BYTES_MAX) + _cut_note(len(data))


def as_json(data: bytes) -> str | None:
    """A value as indented JSON; ``None`` if it is none, or too long or deep to tell."""
    given = decoded(data) if len(data) <= SHOWN_BYTES_MAX else None
    if given is None or _depth_of(given) > JSON_DEPTH_MAX:
        return None
    try:
        found = json.loads(given)
    except ValueError:
        return None
    pieces = []
    left = SHOWN_BYTES_MAX
    for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(found):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            pieces.append("\n… the rest is left out")
            break
    # Indented, a value has more characters than it had bytes.
    return shown("".join(pieces), keeps_lines=True, chars_max=2 * SHOWN_BYTES_MAX)


def _depth_of(given: str) -> int:
    """How deep the brackets of JSON go, found in one pass without parsing it."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", _JSON_STRING.sub("", given)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def as_hex(data: bytes) -> str:
    """A value as rows of sixteen bytes: position, hexadecimal digits, ASCII."""
    return "\n".join(_hex_rows(data[: SHOWN_BYTES_MAX // 4])) + _cut_note(
        len(data), SHOWN_BYTES_MAX // 4
    )


def _hex_rows(data: bytes) -> Iterator[str]:
    for place in range(0, len(data), 16):
        row = data[place : place + 16]
        digits = f"{row[:8].hex(' ')}  {row[8:].hex(' ')}"
        text = "".join(chr(byte) if 0x20 <= byte < _DELETE else "." for byte in row)
        yield f"{place:08x}  {digits:<49} {text}"


def _cut_note(size_bytes: int, shown_bytes: int = SHOWN_BYTES_MAX) -> str:
    rest = size_bytes - shown_bytes
    return f"\n… {rest:,} more bytes" if rest > 0 else ""


# --- figures ----------------------------------------------------------------------------------


def duration(duration_ms: int | None) -> str:
    """A duration in its two largest units, as in "2 h 05 min"; "-" for none."""
    if duration_ms is None or duration_ms < 0:
        return "-"
    seconds = duration_ms // 1_000
    if seconds < 60:
        return f"{seconds} s" if seconds else f"{duration_ms} ms"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02} min"
    return f"{hours // 24} d {hours % 24:02} h"


def size(size_bytes: int | None) -> str:
    """A size for people: with one decimal, in units of 1,024; "-" for none."""
    if size_bytes is None or size_bytes < 0:
        return "-"
    amount: float = size_bytes
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1_024:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1_024
    return f"{amount:,.1f} TiB"


def number(value: float | None) -> str:
    """A count with separators, a rate with a decimal if it is small; "-" for none."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
    return f"{value:,}"


def utc(time_ms: int | None) -> str:
    """A time to the ms, in UTC; "-" for none. Times beyond the year 9999 are shown as ms."""
    if time_ms is None or time_ms < 0:
        return "-"
    if time_ms >= 253_402_300_800_000:
        return f"{time_ms} ms"
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time_ms // 1_000))
    return f"{moment}.{time_ms % 1_000:03}"
