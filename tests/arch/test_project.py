"""The project as a whole: packaging, lock file, and what must not stand in any file."""

from __future__ import annotations

import ast
import json
import re
import sys

import pytest
import yaml
from packaging.requirements import Requirement

from oncelog.actors.process.ray_environment import SYSTEM_CONFIG

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MACHINE_PATH = re.compile(r"""(?:^|[\s"'=(:])(/(?:home|root|Users)/[a-z]|/tmp/[a-z]|/work/)""")


@pytest.fixture(scope="module")
def settings(root):
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def lock(root):
    return (root / "requirements.lock").read_text(encoding="utf-8")


def test_every_source_package_is_installed(root, project_files):
    """``setup.py`` finds the packages in the directories that it names."""
    tree = ast.parse((root / "setup.py").read_text(encoding="utf-8"))
    assigned = {
        ast.unparse(one.targets[0]): one.value for one in tree.body if isinstance(one, ast.Assign)
    }
    rooms = {name.split("/")[0] for name in project_files if name.count("/") > 0}
    packages = {room for room in rooms if f"{room}/__init__.py" in project_files} - {"bench"}
    assert set(ast.literal_eval(assigned["ROOMS"])) == packages


def test_every_module_is_in_a_package(project_files):
    sources = ("storage/", "actors/", "api/", "ray_data/", "spark_bridge/", "examples/")
    directories = {
        name.rpartition("/")[0]
        for name in project_files
        if name.startswith(sources) and name.endswith(".py")
    }
    assert not {
        directory for directory in directories if f"{directory}/__init__.py" not in project_files
    }


def test_no_name_at_the_root_hides_a_standard_module(project_files):
    names = {
        name.split("/")[0].removesuffix(".py") for name in project_files if name.endswith(".py")
    }
    assert not names & sys.stdlib_module_names


def test_test_directories_are_no_packages(project_files):
    assert not [
        name for name in project_files if name.startswith("tests/") and name.endswith("__init__.py")
    ]


def test_direct_dependencies_are_bounded_and_locked(settings, lock):
    project = settings["project"]
    wanted = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        wanted += extra
    for text in wanted:
        wish = Requirement(text)
        bounds = {one.operator for one in wish.specifier}
        assert bounds in ({"=="}, {">=", "<"}), text
        locked = re.findall(rf"^{re.escape(wish.name)}==(\S+) ", lock, re.MULTILINE)
        fitting = [version for version in locked if wish.specifier.contains(version, True)]
        assert fitting if wish.marker else fitting == locked != [], text


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-docs.lock"])
def test_the_lock_has_a_hash_for_every_package_and_no_address(root, name):
    text = (root / name).read_text(encoding="utf-8")
    blocks = re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]
    assert len(blocks) > len(("setuptools", "pytest"))
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []
    assert "://" not in text
    assert "--index" not in text


def test_the_tools_of_the_site_are_locked_as_they_are_asked_for(root):
    wanted = (root / "requirements-docs.in").read_text(encoding="utf-8")
    pins = re.findall(r"^([\w-]+)(?:\[\w+\])?==([\w.]+)", wanted, re.MULTILINE)
    lock = (root / "requirements-docs.lock").read_text(encoding="utf-8")
    assert pins
    assert [pin for pin in pins if f"\n{pin[0]}=={pin[1]} " not in lock] == []


def test_no_file_names_a_place_on_one_machine(root, project_files):
    wrong = []
    for name in project_files:
        text = (root / name).read_bytes().decode("utf-8", "replace")
        wrong += [
            f"{name}:{number}: {found.group(1)}"
            for number, line in enumerate(text.splitlines(), 1)
            if (found := MACHINE_PATH.search(line))
        ]
    assert not wrong, "\n".join(wrong)


def test_starting_a_cluster_stops_no_other_ray_on_its_hosts(root):
    cluster = yaml.safe_load((root / "cluster.yaml").read_text(encoding="utf-8"))
    commands = [*cluster["head_start_ray_commands"], *cluster["worker_start_ray_commands"]]
    assert len(commands) >= len(("head", "worker"))
    assert not [command for command in commands if "ray stop" in command]
    assert all("RAY_AUTH_MODE=token" in command for command in commands if "ray start" in command)


def test_the_cluster_file_tunes_ray_as_a_local_cluster_is_tuned(root):
    cluster = yaml.safe_load((root / "cluster.yaml").read_text(encoding="utf-8"))
    (system_config,) = re.findall(
        r"--system-config='(.*?)'", " ".join(cluster["head_start_ray_commands"])
    )
    assert json.loads(system_config) == SYSTEM_CONFIG


@pytest.mark.slow
def test_ray_up_accepts_the_cluster_file(root):
    from ray.autoscaler._private.util import prepare_config, validate_config

    cluster = yaml.safe_load((root / "cluster.yaml").read_text(encoding="utf-8"))
    prepared = prepare_config(cluster)
    validate_config(prepared)
    assert prepared["provider"]["type"] == "local"
