"""Threads of simulated programs: synchronous code that runs only while the world stands still.

A thread of a simulated process has a real one's blocking clients. Whatever it waits for is a
coroutine that it hands to its process; meanwhile the world goes on, and when that is done the
thread gets its turn, as one callback of the process. So no two run at once, and the same seed
gives the same run.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from sim_process import Client

from oncelog.api.session.event_loop import LoopThread


class GoneError(BaseException):
    """The process of a thread is dead: nothing of it runs on, however it catches errors."""


class SimThread(LoopThread):
    """``LoopThread`` as the synchronous clients of one simulated process know it, and its thread.

    ``run`` and the like are for code that ``start`` began. ``ended`` has what that returned.
    """

    def __init__(self, client: Client) -> None:
        super().__init__(f"thread of {client.name}")
        self.ended: asyncio.Future[Any] = client.world.loop.create_future()
        self._client = client
        # Locks, which one side takes and the other gives back: the quickest there is.
        self._turn = threading.Lock()
        self._pause = threading.Lock()
        self._turn.acquire()
        self._pause.acquire()
        self._asked: Coroutine[Any, Any, Any] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_gone = False

    # --- for the world ------------------------------------------------------------------------

    def start(self, work: Callable[[], Any]) -> None:
        """Run ``work`` in the thread; call it in the process."""
        context = self._client.context.copy()
        thread = threading.Thread(target=context.run, args=(self._body, work), daemon=True)
        thread.start()
        self._client.world.at_close.append(self._end)
        self._client.soon(self._take_turn)

    def _take_turn(self, _: object = None) -> None:
        """Let the thread run until it waits for something or ends."""
        self._turn.release()
        self._pause.acquire()
        if self._asked is not None:
            asked, self._asked = self._asked, None
            self._task = self._client.spawn(asked)
            self._task.add_done_callback(self._take_turn, context=self._client.context)
        elif self._error is not None:
            self.ended.set_exception(self._error)
        else:
            self.ended.set_result(self._result)

    def _end(self) -> None:
        """The world is over: unwind what still waits; no call of it goes anywhere."""
        if not self.ended.done():
            self._is_gone = True
            self._turn.release()
            self._pause.acquire()

    # --- in the thread ------------------------------------------------------------------------

    def _body(self, work: Callable[[], Any]) -> None:
        self._turn.acquire()
        # The loop stands still meanwhile, so nothing may wait for it but by ``run``.
        asyncio._set_running_loop(self._client.world.loop)
        try:
            if not self._is_gone:
                self._result = work()
        except GoneError:
            pass
        except BaseException as error:
            self._error = error
        self._pause.release()

    @property
    def loop(self) -> Any:
        """See ``LoopThread.loop``."""
        return self._client.world.loop

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """See ``LoopThread.run``."""
        if self._is_gone:
            coroutine.close()
            raise GoneError
        self._asked = coroutine
        self._pause.release()
        self._turn.acquire()
        if self._is_gone:
            raise GoneError
        assert self._task is not None
        return self._task.result()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Not to be waited for in a thread of the simulator."""
        return self._client.spawn(coroutine)

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """See ``LoopThread.call_soon``."""
        self._client.soon(callback, *arguments)


class SimStop:
    """``threading.Event`` of a thread: whoever waits for it passes virtual time."""

    def __init__(self, thread: SimThread) -> None:
        self._thread = thread
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float) -> bool:
        self._thread.run(asyncio.sleep(timeout))
        return self._is_set
