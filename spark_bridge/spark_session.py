"""A Spark session on RayDP beside the log, and the data source ``oncelog`` in any session."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oncelog.api.session.login import NOBODY, login_of
from oncelog.spark_bridge.connection import ADDRESS_VARIABLE
from oncelog.storage.exceptions import (
    ConnectionFailedError,
    IllegalStateError,
    InvalidSettingError,
)
from oncelog.storage.settings import refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from oncelog.api.client import Cluster

_logger = logging.getLogger(__name__)

NAME_FREE_MAX_S: Final = 30
"""How long ``stop`` waits until the name of a session's actor is free."""

NAME_CHECK_S: Final = 0.05
_MASTER_SUFFIX: Final = "_SPARK_MASTER"
"""RayDP appends this to the application's name."""

JAVA_MIN: Final = 17
JAVA_TIMEOUT_S: Final = 60

_OPENED: Final = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.math", "java.text", "java.util", "java.util.concurrent"),
    *("java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action"),
    *("sun.util.calendar", "jdk.internal.ref"),
)
JAVA_OPTIONS: Final = " ".join(
    ["-XX:+IgnoreUnrecognizedVMOptions"]
    + [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
)
"""Java options that Spark and RayDP need from Java 17 on."""

_JAVA_OPTION_KEYS: Final = (
    "spark.driver.extraJavaOptions",
    "spark.executor.extraJavaOptions",
    "spark.ray.raydp_app_master.extraJavaOptions",
)
_LOG_LEVEL_KEY: Final = "spark.log.level"
_DEFAULTS: Final = {
    _LOG_LEVEL_KEY: "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A Python worker holds a batch in memory, so large rows need a limit in bytes.
    "spark.sql.execution.arrow.maxBytesPerBatch": "8388608",
}

_REFUSED_MODE: Final = ("UNSUPPORTED_DATA_SOURCE_SAVE_MODE", '"oncelog"')
MODE_ADVICE: Final = (
    "oncelog: add .mode('append') before .save(): a log is only appended to, and Spark's default "
    "mode, errorifexists, would create what it writes to"
)

_INHERITED: Final = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Environment that a Python worker needs to join a Ray cluster that requires a token."""


def session(
    cluster: Cluster,
    *,
    executors: int = 1,
    cores: int = 1,
    memory: str = "1g",
    app_name: str = "oncelog",
    configs: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark on the Ray cluster of ``cluster``, with the data source ``oncelog``.

    Takes ``executors`` times ``cores`` CPUs of Ray, and ``memory`` (as "1g") per executor, until
    ``stop``. ``configs`` are further Spark settings. The output of the driver's Java process goes
    to ``spark-driver-<process id>.log`` in Ray's log directory.

    ``ConnectionFailedError`` if Java or a package is missing or Spark does not start,
    ``InvalidSettingError`` for more CPUs than Ray has, ``IllegalStateError`` if this process
    already has a session.
    """
    _check_count("executors", executors)
    _check_count("cores", cores)
    _check_memory(memory)
    problem = java_problem(_java_version_text())
    if problem:
        raise ConnectionFailedError(problem)
    _check_packages()
    import raydp
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        raise IllegalStateError(
            "this process already has a Spark session: spark_bridge.stop(spark) ends it, and "
            "spark_bridge.register(spark) gives it the data source"
        )
    _check_cpus(executors * cores)
    # Spark's default is the first python3 on the PATH of the process that starts the worker.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    all_configs = session_configs(configs or {})
    log_path = _log_path()
    try:
        with _java_output_to(log_path):
            spark: SparkSession = raydp.init_spark(
                app_name,
                num_executors=executors,
                executor_cores=cores,
                executor_memory=memory,
                configs=all_configs,
            )
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ConnectionFailedError(
            f"Spark could not be started: {lines[0]} (see {log_path})"
        ) from error
    # Joining Ray has set the log level of the Java process to Ray's own.
    spark.sparkContext.setLogLevel(all_configs[_LOG_LEVEL_KEY])
    register(spark, cluster)
    return spark


def register(spark: SparkSession, cluster: Cluster | None = None) -> None:
    """Register the format ``oncelog`` in ``spark``, with ``cluster`` as its default.

    Without ``cluster`` the default is the Ray cluster that this process is connected to; else
    ``RAY_ADDRESS``, or a cluster on the worker's machine. Option ``address`` of a read or write
    overrides it. The user of ``cluster`` is the default too, else that of the environment; of its
    password, token or certificate only the path of the file is passed on, which each node needs.
    oncelog must be installed on the executors. ``InvalidSettingError`` for a Spark Connect session,
    whose server finds the source by itself.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise InvalidSettingError(
            "a Spark Connect session takes no registration: its server finds the source where "
            "oncelog is installed, and option address of a read or write names the cluster"
        )
    from oncelog.spark_bridge.source import OncelogDataSource

    address = cluster.address if cluster is not None else _joined_address()
    context = spark.sparkContext
    environment = context.environment
    if address is not None:
        environment[ADDRESS_VARIABLE] = address
    login = login_of(None, None) if cluster is None else cluster.context.login
    if cluster is not None or login != NOBODY:
        environment.update(login.variables())
    for name in _INHERITED:
        if name in os.environ:
            environment.setdefault(name, os.environ[name])
    if str(context.master).startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        # The first python3 on the path, which Spark takes by default, need not have oncelog.
        context.pythonExec = sys.executable
    explain_modes()
    # The registration carries the context's environment to planner and executor workers.
    spark.dataSource.register(OncelogDataSource)


def explain_modes() -> None:
    """Make every ``save()`` in this process explain a wrong mode."""
    from pyspark.sql.readwriter import DataFrameWriter

    save: Any = DataFrameWriter.save
    if not hasattr(save, "__wrapped__"):
        DataFrameWriter.save = explained(save)  # type: ignore[method-assign]


def explained(save: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``DataFrameWriter.save`` so that its error for a mode says which one to give, and why.

    Spark rejects a mode before it calls the data source, without a reason.
    """

    @functools.wraps(save)
    def told(*arguments: Any, **named: Any) -> Any:
        try:
            return save(*arguments, **named)
        except Exception as error:
            add_note = getattr(error, "add_note", None)
            if add_note is not None and all(text in str(error) for text in _REFUSED_MODE):
                add_note(MODE_ADVICE)
            raise

    return told


def write_once(frame: DataFrame, name: str, batch_id: int, **options: Any) -> None:
    """Write a ``foreachBatch`` batch exactly once, as version ``batch_id`` of ``name``.

    Durable and visible on return. ``options`` are those of a write, such as ``topic``. Two writes
    of one batch need two names, and so do two checkpoints, since the batches of each count from 0.

    If the version is committed already, logs a line and writes nothing. Spark raises the
    ``OutdatedVersionError`` of a version below the last committed one.
    """
    writer = frame.write.format("oncelog").options(**options, txnAppId=name, txnVersion=batch_id)
    writer.mode("append").save()


def stop(spark: SparkSession) -> None:
    """Stop ``spark``; a session of ``session`` returns its CPUs, memory and name to Ray.

    Waits up to ``NAME_FREE_MAX_S`` until another session can use the name.
    """
    import raydp

    name = f"{spark.sparkContext.appName}{_MASTER_SUFFIX}"
    # Does nothing unless the session came from RayDP.
    raydp.stop_spark()
    spark.stop()
    pause = threading.Event()
    for _ in range(round(NAME_FREE_MAX_S / NAME_CHECK_S)):
        if not _is_taken(name):
            return
        pause.wait(NAME_CHECK_S)
    _logger.warning(
        "Ray still knows the actor %s, which stopped with Spark — give the next session another "
        "name",
        name,
    )


def _is_taken(name: str) -> bool:
    """Whether an actor has the name: RayDP ends its own, but maybe after it returns."""
    from oncelog.actors.rpc.ray_transport import find_actor

    try:
        find_actor(name, namespace=None)
    except (ValueError, ConnectionFailedError):
        return False
    return True


def session_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """``configs`` plus what the session needs; the Java options of both are joined."""
    merged = {**_DEFAULTS, **configs}
    for key in _JAVA_OPTION_KEYS:
        merged[key] = " ".join(filter(None, (JAVA_OPTIONS, configs.get(key))))
    return merged


def java_problem(version_text: str | None) -> str:
    """The problem with a ``java -version`` that prints ``version_text``; "" if it is fine.

    ``None`` means that there is no Java.
    """
    advice = (
        f"Spark needs Java {JAVA_MIN} or newer: install it (Debian: apt-get install "
        f"openjdk-{JAVA_MIN}-jre-headless), or set JAVA_HOME to one"
    )
    if version_text is None:
        return f"there is no Java in JAVA_HOME or on the path; {advice}"
    found = re.search(r'version "(?:1\.)?(\d+)', version_text)
    if found is None:
        return f"the Java that was found does not tell its version; {advice}"
    version = int(found.group(1))
    return "" if version >= JAVA_MIN else f"the Java that was found is version {version}; {advice}"


# --- output -----------------------------------------------------------------------------------


def _log_path() -> Path:
    from ray._private import worker

    node: Any = worker._global_node
    return Path(node.get_logs_dir_path()) / f"spark-driver-{os.getpid()}.log"


@contextmanager
def _java_output_to(path: Path) -> Iterator[None]:
    """Send the output of a Java process that PySpark starts within this block to ``path``.

    Otherwise it would write to the user's terminal for as long as it lives. RayDP's callers cannot
    set the argument of ``launch_gateway`` that redirects it.
    """
    context: Any = importlib.import_module("pyspark.core.context")
    launch_gateway = context.launch_gateway

    def launch(conf: object = None) -> object:
        with path.open("ab") as log:
            return launch_gateway(conf, popen_kwargs={"stdout": log, "stderr": log})

    context.launch_gateway = launch
    try:
        yield
    finally:
        context.launch_gateway = launch_gateway


# --- checks -----------------------------------------------------------------------------------


def _java_version_text() -> str | None:
    """The version text of the Java that Spark would start; ``None`` if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        shown = subprocess.run(  # noqa: S603
            [java, "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=JAVA_TIMEOUT_S,
        )
    except OSError:
        return None
    except subprocess.TimeoutExpired:
        return ""
    return shown.stderr + shown.stdout


def _check_packages() -> None:
    try:
        import pyspark
        import raydp
    except ImportError as error:
        raise ConnectionFailedError(
            f"Spark is not installed ({error}): pip install 'oncelog[spark]'"
        ) from None
    del pyspark, raydp


def _check_count(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise refused(name, value, "a whole number from 1 on")


def _check_memory(memory: str) -> None:
    if not isinstance(memory, str) or not re.fullmatch(r"[1-9][0-9]*[kmgtKMGT][bB]?", memory):
        raise refused("memory", memory, "text such as '500m' or '2g'")


def _check_cpus(wanted: int) -> None:
    """Reject more CPUs than Ray can ever provide: Spark would wait silently."""
    import ray

    there_are = int(ray.cluster_resources().get("CPU", 0))
    if wanted > there_are:
        raise InvalidSettingError(
            f"executors times cores is {wanted}, but this Ray cluster has {there_are} CPUs: ask "
            "for fewer, or start oncelog with more (num_cpus)"
        )


def _joined_address() -> str | None:
    """The address of the Ray cluster that this process is connected to."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    return str(ray.get_runtime_context().gcs_address)
