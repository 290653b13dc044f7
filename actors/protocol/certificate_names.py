r"""The name of whoever shows a certificate, made from its subject by rules.

A subject is text as RFC 2253 has it, the most special part first: ``CN=ann,OU=flights,C=DE``. The
rules are Kafka's ``ssl.principal.mapping.rules``: a list, separated by commas, of which the first
that applies makes the name.

=================================  ==============================================================
rule                               name
=================================  ==============================================================
``RULE:pattern/replacement/``      ``replacement``, if ``pattern`` matches the whole subject;
                                   ``$1`` is what its first group matched
``RULE:pattern/replacement/L``     the same in lower case, with ``U`` in upper case
``DEFAULT``                        the subject
=================================  ==============================================================

In a pattern and a replacement ``\`` before a character takes from it what it means, so ``\/`` is
a slash. No rule applies: there is no name, and whoever it is stays unknown.

Write groups that end at commas, ``([^,]*)``, and begin patterns with ``^``. A comma inside of a
value is ``\,``, so a value cannot pass for two; but ``(.*)`` takes it for any other text.

A pattern can be made that takes exponential time on some subjects, such as ``(a+)+b``. Whoever
writes the rules must not: the limits on lengths do not prevent it. Subjects come from certificates
of our authorities only.

Source: KIP-371; RFC 2253. Unlike Kafka, attributes that RFC 2253 does not name have the name that
OpenSSL gives them, and their value as text: ``emailAddress=ann@example.org``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

RULES_MAX_CHARS: Final = 8_192
"""Of all rules together."""

PATTERN_MAX_CHARS: Final = 512
"""Of one rule's pattern, and of its replacement."""

SUBJECT_MAX_CHARS: Final = 1_024
"""Of a subject; a certificate with a longer one has no name."""

DEFAULT: Final = "DEFAULT"

_ATTRIBUTES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""OpenSSL's names of attributes, and those of RFC 2253."""

_SPECIAL: Final = re.compile(r'[,+"\\<>;]|^[ #]| $|[\x00-\x1f\x7f]')
_RULE: Final = re.compile(
    r"RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?)", re.DOTALL
)
_BETWEEN: Final = re.compile(r"\s*(?:,|\Z)\s*")
_WORD: Final = re.compile(r"[^,]*")
_PART: Final = re.compile(r"\\(?P<literal>.)|\$(?P<group>\d+)|(?P<text>[^\\$]+|\$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; ``text`` is how it was written."""

    text: str
    pattern: re.Pattern[str]
    parts: tuple[str | int, ...]
    """The replacement: text, and numbers of groups."""
    change_case: Callable[[str], str]

    def name_of(self, subject: str) -> str | None:
        """The name; ``None`` if this rule does not apply."""
        match = self.pattern.fullmatch(subject)
        if match is None:
            return None
        parts = (one if isinstance(one, str) else match[one] or "" for one in self.parts)
        return self.change_case("".join(parts))


class CertificateNames:
    """Makes names by ``rules``; ``ValueError`` names a rule that is none."""

    def __init__(self, rules: str = DEFAULT) -> None:
        self.rules = tuple(_rules_of(rules))

    def name_of(self, subject: str) -> str | None:
        """The name of a certificate's subject; ``None`` if it has none."""
        if not subject or len(subject) > SUBJECT_MAX_CHARS:
            return None
        for rule in self.rules:
            name = rule.name_of(subject)
            if name is not None:
                return name or None
        return None


def subject_of(certificate: Mapping[str, Any]) -> str:
    """The subject of a certificate, as ``ssl.SSLObject.getpeercert`` tells it, in RFC 2253 text.

    It has the parts in reverse, each of which may be several attributes (``CN=ann+UID=7``).
    """
    parts = certificate.get("subject", ())
    return ",".join(
        "+".join(f"{_ATTRIBUTES.get(name, name)}={escaped(value)}" for name, value in part)
        for part in reversed(parts)
    )


def escaped(value: str) -> str:
    """The value of an attribute, so that it ends nothing. Control characters are told in hex."""
    return _SPECIAL.sub(_escape, value)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return f"\\{char}" if char.isprintable() else f"\\{ord(char):02X}"


def _rules_of(text: str) -> list[Rule]:
    if len(text) > RULES_MAX_CHARS:
        raise ValueError(f"the rules have {len(text)} characters, at most {RULES_MAX_CHARS} fit")
    rules: list[Rule] = []
    place = len(text) - len(text.lstrip())
    while place < len(text) or not rules:
        match = _RULE.match(text, place)
        end = match.end() if match else _end_of_word(text, place)
        between = _BETWEEN.match(text, end)
        if between is None or (match is None and text[place:end].rstrip() != DEFAULT):
            wrong = text[place : _end_of_word(text, end)].rstrip()
            raise ValueError(
                f"{wrong!r} is no rule: DEFAULT and RULE:pattern/replacement/[LU] are, separated "
                "by commas"
            )
        rules.append(_rule(text[place:end], match))
        place = between.end()
    return rules


def _end_of_word(text: str, place: int) -> int:
    word = _WORD.match(text, place)
    return word.end() if word else place


def _rule(text: str, match: re.Match[str] | None) -> Rule:
    if match is None:
        return Rule(DEFAULT, re.compile("(?s:.*)"), (0,), str)
    pattern, replacement = match["pattern"], match["replacement"]
    if max(len(pattern), len(replacement)) > PATTERN_MAX_CHARS:
        raise ValueError(f"a part of {text!r} is longer than {PATTERN_MAX_CHARS} characters")
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"the pattern of {text!r} is no regular expression: {error}") from error
    parts = tuple(_parts(replacement, compiled.groups))
    return Rule(text, compiled, parts, {"L": str.lower, "U": str.upper}.get(match["case"], str))


def _parts(replacement: str, group_count: int) -> list[str | int]:
    """Split a replacement; ``$9`` of a pattern that has no such group is text, as in Kafka."""
    parts: list[str | int] = []
    for part in _PART.finditer(replacement):
        if part["group"] and int(part["group"]) <= group_count:
            parts.append(int(part["group"]))
        else:
            parts.append(part["literal"] or part[0])
    return parts
