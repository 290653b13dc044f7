from __future__ import annotations

import os

from oncelog.actors.process.process_table import ProcessTable
from oncelog.ray_data.connection import this_process


def test_a_write_ends_with_the_process_that_calls_it():
    driver = this_process(ProcessTable("host"))
    assert driver is not None
    assert driver.process_id == os.getpid()
