"""The numbered rules that must hold at every step; ``docs/INVARIANTS.md`` explains each."""

from __future__ import annotations

from oncelog.storage.errors import InvariantViolation


def invariant(condition: bool, number: str, text: str) -> None:
    """Raise ``InvariantViolation`` unless ``condition`` holds; unlike ``assert``, always on.

    ``number`` is that of the rule (``I-01`` …); ``text`` names the values that break it.
    """
    if not condition:
        raise InvariantViolation(f"{number}: {text}")
