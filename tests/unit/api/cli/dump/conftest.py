"""Sample directories, and the command that looks at them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import sample_logs
from partition_files import ACTIVE, file_of

from oncelog.api.cli import main as cli


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """One partition of each topic, closed cleanly; not to be changed."""
    data_dir = tmp_path_factory.mktemp("samples")
    sample_logs.write_data_log(data_dir)
    sample_logs.write_transaction_log(data_dir)
    sample_logs.write_offsets_log(data_dir)
    sample_logs.write_metadata_log(data_dir)
    return data_dir


@pytest.fixture
def flights(samples, tmp_path):
    """A copy of the data log, to be damaged."""
    return Path(shutil.copytree(samples / "flights-0", tmp_path / "flights-0"))


@pytest.fixture
def killed(flights):
    """The same after its process died: no clean flag, no indexes of the active segment."""
    (flights / ".clean_shutdown").unlink()
    for suffix in (".index", ".timeindex"):
        file_of(flights, ACTIVE, suffix).unlink()
    (flights / f"{769:020d}.snapshot").unlink()
    return flights


@pytest.fixture
def dump(capsys):
    """``dump(*words)``: exit status and lines."""

    def run(*words):
        status = cli.main(["dump", *map(str, words)])
        return status, capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def verify(dump):
    """``verify(path)``: status, problems and notes as (file name, position, reason)."""

    def run(path, *words):
        status, lines = dump("--verify", "--json", *words, path)
        rows = [json.loads(line) for line in lines]
        problems, notes = (
            [(Path(row["file"]).name, row["position"], row[word]) for row in rows if word in row]
            for word in ("problem", "note")
        )
        return status, problems, notes

    return run
