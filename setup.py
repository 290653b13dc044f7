"""Builds the record codec and the send path in C, and finds the packages.

The rest stands in ``pyproject.toml``. In a checkout Cython makes the C; a source distribution has
it, and needs none. From Python 3.11 on one build serves all later versions (the stable ABI); 3.10
needs one of its own.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import CCompilerError

try:
    from Cython.Build import cythonize
except ImportError:
    cythonize = None

HAS_STABLE_ABI = sys.version_info >= (3, 11)
"""The stable ABI knows buffers only since 3.11."""

CYTHON = "cython==3.3.1"
NO_CYTHON = f"oncelog is compiled by way of Cython; install it: pip install {CYTHON}"
NO_COMPILER = (
    "install a C compiler and Python's headers: apt-get install build-essential python{}.{}-dev"
)


def extension(module: str, source: str, *parts: str) -> Extension:
    """One module in C; ``parts`` are the files that its source includes."""
    return Extension(
        module,
        [source],
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if HAS_STABLE_ABI else [],
        extra_compile_args=[] if sys.platform == "win32" else ["-O3"],
        depends=[source, *parts],
        py_limited_api=HAS_STABLE_ABI,
    )


ROOMS = ("actors", "api", "examples", "ray_data", "spark_bridge", "storage")
"""The directories of this one that are packages of ``oncelog``, which is this directory itself."""

LAYOUT = "storage/records/_layout.pxi"

EXTENSIONS = [
    extension(
        "oncelog.storage.records._kernel",
        "storage/records/_kernel.pyx",
        LAYOUT,
        *(
            f"storage/records/_kernel_{part}.pxi"
            for part in ("bytes", "crc", "batch", "encode", "decode", "rows", "scan")
        ),
    ),
    extension("oncelog.api.batching._open_batches", "api/batching/_open_batches.pyx", LAYOUT),
]


def packages() -> list[str]:
    """All packages, by their full names."""
    found = find_packages(include=[name for room in ROOMS for name in (room, f"{room}.*")])
    return ["oncelog", *(f"oncelog.{name}" for name in found)]


def in_c(built: Extension) -> Path:
    """Its C: what Cython has made, or else what is delivered beside the source."""
    path = Path(built.sources[0]).with_suffix(".c")
    if not path.exists():
        raise SystemExit(NO_CYTHON)
    return path


class BuildExtensions(build_ext):
    """Says in a line what is missing, if something is."""

    def build_extension(self, ext: Extension) -> None:
        """Compile one of them."""
        ext.sources = [str(in_c(ext))]
        try:
            super().build_extension(ext)
        except CCompilerError as error:
            how = NO_COMPILER.format(*sys.version_info)
            raise SystemExit(f"oncelog does not compile here ({error}); {how}") from None


class BuildPackages(build_py):
    """Leaves out what stands beside the package's ``__init__``, and is none of its modules."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """The modules of a package, as (package, name, file)."""
        found = super().find_package_modules(package, package_dir)
        return [one for one in found if package != "oncelog" or one[1] == "__init__"]


class SourceDistribution(sdist):
    """The sources with their C, so that whoever builds them needs no Cython."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Add the C beside the source, and no longer ask for Cython."""
        super().make_release_tree(base_dir, files)
        for built, written in zip(extensions, EXTENSIONS, strict=True):
            shutil.copyfile(in_c(built), Path(base_dir, written.depends[0]).with_suffix(".c"))
        settings = Path(base_dir, "pyproject.toml")
        text = settings.read_text(encoding="utf-8")
        settings.unlink()  # it may be a link to ours
        settings.write_text(text.replace(f', "{CYTHON}"]', "]", 1), encoding="utf-8")


extensions = cythonize(EXTENSIONS, build_dir="build") if cythonize else EXTENSIONS

setup(
    packages=packages(),
    package_dir={"oncelog": "."},
    ext_modules=extensions,
    cmdclass={
        "build_ext": BuildExtensions,
        "build_py": BuildPackages,
        "sdist": SourceDistribution,
    },
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if HAS_STABLE_ABI else {},
)
