"""The console in a browser, on three brokers: a dead one, hostile records, and a write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from console_nodes import browser, console, three_brokers, traffic, why_no_browser
from deadlines import wait_for
from ray_nodes import can_unshare

pytestmark = [pytest.mark.ray, pytest.mark.nodes, pytest.mark.slow]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Any]:
    if not can_unshare():
        pytest.skip("needs the right to give a process mounts of its own")
    if reason := why_no_browser():
        pytest.skip(reason)
    with three_brokers(tmp_path) as found:
        yield found


def text_of(driver: Any) -> str:
    return str(driver.find_element("tag name", "main").text)


def errors_of(driver: Any) -> list[str]:
    """What the browser complains of; a favicon or a policy that stops a script among it."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


def test_a_console_shows_what_is_wrong_and_does_what_it_is_told(nodes: Any) -> None:
    """1. Hostile records are read, and execute nothing. 2. A transaction is aborted by a form.
    3. A broker dies: the page that is open says so, and what to do.
    """
    with (
        traffic(nodes),
        console(nodes, "--write", "--port", "8291") as address,
        browser() as driver,
    ):
        driver.get(f"{address}/topics/hostile/records?partition=0&from=beginning&show=all")
        shown = text_of(driver)
        assert "<script>window.stolen" in shown
        assert "⟨U+202E⟩" in shown
        assert "⟨U+001B⟩[2J" in shown
        for offset in range(8):
            driver.get(f"{address}/topics/hostile/records/0/{offset}")
            assert "stolen" not in driver.title
        assert driver.execute_script("return window.stolen") is None

        driver.get(f"{address}/transactions")
        driver.find_element("link text", "left-open").click()
        assert "Ongoing" in text_of(driver)
        driver.find_element("link text", "abort…").click()
        driver.find_element("css selector", ".act-form button").click()
        assert f"oncelog transactions abort left-open --address {nodes.address}" in text_of(driver)
        assert "Ongoing" in nodes.run("transactions", "describe", "left-open").stdout
        driver.find_element("css selector", "button.danger").click()
        assert "Aborted the transaction of left-open" in text_of(driver)
        assert "CompleteAbort" in nodes.run("transactions", "describe", "left-open").stdout

        driver.get(address)
        wait_for(lambda: "nothing is wrong" in text_of(driver), "a cluster that is well")
        nodes.kill_raylet_of("three")
        wait_for(lambda: "broker away" in text_of(driver), "the news of its death")
        assert "oncelog status" in text_of(driver)
        assert "start its node again" in text_of(driver)
        assert errors_of(driver) == []
