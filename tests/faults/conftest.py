"""Histories by hand: a few words per operation."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from faults.checker import Demands, Verdict, check
from faults.history import build_history


class Script:
    """A history that is written down operation by operation; time goes on by itself."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._clock = itertools.count(10, 10)

    def invoke(self, process: str, function: str, value: Any = None, **fields: Any) -> None:
        self._line("invoke", process, f=function, value=value, **fields)

    def commit(self, process: str, commits: Any = None) -> None:
        self._line("commit", process, **({"commits": commits} if commits else {}))

    def end(self, outcome: str, process: str, function: str, value: Any, **fields: Any) -> None:
        self._line(outcome, process, f=function, value=value, **fields)

    def txn(
        self, process: str, *steps: list[Any], outcome: str = "ok", txn_id: str = "", **commit: Any
    ) -> None:
        """A whole transaction. ``asked=False`` leaves the commit request out; ``None`` as outcome
        the last line."""
        asked = commit.pop("asked", outcome != "fail")
        self.invoke(process, "txn", [list(step) for step in steps], txn_id=txn_id or process)
        if asked:
            self.commit(process, commit.get("commits"))
        if outcome is not None:
            self.end(outcome, process, "txn", [list(step) for step in steps])

    def event(self, process: str, function: str, value: Any, **fields: Any) -> None:
        self.invoke(process, function, value, **fields)
        self.end("ok", process, function, value)

    def poll(self, process: str, **records: list[tuple[int, str]]) -> None:
        """Poll ``k0=[(offset, value)]``; the key is ``k-0``."""
        named = {key[0] + "-" + key[1:]: found for key, found in records.items()}
        self.invoke(process, "poll", [["poll"]], txn=False)
        self.end("ok", process, "poll", [["poll", named]])

    def drain(self, **records: list[tuple[int, str]]) -> None:
        """The complete read at the end."""
        keys = [key[0] + "-" + key[1:] for key in records]
        self.event("final", "assign", keys, seek_to_beginning=True)
        self.poll("final", **records)
        self.event("final", "drained", keys)

    def committed(self, process: str, **offsets: int | None) -> None:
        named = {key[0] + "-" + key[1:]: offset for key, offset in offsets.items()}
        self.invoke(process, "committed", group="g")
        self.end("ok", process, "committed", named, group="g")

    def init(self, process: str, txn_id: str, token: list[int]) -> None:
        self.invoke(process, "init", txn_id=txn_id)
        self.end("ok", process, "init", token, txn_id=txn_id)

    def verdict(self, isolation: str = "read_committed", **demands: int) -> Verdict:
        history = build_history([{"type": "meta", "isolation": isolation}, *self.lines])
        return check(history, Demands(**demands))

    def kinds(self, isolation: str = "read_committed") -> set[str]:
        """The kinds of anomalies found."""
        return {anomaly.kind for anomaly in self.verdict(isolation).anomalies}

    def _line(self, kind: str, process: str, **fields: Any) -> None:
        self.lines.append({"type": kind, "process": process, "time": next(self._clock)} | fields)


@pytest.fixture
def script() -> Script:
    return Script()
