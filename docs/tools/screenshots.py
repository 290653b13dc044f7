"""Takes the pictures of the console: three brokers, one of which dies; each page in both colours.

    python docs/tools/screenshots.py DIRECTORY

Needs root, for a disk per node, and Chromium. The helpers of the tests must be importable.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from console_nodes import browser, console, three_brokers, traffic, why_no_browser
from deadlines import wait_for
from PIL import Image

WIDTH: Final = 1_180
COLOURS: Final = 128
HEIGHT: Final = 860

PAGES: Final = {
    "brokers": "/brokers",
    "topics": "/topics",
    "topic": "/topics/flights",
    "records": "/topics/flights/records?partition=5&from=beginning&show=all&n=50",
    "hostile": "/topics/hostile/records?partition=0&from=beginning",
    "record": "/topics/flights/records/5/3",
    "transactions": "/transactions",
    "transaction": "/transaction?id=left-open",
    "groups": "/groups",
    "group": "/group?id=billing",
    "queue": "/queue?id=inspection",
    "jobs": "/jobs",
    "action": "/actions/drain?broker=3",
}
SETTLE_S: Final = 8
"""For how long a page with a chart is open before its picture is taken; so are jobs, for a rate."""


def main() -> int:
    """Write ``console-PAGE.png`` and ``console-PAGE-dark.png`` to the directory."""
    if reason := why_no_browser():
        sys.stderr.write(f"screenshots: {reason}\n")
        return 1
    directory = Path(sys.argv[1])
    with (
        tempfile.TemporaryDirectory() as root,
        three_brokers(Path(root)) as nodes,
        traffic(nodes, "busy"),
        console(nodes, "--write", "--title", "flights, three brokers") as address,
    ):
        nodes.kill_raylet_of("three")
        take(address, directory)
    return 0


def take(address: str, directory: Path) -> None:
    """All pictures, once the overview knows of the broker that is gone."""
    for is_dark in (False, True):
        ending = "-dark" if is_dark else ""
        with browser(is_dark=is_dark, width=WIDTH, height=HEIGHT) as driver:
            driver.get(address)
            wait_for(lambda driver=driver: "broker away" in driver.page_source, "the news")
            settle(driver)
            save(driver, directory / f"console-overview{ending}.png")
            for name, path in PAGES.items():
                driver.get(address + path)
                if name == "jobs" or driver.find_elements("css selector", ".chart"):
                    settle(driver)
                if name == "action":
                    driver.find_element("css selector", ".act-form button").click()
                save(driver, directory / f"console-{name}{ending}.png")


def save(driver: Any, path: Path) -> None:
    """Save a picture in few colours, which takes a third of the bytes."""
    image = Image.open(io.BytesIO(driver.get_screenshot_as_png()))
    image.convert("RGB").quantize(COLOURS).save(path, optimize=True)


def settle(driver: Any) -> None:
    """Let a chart get some points, as it does while somebody looks."""
    driver.set_script_timeout(2 * SETTLE_S)
    script = f"setTimeout(arguments[arguments.length - 1], {1_000 * SETTLE_S})"
    driver.execute_async_script(script)


if __name__ == "__main__":
    sys.exit(main())
