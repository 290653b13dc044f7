"""Connecting to what is not there, is not ours or is otherwise: one line, within seconds."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deadlines import DEADLINE_S

from oncelog.storage.exceptions import ConnectionFailedError, InvalidSettingError

pytestmark = pytest.mark.ray

CALL = """
import sys, time
import oncelog
began = time.monotonic()
try:
    exec(sys.argv[1])
except Exception as error:
    print(type(error).__name__, error)
assert time.monotonic() - began < 25
"""


def call(code: str, **environment: str) -> str:
    """What a program prints that makes one call."""
    unset = {"RAY_ADDRESS", "RAY_AUTH_MODE"}
    inherited = {name: text for name, text in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, "-c", CALL, code],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env={**inherited, **environment},
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.fixture
def deaf() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"127.0.0.1:{port}"


@pytest.fixture
def web_server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def silent() -> Iterator[str]:
    """Something that takes connections and never says a word."""
    with socket.create_server(("", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_an_address_without_a_ray_cluster_is_refused_with_the_reason(
    deaf: str, web_server: str, silent: str
) -> None:
    for address, reason in (
        (deaf, "Connection refused"),
        (web_server, "is no Ray cluster"),
        (silent, "no Ray cluster answers"),
        ("nosuchhost.invalid:6379", "nosuchhost.invalid"),
        ("nonsense", "nonsense"),
        ("ray://127.0.0.1:1", "without a scheme"),
    ):
        said = call(f"oncelog.connect({address!r})")
        assert said.startswith("ConnectionFailedError"), said
        assert reason in said
        assert repr(address) in said
        assert len(said.splitlines()) == 1


def test_a_missing_or_wrong_token_is_named(cluster: Any, tmp_path: Path) -> None:
    code = f"oncelog.connect({cluster.address!r})"
    said = call(code, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="wrong-" * 8)
    assert "refuses the token that is set here" in said
    said = call(code, HOME=str(tmp_path))
    assert "demands a token" in said
    assert "RAY_AUTH_TOKEN" in said


def test_a_process_connected_to_one_cluster_cannot_use_another(cluster: Any, deaf: str) -> None:
    import oncelog

    with pytest.raises(ConnectionFailedError, match="no Ray cluster answers"):
        oncelog.connect(deaf)
    port = cluster.address.rpartition(":")[2]
    oncelog.connect(f"localhost:{port}").close()
    code = (
        "import ray\n"
        "ray.init('local', num_cpus=1, include_dashboard=False, log_to_driver=False,"
        " logging_level='ERROR', configure_logging=False)\n"
        "began = time.monotonic()\n"
        f"oncelog.connect({cluster.address!r})"
    )
    said = call(code, RAY_AUTH_MODE="token")
    assert "this process is connected to the Ray cluster at" in said
    assert repr(cluster.address) in said


def test_settings_that_a_running_cluster_does_not_have_are_refused(cluster: Any) -> None:
    import oncelog

    directory = cluster.data_dir
    oncelog.init(directory, num_cpus=2, offsets_partitions=2, metrics_interval_ms=10_000).close()
    different: tuple[tuple[dict[str, Any], str], ...] = (
        ({"metrics_interval_ms": 7}, "10000"),
        ({"offsets_partitions": 3}, "2"),
        ({"num_cpus": 1}, "2"),
        ({"dashboard_port": 1}, "http"),
    )
    for setting, there in different:
        ((name, value),) = setting.items()
        with pytest.raises(InvalidSettingError, match=f"{name}={value} .*{there}"):
            oncelog.init(directory, **setting)


def test_a_word_of_a_process_whose_number_another_has_is_not_believed(tmp_path: Path) -> None:
    """1. A starter with the number N leaves its word, and its machine or container ends. 2. N is
    another process now. 3. ``init`` starts a cluster instead of joining one that is no more.
    """
    word = {
        "address": "192.0.2.1:6379",
        "dashboard_url": "",
        "process_id": os.getpid(),
        "life": "an earlier boot 17",
    }
    (tmp_path / "cluster.json").write_text(json.dumps(word))
    said = call(
        f"cluster = oncelog.init({str(tmp_path)!r}, num_cpus=1)\nprint(cluster.data_dir)\n"
        "began = time.monotonic()\ncluster.shutdown()"
    )
    assert said.strip() == str(tmp_path)
