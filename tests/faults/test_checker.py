"""The checker finds each kind of anomaly in a history that has it, and none in a clean one."""

from __future__ import annotations

import pytest


def send(key, value, offset=None, source=None):
    return ["send", key, value, offset, *([source] if source else [])]


def test_a_clean_history_is_valid(script):
    script.event("r", "assign", ["k-0", "k-1"], seek_to_beginning=True)
    script.txn("w", send("k-0", "a", 0), send("k-1", "b", 0))
    script.txn("w", send("k-0", "gone", 2), outcome="fail")
    script.poll("r", k0=[(0, "a")], k1=[(0, "b")])
    script.txn("w", send("k-0", "c", 4))
    script.poll("r", k0=[(4, "c")])
    script.drain(k0=[(0, "a"), (4, "c")], k1=[(0, "b")])
    verdict = script.verdict(committed=2, aborted=1)
    assert verdict.anomalies == []
    assert verdict.name == "valid"


# --- records ----------------------------------------------------------------------------------


def test_a_record_nobody_sent_is_a_phantom(script):
    script.poll("r", k0=[(0, "ghost")])
    assert script.kinds() == {"phantom-read"}


def test_a_record_read_before_it_was_sent(script):
    script.poll("r", k0=[(0, "a")])
    script.txn("w", send("k-0", "a", 0))
    assert "future-read" in script.kinds()


def test_a_record_of_an_aborted_transaction(script):
    script.txn("w", send("k-0", "a", 0), outcome="fail")
    script.poll("r", k0=[(0, "a")])
    assert script.kinds() == {"aborted-read"}
    assert script.kinds("read_uncommitted") == set()


def test_an_abort_is_certain_even_after_the_commit_was_asked_for(script):
    script.txn("w", send("k-0", "a", 0), outcome="fail", asked=True)
    script.poll("r", k0=[(0, "a")])
    assert script.kinds() == {"aborted-read"}


def test_a_record_whose_commit_was_never_asked_for(script):
    script.txn("w", send("k-0", "a", 0), outcome=None, asked=False)
    script.poll("r", k0=[(0, "a")])
    assert script.kinds() == {"uncommitted-read"}


def test_a_record_read_before_its_commit_was_asked_for(script):
    script.invoke("w", "txn", [send("k-0", "a")])
    script.poll("r", k0=[(0, "a")])
    script.commit("w")
    script.end("ok", "w", "txn", [send("k-0", "a", 0)])
    assert script.kinds() == {"uncommitted-read"}


def test_a_commit_without_an_answer_may_be_read(script):
    script.txn("w", send("k-0", "a"), outcome=None)
    script.drain(k0=[(0, "a")])
    assert script.kinds() == set()


def test_a_transaction_that_reads_its_own_record(script):
    script.txn("w", send("k-0", "a", 0), ["poll", {"k-0": [[0, "a"]]}])
    assert "precommitted-read" in script.kinds()


def test_an_offset_with_two_values(script):
    script.txn("w", send("k-0", "a"), send("k-0", "b"), outcome="info")
    script.poll("r", k0=[(0, "a")])
    script.poll("s", k0=[(0, "b")])
    assert "inconsistent-offsets" in script.kinds()


def test_two_senders_told_the_same_offset(script):
    script.txn("w", send("k-0", "a", 7))
    script.txn("x", send("k-0", "b", 7))
    assert "inconsistent-offsets" in script.kinds()


def test_a_value_at_two_offsets(script):
    script.txn("w", send("k-0", "a"), outcome="info")
    script.poll("r", k0=[(0, "a"), (1, "a")])
    assert script.kinds() == {"duplicate"}


def test_a_sender_told_another_offset(script):
    script.txn("w", send("k-0", "a", 5))
    script.poll("r", k0=[(3, "a")])
    assert script.kinds() == {"offset-mismatch"}


def test_an_acknowledged_record_that_a_complete_read_lacks(script):
    script.txn("w", send("k-0", "a", 0))
    script.drain(k0=[])
    assert script.kinds() == {"lost-write"}


def test_an_acknowledged_record_that_readers_have_passed(script):
    script.txn("w", send("k-0", "a", 0))
    script.txn("w", send("k-0", "b", 1))
    script.poll("r", k0=[(1, "b")])
    assert script.kinds() == {"lost-write"}


def test_an_acknowledged_record_not_yet_seen(script):
    script.txn("w", send("k-0", "a", 0))
    assert script.kinds() == {"unseen"}


def test_a_record_that_was_there_once(script):
    script.txn("w", send("k-0", "a"), outcome="info")
    script.poll("r", k0=[(0, "a")])
    script.drain(k0=[])
    assert script.kinds() == {"vanished-record"}


def test_half_of_a_transaction(script):
    script.txn("w", send("k-0", "a"), send("k-1", "b"), outcome="info")
    script.drain(k0=[(0, "a")], k1=[])
    assert script.kinds() == {"torn-transaction"}


# --- order ------------------------------------------------------------------------------------


def written(script, count=3):
    for offset, value in enumerate("abcdef"[:count]):
        script.txn("w", send("k-0", value, offset))


def test_a_poll_that_jumps_over_a_record(script):
    written(script)
    script.poll("s", k0=[(0, "a"), (1, "b"), (2, "c")])
    script.poll("r", k0=[(0, "a"), (2, "c")])
    assert script.kinds() == {"int-poll-skip"}


def test_a_second_poll_that_jumps_over_a_record(script):
    written(script)
    script.poll("s", k0=[(0, "a"), (1, "b"), (2, "c")])
    script.poll("r", k0=[(0, "a")])
    script.poll("r", k0=[(2, "c")])
    assert script.kinds() == {"poll-skip"}


def test_a_reader_from_the_beginning_that_misses_the_first_record(script):
    written(script)
    script.poll("s", k0=[(0, "a"), (1, "b"), (2, "c")])
    script.event("r", "assign", ["k-0"], seek_to_beginning=True)
    script.poll("r", k0=[(1, "b")])
    assert script.kinds() == {"poll-skip"}


def test_polls_that_go_back(script):
    written(script)
    script.poll("r", k0=[(0, "a"), (1, "b"), (2, "c"), (1, "b")])
    script.poll("s", k0=[(0, "a"), (1, "b")])
    script.poll("s", k0=[(1, "b"), (2, "c")])
    assert script.kinds() == {"int-nonmonotonic-poll", "nonmonotonic-poll"}


def test_a_client_that_failed_reads_again_from_where_the_operation_began(script):
    written(script)
    script.poll("r", k0=[(0, "a")])
    script.txn("r", ["poll", {"k-0": [[1, "b"]]}], outcome="fail")
    script.poll("r", k0=[(1, "b"), (2, "c")])
    assert script.kinds() == set()
    script.txn("r", ["poll", {"k-0": [[2, "c"]]}])
    assert script.kinds() == {"nonmonotonic-poll"}


def test_a_key_that_came_back_by_a_rebalance_may_be_anywhere(script):
    written(script)
    script.event("r", "subscribe", ["k"])
    script.poll("r", k0=[(0, "a"), (1, "b"), (2, "c")])
    script.invoke("r", "poll", [["poll"]], txn=False)
    script.end("ok", "r", "poll", [["poll", {"k-0": [[1, "b"]]}]], rebalance=["k-0"])
    assert script.kinds() == set()


def test_sends_of_one_producer_out_of_order(script):
    script.txn("w", send("k-0", "a", 4), send("k-0", "b", 3))
    script.txn("x", send("k-1", "c", 4))
    script.txn("x", send("k-1", "d", 2))
    script.drain(k0=[(3, "b"), (4, "a")], k1=[(2, "d"), (4, "c")])
    assert script.kinds() == {"int-nonmonotonic-send", "nonmonotonic-send"}


def test_transactions_that_read_from_each_other(script):
    for process, own, other in (("v", "a", "b"), ("w", "b", "a")):
        script.invoke(process, "txn", [send(f"k-{own}", own), ["poll"]])
        script.commit(process)
        script.lines[-1]["process"] = process
        script.invoke(f"{process}-late", "poll", [], txn=False)
        script.lines.append(
            {"type": "ok", "process": process, "f": "txn", "time": 1_000 + len(script.lines)}
            | {"value": [send(f"k-{own}", own, 0), ["poll", {f"k-{other}": [[0, other]]}]]}
        )
    assert "circular-reads" in script.kinds()


def test_a_circle_through_real_time(script):
    """w read from v, x began after w had ended, and v read from x."""
    script.invoke("v", "txn", [send("k-0", "a"), ["poll"]])
    script.commit("v")
    script.txn("w", ["poll", {"k-0": [[0, "a"]]}])
    script.txn("x", send("k-1", "b", 0))
    assert script.kinds() == {"unseen"}
    script.end("ok", "v", "txn", [send("k-0", "a", 0), ["poll", {"k-1": [[0, "b"]]}]])
    assert script.kinds() == {"circular-reads"}


# --- groups -----------------------------------------------------------------------------------


def copied(script, process, value, offset, *, committed, outcome="ok"):
    script.txn(
        process,
        ["poll", {"k-0": [[offset, value]]}],
        send("o-0", f"{process}{value}", None, ["k-0", value]),
        outcome=outcome,
        commits={"group": "g", "offsets": {"k-0": committed}},
    )


def test_each_input_copied_once_is_valid(script):
    written(script, 2)
    copied(script, "c", "a", 0, committed=1)
    script.committed("f", k0=1)
    copied(script, "d", "b", 1, committed=2, outcome="fail")
    copied(script, "e", "b", 1, committed=2)
    script.drain(k0=[(0, "a"), (1, "b")], o0=[(0, "ca"), (1, "eb")])
    script.committed("final", k0=2)
    assert script.verdict(outputs=2).name == "valid"


def test_an_input_with_two_outputs(script):
    written(script, 1)
    copied(script, "c", "a", 0, committed=1)
    copied(script, "d", "a", 0, committed=1)
    script.drain(k0=[(0, "a")], o0=[(0, "ca"), (1, "da")])
    script.committed("final", k0=1)
    assert script.kinds() == {"double-process", "double-consume"}


def test_an_input_below_the_committed_offset_without_output(script):
    written(script, 2)
    copied(script, "c", "b", 1, committed=2)
    script.drain(k0=[(0, "a"), (1, "b")], o0=[(0, "cb")])
    script.committed("final", k0=2)
    assert script.kinds() == {"consume-skip"}


def test_an_output_whose_offset_was_not_committed_with_it(script):
    written(script, 1)
    copied(script, "c", "a", 0, committed=1, outcome="info")
    script.drain(k0=[(0, "a")], o0=[(0, "ca")])
    script.committed("final", k0=None)
    assert script.kinds() == {"torn-offsets"}


def test_offsets_of_an_aborted_transaction(script):
    written(script, 1)
    copied(script, "c", "a", 0, committed=1, outcome="fail")
    script.committed("f", k0=1)
    assert "aborted-offset" in script.kinds()


def test_offsets_older_than_an_acknowledged_commit(script):
    written(script, 1)
    copied(script, "c", "a", 0, committed=1)
    script.committed("f", k0=None)
    assert "stale-offset" in script.kinds()


def test_offsets_that_go_back(script):
    written(script, 1)
    copied(script, "c", "a", 0, committed=1, outcome="info")
    script.committed("f", k0=1)
    script.committed("h", k0=0)
    assert "stale-offset" in script.kinds()


# --- fencing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("outcome", "kinds"), [("ok", {"zombie-commit"}), ("info", set())])
def test_a_commit_after_the_id_was_taken_over(script, outcome, kinds):
    script.init("v", "id", [1, 0])
    script.init("w", "id", [1, 1])
    script.txn("v", send("k-0", "a"), txn_id="id", outcome=outcome)
    script.drain(k0=[(0, "a")] if outcome == "ok" else [])
    assert script.kinds() == kinds


def test_a_commit_of_nothing_after_the_id_was_taken_over_is_no_commit_of_a_zombie(script):
    """Such a transaction was never begun at the coordinator: its owner has not noticed yet."""
    script.init("v", "id", [1, 0])
    script.init("w", "id", [1, 1])
    script.txn("v", txn_id="id")
    assert script.kinds() == set()


def test_a_commit_asked_for_before_the_id_was_taken_over_may_win(script):
    script.init("v", "id", [1, 0])
    script.invoke("v", "txn", [send("k-0", "a")], txn_id="id")
    script.commit("v")
    script.init("w", "id", [1, 1])
    script.end("ok", "v", "txn", [send("k-0", "a", 0)])
    script.drain(k0=[(0, "a")])
    assert script.kinds() == set()


def test_what_a_fenced_client_left_uncommitted_is_no_commit(script):
    script.init("v", "id", [1, 0])
    script.init("w", "id", [1, 1])
    script.txn("v", send("k-0", "a"), txn_id="id", outcome="info")
    script.drain(k0=[(0, "a")])
    assert script.kinds("read_uncommitted") == set()


def test_two_takers_with_one_epoch(script):
    script.init("v", "id", [1, 3])
    script.init("w", "id", [1, 3])
    assert script.kinds() == {"token-reuse"}


# --- vacuity ----------------------------------------------------------------------------------


def test_a_history_in_which_nothing_was_read_proves_nothing(script):
    script.txn("w", send("k-0", "a", 0), outcome="info")
    verdict = script.verdict()
    assert verdict.name == "unknown"
    assert any("nothing was read" in text for text in verdict.missing)
    assert any("k-0" in text for text in verdict.missing)


def test_too_few_faults_aborts_and_outputs_prove_nothing(script):
    script.txn("w", send("k-0", "a", 0))
    script.drain(k0=[(0, "a")])
    assert script.verdict().name == "valid"
    verdict = script.verdict(faults=1, aborted=2, outputs=3, committed=4)
    assert verdict.name == "unknown"
    assert len(verdict.missing) == len(("faults", "aborted", "outputs", "committed"))


def test_a_value_sent_twice_makes_the_history_useless(script):
    script.txn("w", send("k-0", "a", 0))
    script.txn("x", send("k-0", "a", 1), outcome="fail")
    script.drain(k0=[(0, "a")])
    assert "sent twice" in script.verdict().missing[0]
