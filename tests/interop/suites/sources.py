"""The sources of suites, in a cache directory, fetched once.

Debian's archive has the original sources of a package beside its binaries. apt says where these
are; the digests say that the sources are those that the tables are about.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from suite import UnavailableError

FETCH_TIMEOUT_S = 300
BUILD_TIMEOUT_S = 1_200


def cache_directory() -> Path:
    """Where sources and what is built of them stay."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "oncelog" / "suites"


def debian_sources(package: str, archive: str, sha256: str, directory: str) -> Path:
    """The unpacked sources of a binary package; ``directory`` is the top one in ``archive``."""
    target = cache_directory() / directory
    if target.exists():
        return target
    uri = _words("apt-get", "download", "--print-uris", package).split()[0].strip("'")
    if not uri.startswith(("http:", "https:")):
        raise UnavailableError(f"apt does not know where {package} is")
    say(f"fetching {archive}")
    try:
        with urllib.request.urlopen(f"{uri.rpartition('/')[0]}/{archive}", timeout=60) as answer:
            packed = answer.read()
    except OSError as error:
        raise UnavailableError(f"{archive} cannot be fetched: {error}") from error
    if hashlib.sha256(packed).hexdigest() != sha256:
        raise UnavailableError(f"{archive} is not the file that is expected")
    stored = cache_directory() / archive
    stored.parent.mkdir(parents=True, exist_ok=True)
    stored.write_bytes(packed)
    return _unpacked(stored, target)


def debian_headers(package: str) -> Path:
    """The directory of headers that a binary package has, which is not installed for that."""
    target = cache_directory() / package
    if not target.exists():
        say(f"fetching {package}")
        with tempfile.TemporaryDirectory() as work:
            _words("apt-get", "download", "--quiet", package, directory=Path(work))
            (fetched,) = Path(work).glob("*.deb")
            partial = target.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            _words("dpkg", "--extract", str(fetched), str(partial))
            partial.rename(target)
    return target / "usr" / "include"


def python_sources(package: str, version: str) -> Path:
    """The unpacked source distribution of a Python package."""
    target = cache_directory() / f"{package.replace('-', '_')}-{version}"
    if not target.exists():
        say(f"fetching {package} {version}")
        _words(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--no-build-isolation", "--no-binary", ":all:"),
            *("--dest", str(cache_directory()), f"{package}=={version}"),
        )
        _unpacked(cache_directory() / f"{target.name}.tar.gz", target)
    return target


def python_libraries(name: str, packages: Sequence[str]) -> Path:
    """A directory for PYTHONPATH with these packages, beside those of the environment."""
    target = cache_directory() / name
    if not target.exists():
        say(f"fetching {', '.join(packages)}")
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        _words(
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--target", str(partial), *packages),
        )
        partial.rename(target)
    return target


def build(directory: Path, made: str, *commands: Sequence[str], **environment: str) -> Path:
    """Run commands in a directory until ``made`` is there, once."""
    path = directory / made
    if path.exists():
        return path
    say(f"building {path}")
    log = directory / "build.log"
    with log.open("w", encoding="utf-8") as out:
        for command in commands:
            try:
                subprocess.run(
                    command,
                    cwd=directory,
                    env={**os.environ, **environment},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    check=True,
                    timeout=BUILD_TIMEOUT_S,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise UnavailableError(f"cannot be built, see {log}: {error}") from error
    return path


def say(text: str) -> None:
    """Print one line now."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _unpacked(archive: Path, target: Path) -> Path:
    partial = archive.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(archive) as packed:
        packed.extractall(partial, filter="data")
    (partial / target.name).rename(target)
    partial.rmdir()
    return target


def _words(*command: str, directory: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            check=True,
            timeout=FETCH_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(f"{command[0]}: {error}") from error
    return done.stdout
