"""``./run`` answers a mistake, and a machine that lacks something, with one line.

And the whole test succeeds when all of its parts do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from deadlines import DEADLINE_S

TOOLS = ("bash", "cat", "dirname", "env", "flock", "grep", "head", "id", "ls", "paste")
TOOLS += ("readlink", "rm", "sed", "sha256sum")


@pytest.fixture
def bare(root, tmp_path):
    """A copy of the start script and a PATH with the basic tools, no Python, and no root."""
    for name in ("run", "pyproject.toml", "requirements.lock"):
        shutil.copy(root / name, tmp_path / name)
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found:
            (tools / tool).symlink_to(found)
    (tools / "id").unlink()
    program(tools / "id", "echo 1000")
    return tmp_path


def program(path, body):
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)


def complete_python(path, version):
    """A Python that can make an environment, but does not; its compiler is ``cc``."""
    program(
        path,
        f"""[ "$1" = -c ] || exit 1
        case "$2" in *sysconfig*) echo cc; echo /include ;; *) echo {version} complete ;; esac""",
    )


def start(bare, *words):
    return subprocess.run(
        ["./run", *words],
        cwd=bare,
        env={"PATH": str(bare / "tools"), "HOME": str(bare)},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


def test_an_unknown_command_is_answered_with_what_is_allowed(bare):
    done = start(bare, "tset")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "'tset'" in done.stderr
    assert "demo, test" in done.stderr


def test_without_a_python_the_answer_names_what_is_needed(bare):
    done = start(bare, "python")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "needs Python 3.10 to 3.14 and found none" in done.stderr


def test_a_python_of_another_version_is_named_and_not_used(bare):
    program(bare / "tools" / "python3", "echo 3.15 complete")
    done = start(bare, "python")
    assert done.returncode == 1
    assert "found 3.15" in done.stderr


def test_a_python_without_venv_is_answered_with_the_package_to_install(bare):
    program(bare / "tools" / "python3", "echo 3.12 partial")
    done = start(bare, "python")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "apt-get install python3.12-venv" in done.stderr


def test_a_python_without_venv_is_passed_over_for_a_complete_one(bare):
    program(bare / "tools" / "python3.11", "echo 3.11 partial")
    complete_python(bare / "tools" / "python3.10", "3.10")
    program(bare / "tools" / "cc", "exit 0")
    done = start(bare, "python")
    first = done.stderr.splitlines()[0]
    assert "setting up .venv with Python 3.10" in first
    assert "python3.10" in first


@pytest.mark.parametrize("compiler", [None, "exit 1"])
def test_without_a_compiler_or_headers_the_answer_names_what_to_install(bare, compiler):
    complete_python(bare / "tools" / "python3.11", "3.11")
    if compiler is not None:
        program(bare / "tools" / "cc", compiler)
    done = start(bare, "python")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "apt-get install build-essential python3.11-dev" in done.stderr
    assert not (bare / ".venv").exists()


def test_without_arguments_the_commands_are_shown(bare):
    done = start(bare)
    assert done.returncode == 0
    assert "demo" in done.stdout


# --- the whole test ---------------------------------------------------------------------------

REAL, NODES = "= 1 of a real cluster =", "= 1 of nodes of its own ="
SIMULATED, OTHERS = "= 1 simulated =", "= 1 other ="
FAILURES = "=== FAILURES ==="


def function_of_run(root, name):
    return re.search(rf"^{name}\(\).*?^}}$", (root / "run").read_text(), re.M | re.S).group()


def bash(root, script, **environment):
    """Run a script with the place where a whole test leaves what it said."""
    return subprocess.run(
        ["bash", "-c", f"set -euo pipefail\nroot={root}\n{script}"],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


def whole_test(root, tmp_path, *, real=0, nodes=0, simulated=0, others=0):
    """What ``run_all_tests`` does with a pytest that only prints and ends as told."""
    failed = {status: f"echo '{FAILURES}'; " if status else "" for status in (0, 1)}
    program(
        tmp_path / "pytest",
        f"""case "$*" in
        *"not spark tests/sim") {failed[simulated]}echo "{SIMULATED}"; exit {simulated} ;;
        *"not spark --ignore=tests/sim") {failed[others]}echo "{OTHERS}"; exit {others} ;;
        *"-m nodes") {failed[nodes]}echo "{NODES}"; exit {nodes} ;;
        *"not nodes") {failed[real]}echo "{REAL}"; exit {real} ;;
        esac""",
    )
    script = f"{function_of_run(root, 'run_all_tests')}\nrun_all_tests"
    done = bash(tmp_path, script, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_the_whole_test_succeeds_if_all_its_parts_do(root, tmp_path):
    assert whole_test(root, tmp_path) == (0, [REAL, SIMULATED, NODES, OTHERS])


def test_what_failed_on_a_real_cluster_is_told_at_the_end(root, tmp_path):
    told = [FAILURES, REAL, SIMULATED, NODES, OTHERS, FAILURES, REAL]
    assert whole_test(root, tmp_path, real=1) == (1, told)


def test_what_failed_on_nodes_of_its_own_is_told_at_the_end(root, tmp_path):
    told = [REAL, SIMULATED, FAILURES, NODES, OTHERS, FAILURES, NODES]
    assert whole_test(root, tmp_path, nodes=1) == (1, told)


def test_what_failed_in_the_simulator_is_told_at_the_end(root, tmp_path):
    told = [REAL, FAILURES, SIMULATED, NODES, OTHERS, FAILURES, SIMULATED]
    assert whole_test(root, tmp_path, simulated=1) == (1, told)


def test_the_whole_test_fails_with_what_else_computes(root, tmp_path):
    told = [REAL, SIMULATED, NODES, FAILURES, OTHERS]
    assert whole_test(root, tmp_path, others=1) == (1, told)


def test_the_slowest_tests_are_those_of_every_part_of_the_last_whole_test(root, tmp_path):
    program(
        tmp_path / "pytest",
        """case "$*" in
        *"spark tests/sim") echo '9.50s call     of the simulator' ;;
        *) echo '10.25s call     of others'; echo '0.90s setup    of others too' ;;
        esac""",
    )
    functions = f"{function_of_run(root, 'run_all_tests')}\n{function_of_run(root, 'show_slowest')}"
    script = f"{functions}\nrun_all_tests >/dev/null\nshow_slowest"
    done = bash(tmp_path, script, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    seconds = [float(line.split("s ")[0]) for line in done.stdout.splitlines()]
    assert seconds == [10.25] * 3 + [9.5] + [0.9] * 3


def test_without_a_whole_test_there_are_no_slowest_ones(root, tmp_path):
    die = 'die() { echo "$*" >&2; exit 1; }'
    done = bash(tmp_path, f"{die}\n{function_of_run(root, 'show_slowest')}\nshow_slowest")
    assert done.returncode == 1
    assert "no whole test yet" in done.stderr
