"""What is not built says in one line what to install; what is delivered can be built elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile

import pytest

ROOT_FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "py.typed")
C_FILES = ("storage/records/_kernel.c", "api/batching/_open_batches.c")


@pytest.fixture
def delivered(root, tmp_path):
    """What a source distribution has of the build: C that is empty, and no Cython."""
    for name in ROOT_FILES:
        shutil.copy(root / name, tmp_path / name)
    for name in C_FILES:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    (tmp_path / "Cython").mkdir()
    (tmp_path / "Cython" / "__init__.py").write_text("raise ImportError")
    return tmp_path


def start(tree, *words, **environment):
    return subprocess.run(
        [sys.executable, "setup.py", "--quiet", *words],
        cwd=tree,
        env={"PATH": os.environ["PATH"], "HOME": str(tree), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_without_a_compiler_the_last_line_says_what_to_install(delivered):
    done = start(delivered, "build_ext", CC="false")
    assert done.returncode == 1
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert done.stderr.splitlines()[-1].endswith(
        f"apt-get install build-essential python{version}-dev"
    )


def test_without_cython_and_its_c_the_last_line_says_what_to_install(delivered):
    (delivered / C_FILES[0]).unlink()
    done = start(delivered, "build_ext")
    assert done.returncode == 1
    assert re.search(r"pip install cython==[\d.]+$", done.stderr.splitlines()[-1])


@pytest.mark.slow
def test_a_source_distribution_has_the_c_and_asks_for_no_cython(root, project_files, tmp_path):
    folders = ("storage/", "actors/", "api/", "ray_data/", "spark_bridge/", "examples/")
    tree = tmp_path / "tree"
    for name in project_files:
        if name.startswith(folders) or "/" not in name:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, tree / name)

    done = start(tree, "sdist", "--dist-dir", str(tmp_path))

    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2]: name for name in opened.getnames()}
        settings = opened.extractfile(names["pyproject.toml"]).read().decode()
    assert {*C_FILES, "storage/records/_kernel.pyx", "storage/records/_layout.pxi"} <= set(names)
    assert re.search(r'^requires = \["setuptools[^"]*"\]$', settings, re.MULTILINE)
    assert "cython" in (tree / "pyproject.toml").read_text().splitlines()[1]
