"""Debezium in Kafka Connect: each change of a PostgreSQL database comes once, and in order."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import kafka_connect
import pytest
from deadlines import wait_for
from kafka_clients import COMMITTED, HOST, UNCOMMITTED, OpenOutput, free_port, read_to_end
from kafka_connect import EACH_POLL, EXACTLY_ONCE, KILLS, TRANSACTIONS_OF_LIFE, Worker
from programs import Programs
from suite import Place

DEBIAN = Path("/usr/lib/postgresql")
USER = "postgres"
SQL_TIMEOUT_S = 60
JSON = "org.apache.kafka.connect.json.JsonConverter"
ROWS_BEFORE, ROWS_OF_LIFE = 100, 50
UPDATES_OF_LIFE = 2
"""Of each row."""
RECORDS_OF_TRANSACTION = 5


def postgresql() -> Path:
    """The directory of the programs of the newest PostgreSQL, or the suite is skipped."""
    found = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        pytest.skip("no PostgreSQL on this machine; Debian has a package of it")
    return found[-1].parent


def needs() -> None:
    """PostgreSQL and Kafka Connect."""
    postgresql()
    kafka_connect.needs()


class Database:
    """A PostgreSQL of its own, with the table ``accounts`` and what was done to it."""

    def __init__(self, directory: Path, log: Path) -> None:
        self.port = free_port()
        self.changes: list[tuple[str, int, int]] = []
        """Operation, id and version of each row that was there, came or was changed, in order."""
        self._directory = directory
        self._rows: list[int] = []
        """The version of each row, by its id."""
        # It refuses to run as root.
        self._user = USER if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(directory, self._user)
        data = str(directory / "data")
        self._run("initdb", "--no-sync", "--auth=trust", f"--username={USER}", "--pgdata", data)
        given = {
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "wal_level": "logical",
            "fsync": "off",
        }
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                [
                    *(str(postgresql() / "postgres"), "-D", data, "-p", str(self.port)),
                    *(word for one in given.items() for word in ("-c", "=".join(one))),
                ],
                cwd=directory,
                user=self._user,
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def create(self) -> None:
        """Create the table, once the database answers, with some rows."""
        wait_for(lambda: self._ask("select 1").returncode == 0, "an answer of PostgreSQL")
        self.execute("create table accounts (id int primary key, version int not null)")
        self._insert(ROWS_BEFORE)
        self.changes = [("r", number, version) for _, number, version in self.changes]

    def change(self) -> None:
        """Insert rows, and change each row some times, in a transaction of its own each time."""
        self._insert(ROWS_OF_LIFE)
        for _ in range(UPDATES_OF_LIFE):
            self.execute(
                f"do $$ begin for i in 0..{len(self._rows) - 1} loop "
                "update accounts set version = version + 1 where id = i; commit; "
                "end loop; end $$"
            )
            self._rows = [version + 1 for version in self._rows]
            self.changes += [("u", number, version) for number, version in enumerate(self._rows)]

    def execute(self, sql: str) -> None:
        """Run a statement."""
        done = self._ask(sql)
        assert done.returncode == 0, done.stderr

    def close(self) -> None:
        """End it at once; nothing of it is needed any more."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(SQL_TIMEOUT_S)

    def _insert(self, count: int) -> None:
        first = len(self._rows)
        self.execute(
            f"insert into accounts select i, 0 from generate_series({first}, {first + count - 1}) i"
        )
        self.changes += [("c", number, 0) for number in range(first, first + count)]
        self._rows += [0] * count

    def _ask(self, sql: str) -> subprocess.CompletedProcess[str]:
        to = ("--host", HOST, "--port", str(self.port), "--username", USER)
        return self._run("psql", "--no-psqlrc", "--quiet", *to, "--command", sql, is_checked=False)

    def _run(
        self, program: str, *arguments: str, is_checked: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(postgresql() / program), *arguments],
            cwd=self._directory,
            user=self._user,
            capture_output=True,
            text=True,
            check=is_checked,
            timeout=SQL_TIMEOUT_S,
        )


@contextmanager
def database(place: Place) -> Iterator[Database]:
    """A new one, whose directory its user may enter."""
    with (
        tempfile.TemporaryDirectory(prefix="oncelog-postgresql-") as directory,
        closing(Database(Path(directory), place.directory / "postgresql.txt")) as one,
    ):
        one.create()
        yield one


def changes_in(place: Place, topic: str, isolation: str = COMMITTED) -> list[tuple[str, int, int]]:
    """The changes that Debezium has written, as ``Database.changes``."""
    events = map(json.loads, read_to_end(place.cluster.bootstrap, topic, isolation))
    return [(one["op"], one["after"]["id"], one["after"]["version"]) for one in events]


def killed(place: Place) -> None:
    """Its worker is killed in mid transaction, again and again, while rows change."""
    name = "debezium"
    topic = f"{name}.public.accounts"
    place.cluster.create_topic(topic)
    converters = {
        f"{one}.converter{more}": value
        for one in ("key", "value")
        for more, value in (("", JSON), (".schemas.enable", "false"))
    }
    with (
        closing(place.cluster.connect()) as own,
        database(place) as source,
        closing(Worker(place, name, {**EXACTLY_ONCE, **converters})) as worker,
    ):
        output = OpenOutput(own.admin(), f"{name}-", topic)
        worker.start()
        worker.configure("accounts", {**EACH_POLL, **settings_of(source, name)})
        wait_for(lambda: len(changes_in(place, topic)) == ROWS_BEFORE, "the rows of before")
        for life in range(KILLS):
            if life:
                worker.start()
            source.change()
            worker.kill_when(output.after(TRANSACTIONS_OF_LIFE))
            found = changes_in(place, topic)
            assert found == source.changes[: len(found)]
            assert len(found) < len(source.changes)
        worker.start()
        source.change()
        wait_for(
            lambda: len(changes_in(place, topic)) >= len(source.changes),
            "all changes",
            instead=lambda: worker.said()[-2_000:],
        )
    assert changes_in(place, topic) == source.changes
    assert len(changes_in(place, topic, UNCOMMITTED)) > len(source.changes)


def settings_of(source: Database, name: str) -> dict[str, object]:
    """Those of a connector that reads the table ``accounts``."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": HOST,
        "database.port": source.port,
        "database.user": USER,
        "database.dbname": USER,
        "plugin.name": "pgoutput",
        "publication.autocreate.mode": "filtered",
        "table.include.list": "public.accounts",
        "topic.prefix": name,
        "max.batch.size": RECORDS_OF_TRANSACTION,
        "max.queue.size": 2 * RECORDS_OF_TRANSACTION,
        "poll.interval.ms": 10,
        "slot.retry.delay.ms": 500,
    }


CASES: dict[str, Callable[[Place], None]] = {"postgresql-worker-killed": killed}

DEBEZIUM = Programs("debezium", CASES, needs)
