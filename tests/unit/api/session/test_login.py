from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from oncelog.api.session.login import (
    CERTIFICATE_VARIABLE,
    FILE_VARIABLE,
    NOBODY,
    TOKEN_VARIABLE,
    USER_VARIABLE,
    Login,
    login_of,
)
from oncelog.storage.exceptions import InvalidSettingError

PLANTED = "planted-secret-71c4"


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{PLANTED}\n", encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (USER_VARIABLE, FILE_VARIABLE, TOKEN_VARIABLE, CERTIFICATE_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def test_without_a_user_a_program_is_nobody_in_particular() -> None:
    assert login_of(None, None) == NOBODY


def test_the_environment_counts_for_who_gives_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(USER_VARIABLE, "alice")
    monkeypatch.setenv(FILE_VARIABLE, "/etc/alice")
    assert login_of(None, None) == Login("alice", "/etc/alice")
    assert login_of("bob", "/etc/bob") == Login("bob", "/etc/bob")
    assert login_of("", "") == NOBODY


@pytest.mark.parametrize("given", [("alice", None), (None, "/etc/alice")])
def test_one_without_the_other_is_refused(given: tuple[str | None, str | None]) -> None:
    with pytest.raises(InvalidSettingError, match=r"has no (user|password_file)"):
        login_of(*given)


def test_a_relative_path_is_that_of_the_process_that_gives_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It travels to processes that work in other directories."""
    monkeypatch.chdir(tmp_path)
    assert login_of("alice", "password") == Login("alice", str(tmp_path / "password"))
    assert login_of("alice", "~/password") == Login("alice", "~/password")


def test_a_login_is_another_one_once_its_password_file_is_written_again(
    password_file: Path,
) -> None:
    login = login_of("alice", password_file)
    first = login.version()
    assert login.version() == first
    other = password_file.with_name("other")
    other.write_text("another\n", encoding="utf-8")
    os.replace(other, password_file)
    assert login.version() != first
    password_file.unlink()
    assert login.version() == NOBODY.version() == ()


def test_neither_a_login_nor_who_it_proves_to_be_shows_the_password(password_file: Path) -> None:
    login = login_of("alice", password_file)
    identity = login.identity()
    assert PLANTED not in repr(login) + repr(identity)
    assert PLANTED.encode() not in pickle.dumps(login)


def test_a_file_that_cannot_be_read_is_named_with_why(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidSettingError, match=r"password_file='.*gone' cannot be read \(No such"
    ):
        login_of("alice", tmp_path / "gone").identity()


JWT = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"token": JWT}, "token is not a path; give that of a file with the token"),
        ({"token": f" {JWT}\n"}, "token is not a path; give that of a file with the token"),
        (
            {"cert": "-----BEGIN PRIVATE KEY-----\nplanted"},
            "cert is not a path; give that of a file with the cert",
        ),
    ],
)
def test_a_token_or_key_in_place_of_its_path_is_told_to_nobody(
    given: dict[str, str], told: str
) -> None:
    with pytest.raises(InvalidSettingError) as raised:
        login_of(**given)
    assert str(raised.value) == told


@pytest.mark.parametrize("path", ["ey.jwt", "/etc/eyJhbGciOiJF.token.txt", "eyes-only.tar.gz"])
def test_a_path_that_looks_much_like_a_token_is_one(path: str) -> None:
    assert login_of(token=path).token_file.endswith(path)
