"""How long a fault was felt, and what is counted."""

from __future__ import annotations

import json

from faults.history import build_history
from faults.totals import Tally, recovery_times_s, report_lines

SECOND = 1_000_000_000


def fault(kind, number, time, **fields):
    return {"type": "info", "process": "nemesis", "f": kind, "fault": number, "time": time} | fields


def txn(process, start, end, *, outcome="ok", key="k-0"):
    common = {"process": process, "f": "txn"}
    return [
        {"type": "invoke", "time": start, "value": [["send", key, f"v{start}"]]} | common,
        {"type": outcome, "time": end, "value": [["send", key, f"v{start}", 0]]} | common,
    ]


def test_recovery_lasts_from_the_end_of_the_fault_to_the_first_success_that_began_in_it():
    history = build_history(
        [
            fault("pause", 0, 10 * SECOND, role="partition leader", serves=["k-0"], aimed=True),
            fault("resume", 0, 12 * SECOND),
            *txn("early.0", 9 * SECOND, 13 * SECOND),
            *txn("failed.0", 11 * SECOND, 13 * SECOND, outcome="fail"),
            *txn("other.0", 11 * SECOND, 13 * SECOND, key="k-1"),
            *txn("slow.0", 11 * SECOND, 16 * SECOND),
            *txn("first.0", 11 * SECOND + 1, 15 * SECOND),
        ]
    )
    assert recovery_times_s(history) == {"pause partition leader": [3.0]}


def test_a_killed_client_is_back_with_the_first_success_of_its_next_life():
    history = build_history(
        [
            fault("kill", 0, 10 * SECOND, role="client", serves=["t0"], aimed=False),
            *txn("t1.0", 11 * SECOND, 12 * SECOND),
            *txn("t0.1", 13 * SECOND, 14 * SECOND),
        ]
    )
    assert recovery_times_s(history) == {"kill client": [4.0]}


def test_the_report_tells_of_a_fault_that_nobody_was_seen_to_recover_from():
    history = build_history(
        [fault("kill", 0, 10 * SECOND, role="controller", serves=["controller"], aimed=True)]
    )
    text = "\n".join(report_lines(history))
    assert "faults        1, 1 of them aimed" in text
    assert "not seen" in text


def test_a_growing_file_is_counted_line_by_line(tmp_path):
    tally = Tally()
    path = tmp_path / "t0.0.jsonl"
    lines = [json.dumps(line, separators=(",", ":")) for line in txn("t0.0", 1, 2)]
    path.write_text(lines[0] + "\n" + lines[1])
    tally.update(tmp_path)
    assert (tally.operations, tally.committed) == (1, 0)
    path.write_text("\n".join(lines) + "\n")
    tally.update(tmp_path)
    assert (tally.operations, tally.committed) == (1, 1)
