"""As whom a program connects: a user that a file proves it to be, or nobody in particular.

A password, token or key stays in its file: arguments, options and messages between processes carry
only the path. So it is in no plan, no log and no list of processes.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oncelog.actors.protocol.scram import prepare_name, prepare_password
from oncelog.actors.rpc.handshake import (
    CertificateIdentity,
    Identity,
    ProgramIdentity,
    TokenIdentity,
    UserIdentity,
)
from oncelog.actors.rpc.signed_tokens import TOKEN_MAX_CHARS
from oncelog.storage.exceptions import InvalidSettingError

USER_VARIABLE: Final = "ONCELOG_USER"
FILE_VARIABLE: Final = "ONCELOG_PASSWORD_FILE"
TOKEN_VARIABLE: Final = "ONCELOG_TOKEN_FILE"  # noqa: S105
CERTIFICATE_VARIABLE: Final = "ONCELOG_CERT"

PASSWORD_FILE_MAX_BYTES: Final = 16_384

_TOKEN: Final = re.compile(r"ey[\w-]{8,}\.[\w-]{2,}\.[\w-]*")
"""A signed token. Source: RFC 7515, section 3.1: three parts in base64, the first is JSON."""


@dataclass(frozen=True, slots=True)
class Login:
    """Who connects: a user with a password, or whom a token or certificate names, or nobody.

    All but the name are paths: of the file whose first line is the password or the token, or of a
    PEM file with a certificate and its key. What does not count is "".
    """

    user: str = ""
    password_file: str = ""
    token_file: str = ""
    certificate: str = ""

    def identity(self) -> Identity:
        """What proves it to the servers; reads the file. ``InvalidSettingError`` says why not."""
        if self.token_file:
            read_token(self.token_file)
            return TokenIdentity(functools.partial(read_token, self.token_file))
        if self.certificate:
            path = Path(self.certificate).expanduser()
            return CertificateIdentity(path, path)
        if not self.user:
            return ProgramIdentity()
        return UserIdentity(_checked_name(self.user), read_password(self.password_file))

    def arguments(self) -> dict[str, str]:
        """The same as arguments of ``connect``, which then asks no environment."""
        if self.token_file:
            return {"token": self.token_file}
        if self.certificate:
            return {"cert": self.certificate}
        return {"user": self.user, "password_file": self.password_file}

    def variables(self) -> dict[str, str]:
        """The same as environment variables, of which those that do not count are empty."""
        return {
            USER_VARIABLE: self.user,
            FILE_VARIABLE: self.password_file,
            TOKEN_VARIABLE: self.token_file,
            CERTIFICATE_VARIABLE: self.certificate,
        }

    def version(self) -> tuple[int, ...]:
        """What differs once the file is written again; empty without such a file."""
        file = self.password_file or self.token_file or self.certificate
        if not file:
            return ()
        try:
            found = Path(file).expanduser().stat()
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size


NOBODY: Final = Login()
"""Any program of the Ray cluster."""


def login_of(
    user: str | None = None,
    password_file: str | os.PathLike[str] | None = None,
    token: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
) -> Login:
    """The login that is given; if none is, that of the environment.

    A relative path is that of this process, also where the login travels to another one. One that
    begins with ``~`` is in the home directory of whoever reads the file. ``InvalidSettingError`` if
    only one of ``user`` and ``password_file`` is there, or several ways to log in are, or what is
    not to be shown is given in place of its file.
    """
    if user is None and password_file is None and token is None and cert is None:
        user = os.environ.get(USER_VARIABLE, "")
        password_file = os.environ.get(FILE_VARIABLE, "")
        token = os.environ.get(TOKEN_VARIABLE, "")
        cert = os.environ.get(CERTIFICATE_VARIABLE, "")
    ways = {"user": user or password_file, "token": token, "cert": cert}
    given = [name for name, way in ways.items() if way]
    if given[1:]:
        raise InvalidSettingError(
            f"{' and '.join(given)} are given", advice="log in by one of user, token and cert"
        )
    _check_paths(token, cert)
    if token or cert:
        return Login(token_file=_absolute(token or ""), certificate=_absolute(cert or ""))
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
    return Login(login.user, _absolute(login.password_file))


def _check_paths(token: str | os.PathLike[str] | None, cert: str | os.PathLike[str] | None) -> None:
    """Reject a token or certificate in place of its path, which errors and options would show."""
    is_token = _TOKEN.fullmatch(os.fspath(token or "").strip())
    if is_token or "-----BEGIN" in os.fspath(cert or ""):
        name = "token" if is_token else "cert"
        raise InvalidSettingError(
            f"{name} is not a path", advice=f"give that of a file with the {name}"
        )


def _absolute(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    return os.path.abspath(text) if text and not text.startswith("~") else text


def read_token(path: str) -> str:
    """The first line of a file with a token; ``InvalidSettingError`` if it has none.

    It is read for each connection, so a token that was renewed there is used.
    """
    try:
        with Path(path).expanduser().open("rb") as file:
            lines = file.read(PASSWORD_FILE_MAX_BYTES).splitlines()
    except OSError as error:
        raise InvalidSettingError(f"token={path!r} cannot be read ({error.strerror})") from None
    token = lines[0].decode("ascii", "replace").strip() if lines else ""
    if not 1 <= len(token) <= TOKEN_MAX_CHARS:
        raise InvalidSettingError(
            f"token={path!r} has no token in its first line",
            advice=f"write one there, of at most {TOKEN_MAX_CHARS} characters",
        )
    return token


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
