"""The console in a browser, on three brokers: a dead one, hostile records, and a write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from console_nodes import browser, console, three_brokers, traffic, why_no_browser
from deadlines import wait_for
from ray_nodes import can_unshare
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException

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
    """What is shown; in one turn of the browser, as a page that refreshes takes parts away."""
    return str(driver.execute_script("return document.querySelector('main')?.innerText ?? ''"))


def wait_for_text(driver: Any, text: str) -> None:
    wait_for(lambda: text in text_of(driver), f"{text!r} on the page")


def press(driver: Any, how: str, what: str) -> None:
    """Press a link or a button once it is there."""

    def is_pressed() -> bool:
        with contextlib.suppress(NoSuchElementException, StaleElementReferenceException):
            driver.find_element(how, what).click()
            return True
        return False

    wait_for(is_pressed, f"{what} on the page")


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
        wait_for_text(driver, "<script>window.stolen")
        shown = text_of(driver)
        assert "⟨U+202E⟩" in shown
        assert "⟨U+001B⟩[2J" in shown
        for offset in range(8):
            driver.get(f"{address}/topics/hostile/records/0/{offset}")
            assert "stolen" not in driver.title
        assert driver.execute_script("return window.stolen") is None

        driver.get(f"{address}/transactions")
        press(driver, "link text", "left-open")
        wait_for_text(driver, "Ongoing")
        press(driver, "link text", "abort…")
        press(driver, "css selector", ".act-form button")
        wait_for_text(driver, f"oncelog transactions abort left-open --address {nodes.address}")
        assert "Ongoing" in nodes.run("transactions", "describe", "left-open").stdout
        press(driver, "css selector", "button.danger")
        wait_for_text(driver, "Aborted the transaction of left-open")
        assert "CompleteAbort" in nodes.run("transactions", "describe", "left-open").stdout

        driver.get(address)
        wait_for_text(driver, "nothing is wrong")
        nodes.kill_raylet_of("three")
        wait_for_text(driver, "broker away")
        wait_for_text(driver, "oncelog status")
        wait_for_text(driver, "start its node again")
        assert errors_of(driver) == []
