"""Directed schedules: a call of one transaction that arrives during another changes nothing."""

from __future__ import annotations

import pytest
from sim_schedules import Play

TIMES = pytest.mark.parametrize("times", [1, 2, 3])


@TIMES
@pytest.mark.parametrize("is_reply", [False, True], ids=["request held", "reply held"])
def test_a_delayed_commit_never_ends_the_next_transaction(times, is_reply):
    """1. P asks to commit T1; that call, or its reply, is held. 2. P repeats it and T1 commits.
    3. P writes b1 in T2. 4. The first call is delivered. 5. P writes b2 elsewhere and aborts T2.
    """
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("a", "a1")
        gate = play.hold("end_txn", reply=is_reply)
        ending = writer.start(writer.committing())
        play.until_held(gate)
        assert play.end(ending) is True
        writer.begin()
        writer.send("a", "b1")
        gate.release(times=times)
        play.pass_time()
        writer.send("b", "b2")
        writer.abort()
        assert (play.read("a"), play.read("b")) == (["a1"], [])
