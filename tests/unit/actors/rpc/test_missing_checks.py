"""Each check of who calls and how much, left out: which test notices.

A test of the suite is run as it is, and then without the check that it is about. It must fail then.
Rows of the table of requests are in ``protocol/test_access.py``, how ACLs are read in
``sim/test_strangers.py``.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import deadlines
import pytest

from oncelog.actors.protocol import quotas, scram, tickets
from oncelog.actors.protocol.messages.access import Access, Rules
from oncelog.actors.protocol.messages.cluster import ClusterKeysRequest
from oncelog.actors.protocol.scram import Refusal, ScramServer
from oncelog.actors.rpc import handshake, limits
from oncelog.actors.rpc.admission import Places, RequestRoom
from oncelog.actors.rpc.door import Door
from oncelog.actors.rpc.handshake import ProgramIdentity, UserIdentity
from oncelog.actors.rpc.listener import Listener

UNIT = Path(__file__).parents[2]
FAILED_LIMIT_S = 1.0
"""How long a test without its check waits for what does not come."""


class Check(NamedTuple):
    """``leave_out`` patches one function; ``test`` of ``file`` then fails, with ``given``."""

    leave_out: Callable[[], Any]
    file: str
    test: str
    given: dict[str, Any] = {}  # noqa: RUF012


def answering(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    """Always the same answer in place of a check."""
    return lambda: mock.patch.object(owner, name, return_value=value)


def _ticket_of_any_id() -> Any:
    real = tickets._mac

    def mac(key: bytes, label: bytes, claim: bytes, names: tuple[str, str]) -> bytes:
        return real(key, label, claim, ("", names[1]))

    return mock.patch.object(tickets, "_mac", mac)


def _absent_users_are_told_at_once() -> Any:
    real = ScramServer._first

    def first(self: ScramServer, message: str) -> bytes:
        answer = real(self, message)
        if not self._is_known:
            raise scram._Refused(Refusal.UNKNOWN_USER)
        return answer

    return mock.patch.object(ScramServer, "_first", first)


def _not_counted(cost: str) -> Callable[[], Any]:
    real = quotas.Quotas.spend

    def spend(self: quotas.Quotas, *who: Any, **spent: Any) -> int:
        return real(self, *who, **spent | {cost: 0})

    return lambda: mock.patch.object(quotas.Quotas, "spend", spend)


def _any_number_of_transactions() -> Any:
    real = quotas.OpenTransactions.begin

    def begin(self: quotas.OpenTransactions, who: str, transactional_id: str, _: int) -> bool:
        return real(self, who, transactional_id, 1_000)

    return mock.patch.object(quotas.OpenTransactions, "begin", begin)


def _users_may_stop_what_starts() -> Any:
    real = Door.judge

    def judge(self: Door, request: Any, principal: Any, *more: Any) -> Any:
        return real(self, request, handshake.RAY if self.rules is None else principal, *more)

    return mock.patch.object(Door, "judge", judge)


USERS, BOUNDS = "actors/rpc/test_users.py", "actors/rpc/test_connection_bounds.py"
LIMITS, SCRAM = "actors/rpc/test_limits.py", "protocol/test_scram.py"
QUOTAS, ONE_RATE = "protocol/test_quotas.py", "test_one_rate_alone_is_a_limit"
RECORDED = "test_what_was_recorded_of_one_handshake_ends_no_other"
REMOVED = {"newer": Access(rules=Rules(version=2, is_on=True))}

CHECKS = {
    "the proof of a server": Check(
        answering(handshake, "is_server_proof", True),
        "actors/rpc/test_who_calls.py",
        "test_a_program_is_refused_what_is_for_servers_and_its_connection_stays",
        {"caller": b"", "request_": ClusterKeysRequest()},
    ),
    "a challenge that is used once": Check(
        answering(handshake, "new_nonce", b"n" * handshake.NONCE_BYTES),
        USERS,
        RECORDED,
        {"identity": ProgramIdentity()},
    ),
    "a challenge of a login that is used once": Check(
        answering(handshake, "_scram_nonce", "n" * 32),
        USERS,
        RECORDED,
        {"identity": UserIdentity("alice", "correct horse")},
    ),
    "the id that a ticket is for": Check(
        _ticket_of_any_id,
        "protocol/test_tickets.py",
        "test_ticket_is_refused_for_anything_else",
        {"changed": {"transactional_id": "load"}},
    ),
    "connections of users that are removed": Check(
        answering(Door, "enter", None),
        USERS,
        "test_a_user_that_is_removed_or_has_a_new_password_is_out_at_once",
        REMOVED,
    ),
    "logins of users that are removed meanwhile": Check(
        answering(Door, "is_current", True),
        USERS,
        "test_a_login_that_has_begun_does_not_outlive_its_user",
        REMOVED,
    ),
    "absent users as refused ones": Check(
        _absent_users_are_told_at_once,
        SCRAM,
        "test_a_user_that_does_not_exist_looks_like_a_wrong_password",
    ),
    "rules that a process does not know yet": Check(
        _users_may_stop_what_starts,
        USERS,
        "test_a_process_that_does_not_know_the_rules_answers_programs_and_no_user",
    ),
    "open transactions": Check(
        _any_number_of_transactions,
        QUOTAS,
        "test_one_more_transaction_than_the_limit_is_refused_until_another_has_ended",
    ),
    "the longest timeout": Check(
        answering(limits, "timeout_refusal", ""),
        LIMITS,
        "test_a_timeout_above_the_limit_does_not_reach_the_coordinator",
    ),
    "requests per second": Check(_not_counted("requests"), QUOTAS, ONE_RATE),
    "bytes per second": Check(_not_counted("size_bytes"), QUOTAS, ONE_RATE),
    "connections": Check(
        answering(Listener, "refusal", ""),
        LIMITS,
        "test_one_connection_more_than_the_limit_is_refused_and_ray_does_not_replace_it",
    ),
    "guesses of one host": Check(
        answering(Places, "may_log_in", True),
        USERS,
        "test_a_host_can_guess_so_often_a_second_and_no_more",
    ),
    "bytes in flight": Check(
        answering(RequestRoom, "_is_shared", True),
        BOUNDS,
        "test_requests_share_their_bytes_and_wait_their_turn",
    ),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_that_is_left_out_is_noticed(name, caplog):
    check = CHECKS[name]
    module = loaded(check.file)
    for given in rows_of(getattr(module, check.test)) if not check.given else [check.given]:
        run(module, check.test, given, caplog)
        with (
            check.leave_out(),
            mock.patch.object(deadlines, "DEADLINE_S", FAILED_LIMIT_S),
            pytest.raises((AssertionError, TimeoutError, pytest.fail.Exception)),
        ):
            run(module, check.test, given, caplog)


def loaded(file: str) -> ModuleType:
    """A file of tests, as a module of its own."""
    path = UNIT / file
    assert path.is_file(), file
    spec = importlib.util.spec_from_file_location(f"checked_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(test: Callable[..., Any]) -> list[dict[str, Any]]:
    """What a test with one parameter is run with; nothing if it has none."""
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize" and isinstance(mark.args[0], str):
            return [{mark.args[0]: value} for value in mark.args[1]]
    return [{}]


def run(module: ModuleType, test: str, given: dict[str, Any], caplog: Any) -> None:
    found = getattr(module, test)
    names = inspect.signature(found).parameters
    with pytest.MonkeyPatch.context() as patch:
        fixtures = {"monkeypatch": patch, "caplog": caplog}
        found(**given, **{name: fixtures[name] for name in names if name in fixtures})
