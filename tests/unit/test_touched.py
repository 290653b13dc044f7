"""A change in one room runs the tests that import it, and not those that do not."""

from __future__ import annotations

import pytest
from touched import project_sources, touched

SOURCES = {
    "storage/model.py": "import enum",
    "storage/log/log.py": "from oncelog.storage import model",
    "api/client.py": "def connect():\n    from oncelog.storage.log.log import Log",
    "tests/helpers/worlds.py": "from oncelog.api.client import connect",
    "tests/sim/sim_loop.py": "import asyncio",
    "tests/unit/test_log.py": "import oncelog.storage.log.log",
    "tests/unit/test_client.py": "from worlds import connect",
    "tests/unit/test_other.py": "import json",
    "tests/sim/test_loop.py": "import sim_loop",
    "tests/arch/test_style.py": "import ast",
}


@pytest.mark.parametrize(
    ("changed", "files"),
    [
        ("storage/log/log.py", ["tests/unit/test_client.py", "tests/unit/test_log.py"]),
        ("api/client.py", ["tests/unit/test_client.py"]),
        ("tests/sim/sim_loop.py", ["tests/sim/test_loop.py"]),
        ("tests/unit/test_other.py", ["tests/unit/test_other.py"]),
        ("tests/sim/conftest.py", ["tests/sim/test_loop.py"]),
        ("docs/ARCHITECTURE.md", []),
    ],
)
def test_a_change_touches_what_imports_it(changed: str, files: list[str]) -> None:
    assert touched([changed], SOURCES) == ["tests/arch", *files]


@pytest.mark.parametrize("changed", ["tests/conftest.py", "storage/records/_kernel.pyx", "run"])
def test_what_all_tests_depend_on_touches_all(changed: str) -> None:
    assert touched([changed], SOURCES) == ["tests"]


def test_without_a_change_all_tests_run() -> None:
    assert touched([], SOURCES) == ["tests"]


def test_a_change_of_a_low_room_runs_a_part_of_the_tests() -> None:
    sources = project_sources()
    found = touched(["storage/segments/segment.py"], sources)
    assert "tests/unit/storage/segments/test_segment.py" in found
    assert not any(path.startswith("tests/unit/protocol/partition/") for path in found)
