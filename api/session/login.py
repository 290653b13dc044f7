"""As whom a program connects: a user with a password from a file, or nobody in particular.

The password stays in its file: arguments, options and messages between processes carry only its
path. So it is in no plan, no log and no list of processes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oncelog.actors.protocol.scram import prepare_name, prepare_password
from oncelog.actors.rpc.handshake import Identity, ProgramIdentity, UserIdentity
from oncelog.storage.exceptions import InvalidSettingError

USER_VARIABLE: Final = "ONCELOG_USER"
FILE_VARIABLE: Final = "ONCELOG_PASSWORD_FILE"

PASSWORD_FILE_MAX_BYTES: Final = 16_384


@dataclass(frozen=True, slots=True)
class Login:
    """A user's name, and the file whose first line is the password; both "" for nobody."""

    user: str = ""
    password_file: str = ""

    def identity(self) -> Identity:
        """What proves it to the servers; reads the file. ``InvalidSettingError`` says why not."""
        if not self.user:
            return ProgramIdentity()
        return UserIdentity(_checked_name(self.user), read_password(self.password_file))

    def version(self) -> tuple[int, ...]:
        """What differs once the password file is written again; empty without such a file."""
        if not self.password_file:
            return ()
        try:
            found = Path(self.password_file).expanduser().stat()
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size


NOBODY: Final = Login()
"""Any program of the Ray cluster."""


def login_of(user: str | None, password_file: str | os.PathLike[str] | None) -> Login:
    """The login that is given; what is not is taken from the environment, both or neither.

    A relative path is that of this process, also where the login travels to another one. One that
    begins with ``~`` is in the home directory of whoever reads the file. ``InvalidSettingError`` if
    only one of the two is there.
    """
    if user is None and password_file is None:
        user = os.environ.get(USER_VARIABLE, "")
        password_file = os.environ.get(FILE_VARIABLE, "")
    login = Login(user or "", os.fspath(password_file or ""))
    if login.user and not login.password_file:
        raise InvalidSettingError(
            f"user={login.user!r} has no password_file",
            advice=f"give the path of a file with the password, or set {FILE_VARIABLE}",
        )
    if login.password_file and not login.user:
        raise InvalidSettingError(
            f"password_file={login.password_file!r} has no user",
            advice=f"give user, or set {USER_VARIABLE}",
        )
    if login.password_file and not login.password_file.startswith("~"):
        login = Login(login.user, os.path.abspath(login.password_file))
    return login


def read_password(path: str | os.PathLike[str]) -> str:
    """The first line of a file, without its end; ``InvalidSettingError`` if it is no password."""
    shown = f"password_file={os.fspath(path)!r}"
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(PASSWORD_FILE_MAX_BYTES)
    except OSError as error:
        raise InvalidSettingError(f"{shown} cannot be read ({error.strerror})") from None
    return password_in(data, shown)


def password_in(data: bytes, shown: str) -> str:
    """The first line of ``data``; an ``InvalidSettingError`` calls what it is from ``shown``."""
    try:
        password = data.splitlines()[0].decode() if data else ""
        prepare_password(password)
    except UnicodeDecodeError:
        raise InvalidSettingError(f"{shown} is not UTF-8 text") from None
    except ValueError as error:
        # It tells what is wrong, never the password.
        raise InvalidSettingError(f"{shown} has no possible password: {error}") from None
    return password


def _checked_name(user: str) -> str:
    try:
        return prepare_name(user)
    except ValueError as error:
        raise InvalidSettingError(f"user={user!r} is no possible name: {error}") from None
