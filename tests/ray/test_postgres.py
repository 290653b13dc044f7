"""Rows of a real PostgreSQL and records of the log, by a program that dies at each of its steps."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import DEADLINE_S

from oncelog.api.session.cluster_connection import read_discovery

psycopg = pytest.importorskip("psycopg")

pytestmark = [pytest.mark.ray, pytest.mark.slow]

STEPS = ("prepared", "written", "committed", "completed")
PROGRAM = """
import os, signal, sys
from oncelog.examples.postgres import main

dsn, address, count, last_step = sys.argv[1:]

def after(step):
    if step == last_step:
        os.kill(os.getpid(), signal.SIGKILL)

main(dsn, int(count), after, address=address)
"""


def programs_of_postgres() -> Path | None:
    """Where Debian's package has the server."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    return found[-1].parent if found else None


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    """A server of its own, which listens on a socket in its directory only."""
    programs = programs_of_postgres()
    if programs is None or os.geteuid() != 0:
        pytest.skip("needs the Debian package postgresql, and root to become its user")
    root = Path(tempfile.mkdtemp(prefix="oncelog-postgres-"))
    shutil.chown(root, "postgres")

    def run(program: str, *arguments: str) -> None:
        command = ["runuser", "-u", "postgres", "--", str(programs / program), *arguments]
        subprocess.run(command, check=True, cwd=root, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)

    data = str(root / "data")
    run("initdb", "--pgdata", data, "--auth=trust", "--username=postgres")
    options = f"-k {root} -c listen_addresses=''"
    run("pg_ctl", "start", "-w", "-D", data, "-l", str(root / "log"), "-o", options)
    try:
        yield f"host={root} user=postgres dbname=postgres"
    finally:
        run("pg_ctl", "stop", "-D", data, "-m", "immediate")
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster that allows prepared transactions."""
    data_dir = tmp_path_factory.mktemp("two-phases") / "log"
    setting = "transaction_two_phase_commit_enable=true"
    shell("start", "--num-cpus", "2", "--config", setting, "--data-dir", str(data_dir))
    found = read_discovery(data_dir)
    assert found is not None
    try:
        yield found.address
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.process_id, signal.SIGTERM)


def shell(*arguments: str) -> str:
    command = [sys.executable, "-m", "oncelog.api.cli.main", *arguments]
    environment = {name: text for name, text in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=DEADLINE_S, env=environment
    )
    return done.stdout


def run_program(dsn: str, address: str, count: int, last_step: str = "") -> int:
    command = [sys.executable, "-c", PROGRAM, dsn, address, str(count), last_step]
    environment = {name: text for name, text in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.run(command, check=False, timeout=DEADLINE_S, env=environment).returncode


def test_each_order_is_in_both_or_in_neither_wherever_the_program_dies(
    dsn: str, address: str
) -> None:
    for number, step in enumerate(STEPS):
        assert run_program(dsn, address, 10 * (number + 1), step) == -signal.SIGKILL
    assert run_program(dsn, address, len(STEPS) + 3) == 0
    with psycopg.connect(dsn) as database:
        rows = database.execute("SELECT number, text FROM orders ORDER BY number").fetchall()
    assert rows == [(number, f"order {number}") for number in range(len(STEPS) + 3)]
    count = str(len(rows))
    said = shell(
        *("consume", "orders", "--from-beginning", "--max-records", count, "--address", address)
    )
    assert said.splitlines() == [text for _, text in rows]
