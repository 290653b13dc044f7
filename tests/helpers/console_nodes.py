"""Three brokers on this machine, something to see on them, a console, and a browser before it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from deadlines import DEADLINE_S, wait_for
from ray_nodes import Nodes

TRAFFIC: Final = Path(__file__).with_name("console_traffic.py")
BROWSER: Final = "chromium"
DRIVER: Final = "chromedriver"
LOADED_S: Final = 30


def why_no_browser() -> str:
    """Why pages cannot be looked at here; "" if they can."""
    missing = [name for name in (BROWSER, DRIVER) if shutil.which(name) is None]
    return f"needs {' and '.join(missing)} (Debian: chromium, chromium-driver)" if missing else ""


@contextlib.contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[None]:
    """A file system of its own at ``directory``, in memory."""
    directory.mkdir()
    options = ("-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs")
    subprocess.run(("mount", *options, str(directory)), check=True)
    try:
        yield
    finally:
        subprocess.run(("umount", "--lazy", str(directory)), check=True)


@contextlib.contextmanager
def three_brokers(root: Path) -> Iterator[Nodes]:
    """A log on three brokers, each a node with a disk of its own."""
    nodes = Nodes(root, head_labels="broker=1,rack=a")
    try:
        assert nodes.start_log().returncode == 0
        nodes.start_node("two", "127.0.0.2", labels="broker=2,rack=b")
        nodes.start_node("three", "127.0.0.3", labels="broker=3,rack=c")
        wait_for(lambda: list(nodes.brokers().values()) == ["alive"] * 3, "three brokers")
        yield nodes
    finally:
        nodes.close()


@contextlib.contextmanager
def traffic(nodes: Nodes, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The program that writes and reads; it has said that all is there."""
    command = [sys.executable, str(TRAFFIC), nodes.address, *arguments]
    # It goes on until its input ends: then nobody would hold its transaction open.
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=nodes.environment,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def console(nodes: Nodes, *options: str) -> Iterator[str]:
    """The address of a console of these nodes; it has to end well by SIGTERM."""
    command = [sys.executable, "-m", "oncelog.api.cli.main", "console", *options]
    process = subprocess.Popen(
        [*command, "--address", nodes.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=nodes.environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("console  http"), (
            f"{line} {process.stderr and process.stderr.read()}"
        )
        yield line.split()[1]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=DEADLINE_S)
        said = (process.returncode, errors)
        assert said == (128 + signal.SIGTERM, "oncelog: terminated\n"), said
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def browser(
    *,
    is_dark: bool = False,
    width: int = 1280,
    height: int = 800,
    accepts_any_certificate: bool = False,
) -> Iterator[Any]:
    """A headless Chromium."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which(BROWSER))
    arguments = ["--headless=new", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    arguments += [f"--window-size={width},{height}", "--disable-dev-shm-usage"]
    if os.getuid() == 0:
        # Chromium's sandbox refuses to be root's.
        arguments.append("--no-sandbox")
    if is_dark:
        arguments += ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"]
    for argument in arguments:
        options.add_argument(argument)
    options.accept_insecure_certs = accepts_any_certificate
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=str(shutil.which(DRIVER)))
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_page_load_timeout(LOADED_S)
    try:
        yield driver
    finally:
        driver.quit()
