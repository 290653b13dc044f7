"""Builds the optional record codec in C; everything else stands in ``pyproject.toml``.

Without Cython or a C compiler the project installs all the same and encodes in Python. From
Python 3.11 on one build serves all later versions (the stable ABI); 3.10 needs one of its own.
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

KERNEL = Extension(
    "oncelog.storage._kernel",
    ["storage/_kernel.pyx"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if HAS_STABLE_ABI else [],
    extra_compile_args=[] if sys.platform == "win32" else ["-O3"],
    depends=[
        f"storage/_kernel_{part}.pxi" for part in ("bytes", "crc", "encode", "decode", "scan")
    ],
    py_limited_api=HAS_STABLE_ABI,
)

extensions = cythonize([KERNEL], build_dir="build") if cythonize else []
for extension in extensions:
    # Said here because ``cythonize`` makes new extensions and does not copy this.
    extension.optional = True

setup(
    ext_modules=extensions,
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if HAS_STABLE_ABI else {},
)
