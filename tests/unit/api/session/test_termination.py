"""The program's own handler of SIGTERM stays, although Ray puts one of its own in its place."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray

from oncelog.api.session import cluster_connection
from oncelog.storage.exceptions import ConnectionFailedError


def rays_handler(*_: Any) -> None:
    """What ``ray.init`` would put there."""


def own_handler(*_: Any) -> None:
    """A program that finishes its transaction before it ends."""


@pytest.fixture(autouse=True)
def handler_of_the_tests() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def init(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """``ray.init`` does what it does to signals, and raises what is put into the list."""
    errors: list[Exception] = []

    def init(**_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, rays_handler)
        if errors:
            raise errors[0]

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster_connection, "ray_cluster_at", lambda *_: ("place", "cluster"))
    monkeypatch.setattr(cluster_connection, "prepare_to_start", lambda: None)
    monkeypatch.setattr(cluster_connection, "prepare_to_join", lambda: None)
    return errors


def join() -> None:
    cluster_connection.join_ray("127.0.0.1:1")


def start() -> None:
    cluster_connection.start_ray(num_cpus=None, dashboard_port=None)


@pytest.mark.parametrize("connect", [join, start])
@pytest.mark.parametrize("before", [own_handler, signal.SIG_IGN])
def test_what_a_program_does_at_sigterm_is_given_back(
    init: list[Exception], connect: Callable[[], None], before: Any
) -> None:
    signal.signal(signal.SIGTERM, before)
    connect()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("connect", [join, start])
def test_it_is_given_back_also_when_ray_cannot_be_reached(
    init: list[Exception], connect: Callable[[], None]
) -> None:
    init.append(ConnectionError("nobody there"))
    signal.signal(signal.SIGTERM, own_handler)
    with pytest.raises(ConnectionFailedError):
        connect()
    assert signal.getsignal(signal.SIGTERM) is own_handler


@pytest.mark.parametrize("connect", [join, start])
def test_a_program_without_one_ends_in_order_by_that_of_ray(
    init: list[Exception], connect: Callable[[], None]
) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    connect()
    assert signal.getsignal(signal.SIGTERM) is rays_handler


def test_another_thread_than_the_main_one_changes_no_handler(init: list[Exception]) -> None:
    signal.signal(signal.SIGTERM, own_handler)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            join()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert failures == []
    assert signal.getsignal(signal.SIGTERM) is own_handler


SLOW = "The current node timed out during startup. This could happen because"


@pytest.mark.parametrize("slow_count", [0, 1, 2])
def test_a_start_that_takes_ray_too_long_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch, init: list[Exception], slow_count: int
) -> None:
    said, ended = [Exception(SLOW)] * slow_count, list[None]()

    def slow_init(**_: Any) -> None:
        if said:
            raise said.pop()

    monkeypatch.setattr(ray, "init", slow_init)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(None))
    if slow_count < cluster_connection.RAY_STARTS_MAX:
        start()
    else:
        with pytest.raises(ConnectionFailedError, match="timed out during startup"):
            start()
    assert len(ended) == slow_count


def test_another_error_of_ray_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, init: list[Exception]
) -> None:
    ended: list[None] = []
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(None))
    init.append(Exception("no memory"))
    with pytest.raises(ConnectionFailedError, match="no memory"):
        start()
    assert len(ended) == 1
