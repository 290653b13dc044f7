"""Imports go one way, machines are pure, and each outside thing has its few doors.

import-linter checks the layers too, also through chains of imports; these tests name the line.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch

import pytest

LAYERS = ("storage", "actors.protocol", "actors", "api", "ray_data", "spark_bridge", "examples")
"""From the lowest; a layer may import itself and those before it."""

MACHINE_LIBRARIES = frozenset(
    {"__future__", "abc", "binascii", "bisect", "collections", "copy", "dataclasses", "enum"}
    | {"functools", "hashlib", "heapq", "hmac", "ipaddress", "itertools", "math", "msgpack"}
    | {
        "msgspec",
        "operator",
        "re",
        "string",
        "stringprep",
        "struct",
        "types",
        "typing",
        "unicodedata",
        "zlib",
    }
)
"""What else a machine may import: nothing here knows a clock, a disk, chance or a thread."""

CODEC_LIBRARIES = frozenset(
    {"array", "copyreg", "crc32c", "cramjam", "difflib", "errno", "gzip", "io", "lz4", "pyarrow"}
    | {"sys", "typing_extensions", "zstandard"}
)
"""What the pure half of ``storage`` may import besides."""

CLI = "api/cli/*.py"
CONSOLE = "api/console/*.py"

EXAMPLES = "examples/*"
RAY_DATA = "ray_data/*"
RAY_DATA_CONNECTION = "ray_data/connection.py"
SPARK = "spark_bridge/*"
SPARK_CLASSES = tuple(
    f"spark_bridge/{name}.py" for name in ("pushdown", "schema", "sink", "source")
)
"""Adapters to Spark's own classes; what a read or a write does is told beside them."""
SPARK_SESSION = "spark_bridge/spark_session.py"
PROCESSES = (
    "actors/launch/controller_place.py",
    "actors/launch/cluster_location.py",
    "actors/launch/processes.py",
    "actors/process/process_table.py",
    "actors/process/ray_environment.py",
    "actors/process/ray_metrics.py",
    "actors/process/ray_output.py",
)
"""Where actors are put together from the real clock, disk, randomness and environment."""
CLIENT = (
    "api/processing/actor.py",
    "api/session/ray_cluster.py",
    "api/client.py",
    "api/session/cluster_connection.py",
    "api/session/links.py",
    "api/cli/head.py",
)
"""Where clients are, likewise."""

DOORS = {
    "a clock": (
        r"time\.(time|monotonic|perf_counter|process_time|thread_time)(_ns)?|time\.(gm|local)time"
        r"|datetime\.(datetime|date)\.(now|utcnow|today)",
        ("actors/process/clock.py", CLI, CONSOLE, EXAMPLES),
    ),
    "sleep": (r"time\.sleep", (EXAMPLES,)),
    "chance": (
        r"random\.(?!Random$)\w+|secrets\.\w+|uuid\.uuid[14]|os\.urandom",
        (
            "actors/rpc/handshake.py",
            "api/admin/identities.py",
            *PROCESSES,
            *CLIENT,
            CLI,
            CONSOLE,
            EXAMPLES,
        ),
    ),
    "the operating system": (
        r"(os|shutil|tempfile|subprocess|socket|signal|fcntl|mmap|glob|multiprocessing)\.\w+"
        r"|builtins\.open|io\.open",
        (
            "storage/disk/file_system.py",
            "actors/gateway/listener.py",
            "actors/rpc/certificates.py",
            "actors/rpc/frames.py",
            "actors/rpc/listener.py",
            "actors/rpc/listener_directory.py",
            "api/session/login.py",
            *PROCESSES,
            *CLIENT,
            CLI,
            CONSOLE,
            RAY_DATA_CONNECTION,
            SPARK,
            EXAMPLES,
        ),
    ),
    "Ray": (
        r"ray(\.\w+)*",
        ("actors/rpc/ray_transport.py", *PROCESSES, *CLIENT, CLI, RAY_DATA, SPARK, EXAMPLES),
    ),
    "Spark": (r"(pyspark|py4j|raydp)(\.\w+)*", (*SPARK_CLASSES, SPARK_SESSION, EXAMPLES)),
    "unpickling and evaluation": (
        r"(pickle|cloudpickle|_pickle|marshal|shelve|dill)\.\w+|builtins\.(eval|exec|compile)"
        r"|yaml\.(load|unsafe_load|full_load)",
        (),
    ),
    "print": (r"builtins\.(print|input|breakpoint)|pdb\.\w+", (CLI, EXAMPLES)),
}
"""What only some files may use: thing → (names, files)."""


def layer_of(module: str) -> int | None:
    """The place of ``oncelog.<module>`` in ``LAYERS``, the most special one first."""
    for place in (1, 0, *range(2, len(LAYERS))):
        if module == LAYERS[place] or module.startswith(LAYERS[place] + "."):
            return place
    return None


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_imports_never_point_to_a_higher_layer(product):
    wrong = [
        f"{source.path}:{line} imports {name}"
        for source in product
        for line, name in source.imports()
        if name.startswith("oncelog.")
        and (own := layer_of(module_of(source.path))) is not None
        and (other := layer_of(name.removeprefix("oncelog."))) is not None
        and other > own
    ]
    assert not wrong, "\n".join(wrong)


def test_compiled_code_imports_nothing_of_a_higher_layer(compiled):
    wrong = [
        f"{source.path} imports {name}"
        for source in compiled
        for name in re.findall(r"^ *(?:from|c?import) oncelog\.([\w.]+)", source.text, re.MULTILINE)
        if (own := layer_of(source.path.rpartition(".")[0].replace("/", "."))) is not None
        and (other := layer_of(name)) is not None
        and other > own
    ]
    assert not wrong, "\n".join(wrong)


def test_machines_import_only_the_pure_half_of_storage_and_pure_libraries(product):
    disk_half = reaching(product, "oncelog.storage.disk.file_system")
    wrong = [
        f"{source.path}:{line} imports {name}"
        for source in product
        if source.path.startswith("actors/protocol/")
        for line, name in source.imports()
        if name in disk_half
        or (
            not name.startswith(("oncelog.storage", "oncelog.actors.protocol"))
            and name.split(".")[0] not in MACHINE_LIBRARIES
        )
    ]
    assert "oncelog.storage.log.partition" in disk_half
    assert not wrong, "\n".join(wrong)


def test_the_pure_half_of_storage_imports_only_pure_libraries(product):
    disk_half = reaching(product, "oncelog.storage.disk.file_system")
    wrong = [
        f"{source.path}:{line} imports {name}"
        for source in product
        if source.path.startswith("storage/")
        and f"oncelog.{module_of(source.path)}" not in disk_half
        for line, name in source.imports()
        if not name.startswith("oncelog.storage")
        and name.split(".")[0] not in MACHINE_LIBRARIES | CODEC_LIBRARIES
    ]
    assert not wrong, "\n".join(wrong)


def reaching(product, goal: str) -> set[str]:
    """``goal`` and every module that imports it, directly or through others."""
    imports = {
        f"oncelog.{module_of(source.path)}": {name for _, name in source.imports()}
        for source in product
    }
    found = {goal}
    while more := {module for module, names in imports.items() if names & found} - found:
        found |= more
    return found


def test_machines_never_wait(product):
    wrong = [
        f"{source.path}: {word}"
        for source in product
        if source.path.startswith("actors/protocol/")
        for word in re.findall(r"^.*\b(?:async def|await)\b.*$", source.text, re.MULTILINE)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("thing", DOORS)
def test_only_its_doors_use(product, thing):
    pattern, doors = DOORS[thing]
    wrong = sorted(
        {
            f"{source.path}:{line} uses {name}"
            for source in product
            if not any(fnmatch(source.path, door) for door in doors)
            for line, name in (*source.uses(), *imported_things(source))
            if re.fullmatch(pattern, name)
        }
    )
    assert not wrong, f"only {', '.join(doors)} may use {thing}:\n" + "\n".join(wrong)


def imported_things(source):
    """Imports of a name out of a module: ``from time import sleep`` is a use as well."""
    return ((line, name) for line, name in source.imports() if not name.startswith("oncelog"))


def test_our_packages_are_imported_by_their_full_name(sources):
    bare = re.compile(r"(storage|actors|api|ray_data|spark_bridge|examples)(\..*)?|\..*")
    wrong = [
        f"{source.path}:{line} imports {name}"
        for source in sources
        for line, name in source.imports()
        if bare.fullmatch(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_packages_do_not_import_public_names_from_the_root(product):
    """The root re-exports what the packages define; the other way round would be a circle."""
    wrong = [
        f"{source.path}:{line} imports {name}"
        for source in product
        if source.path != "__init__.py" and not source.path.startswith("examples/")
        for line, name in source.imports()
        if name.startswith("oncelog.") and name.split(".")[1] not in (*LAYERS, "__version__")
    ]
    assert not wrong, "\n".join(wrong)
