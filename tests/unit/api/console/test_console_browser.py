"""A console with a login, over TLS, before a browser: one group of 100,000 is found."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from console_cluster import ConsoleCluster
from console_nodes import browser, why_no_browser
from deadlines import wait_for
from issued_certificates import Authority

from oncelog.actors.protocol.messages.group import GroupDescription
from oncelog.api.console.server import Options, make_app
from oncelog.api.console.snapshot import Link

pytestmark = pytest.mark.slow

GROUPS = 100_000


@contextlib.contextmanager
def served(cluster: ConsoleCluster, tls: ssl.SSLContext) -> Iterator[str]:
    """The address of a console of ``cluster``, on an event loop in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin() -> TestServer:
        link = Link()
        link.replace(cluster)
        options = Options(asks_login=True, tls=tls)
        server = TestServer(make_app(link, options, Random(1)), scheme="https")
        await server.start_server(ssl=tls)
        return server

    server = asyncio.run_coroutine_threadsafe(begin(), loop).result()
    try:
        yield f"https://127.0.0.1:{server.port}"
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def text_of(driver: Any) -> str:
    return str(driver.execute_script("return document.body.innerText"))


def log_in(driver: Any, password: str) -> None:
    driver.find_element("name", "user").send_keys("alice")
    driver.find_element("name", "password").send_keys(password)
    driver.find_element("css selector", "form button").click()


def test_who_logs_in_over_tls_finds_one_group_of_many(tmp_path):
    if reason := why_no_browser():
        pytest.skip(reason)
    issued = Authority(tmp_path, "console").issue("127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(issued["RAY_TLS_SERVER_CERT"], issued["RAY_TLS_SERVER_KEY"])
    cluster = ConsoleCluster()
    cluster.groups = [
        GroupDescription(
            group_id=f"group-{number:06}",
            state="Stable",
            protocol_type="consumer",
            protocol_name="range",
            generation_id=1,
        )
        for number in range(GROUPS)
    ]
    with served(cluster, tls) as address, browser(accepts_any_certificate=True) as driver:
        driver.get(f"{address}/groups")
        assert "Log in" in driver.title
        log_in(driver, "not hers")
        wait_for(lambda: "password" in text_of(driver) and "/login" in driver.current_url, "no")
        assert "group-0" not in text_of(driver)
        log_in(driver, "of alice")
        wait_for(lambda: "/login" not in driver.current_url, "the console")
        driver.get(f"{address}/groups")
        wait_for(lambda: f"{GROUPS:,} groups" in text_of(driver), "the groups")
        assert text_of(driver).count("group-") <= 200
        search = driver.find_element("css selector", "input[type=search]")
        search.send_keys("group-077777\n")
        wait_for(lambda: "group-077777" in text_of(driver), "the one group")
        wait_for(lambda: text_of(driver).count("group-0") == 1, "it alone")
        (cookie,) = driver.get_cookies()
        assert cookie["secure"]
        assert cookie["httpOnly"]
        told = [one["message"] for one in driver.get_log("browser") if one["level"] == "SEVERE"]
        assert [message for message in told if "403 (Forbidden)" not in message] == []
