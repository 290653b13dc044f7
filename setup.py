"""Builds the optional record codec and send path in C.

The rest stands in ``pyproject.toml``. Without Cython or a C compiler the project installs all the
same and does it all in Python. From Python 3.11 on one build serves all later versions (the stable
ABI); 3.10 needs one of its own.
"""

from __future__ import annotations

import sys

from setuptools import Extension, setup

try:
    from Cython.Build import cythonize
except ImportError:
    cythonize = None

HAS_STABLE_ABI = sys.version_info >= (3, 11)
"""The stable ABI knows buffers only since 3.11."""


def extension(module: str, source: str, *parts: str) -> Extension:
    """One module in C; ``parts`` are the files that its source includes."""
    return Extension(
        module,
        [source],
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if HAS_STABLE_ABI else [],
        extra_compile_args=[] if sys.platform == "win32" else ["-O3"],
        depends=list(parts),
        py_limited_api=HAS_STABLE_ABI,
    )


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

extensions = cythonize(EXTENSIONS, build_dir="build") if cythonize else []
for built in extensions:
    # Said here because ``cythonize`` makes new extensions and does not copy this.
    built.optional = True

setup(
    ext_modules=extensions,
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if HAS_STABLE_ABI else {},
)
