"""``import oncelog`` gives what its documents name, and loads nothing before it is used."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys

import pytest

import oncelog
from oncelog.storage import exceptions


@pytest.mark.parametrize("name", oncelog.__all__)
def test_each_public_name_is_there(name):
    assert getattr(oncelog, name).__name__.rpartition(".")[2] == name


def test_every_exception_of_a_user_is_public():
    kinds = [kind for kind in vars(exceptions).values() if isinstance(kind, type)]
    errors = [kind for kind in kinds if issubclass(kind, exceptions.OncelogError)]
    assert len(errors) > 50
    assert [kind for kind in errors if getattr(oncelog, kind.__name__, None) is not kind] == []


def test_another_name_is_refused_by_its_name():
    with pytest.raises(AttributeError, match="has no attribute 'Broker'"):
        oncelog.Broker  # noqa: B018


def test_the_package_itself_loads_neither_ray_nor_arrow():
    code = "import sys, oncelog; sys.exit('ray' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_type_checkers_are_told_that_it_is_typed():
    assert importlib.resources.files("oncelog").joinpath("py.typed").is_file()
