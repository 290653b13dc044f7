"""An asyncio event loop in its own thread, for callers without asyncio.

Objects on it work only in the process that made them. They cannot be moved to another process, and
in a forked child they raise an error that says so.

One file: the loop, its calls and the objects bound to it end together.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import logging
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
)

import uvloop

from oncelog.storage.exceptions import ClientClosedError, ConnectionFailedError, IllegalStateError

ClientT = TypeVar("ClientT")
ParametersT = ParamSpec("ParametersT")
ResultT = TypeVar("ResultT")

_Abandoning: TypeAlias = "Callable[[], concurrent.futures.Future[None] | None]"
_Callbacks: TypeAlias = "list[weakref.WeakMethod[Callable[[], None]]]"

_log = logging.getLogger(__name__)

EXIT_MS: Final = 3_000
"""How long a program's exit waits until unclosed clients have left their groups."""

PACKAGE: Final = __name__.partition(".")[0]

_running: Final[dict[threading.Thread, asyncio.AbstractEventLoop]] = {}
"""Every thread that has not ended, even if its ``LoopThread`` is no longer referenced."""

_open_clients: Final[weakref.WeakKeyDictionary[Any, _Abandoning]] = weakref.WeakKeyDictionary()
"""Clients that a program may not have closed, and the call that then abandons them."""


class Abandonable(Protocol):
    """A client that should be closed, and can stop by itself if it is not."""

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        ...

    async def abandon(self) -> None:
        """Leave the group or transaction, and stop; do not commit what nobody asked for."""
        ...


class LoopOfProgram:
    """The running event loop, which belongs to the program."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    @property
    def is_ended(self) -> bool:
        """Whether the loop does not run, even if only for a while."""
        return not self.loop.is_running()


def close_if_forgotten(
    public_client: Any, loop_thread: LoopThread | LoopOfProgram, client: Abandonable
) -> None:
    """Abandon ``client`` once ``public_client`` is garbage-collected, or the program ends.

    A ``ResourceWarning`` names the line that made it. ``client`` must not refer to
    ``public_client``.
    """
    abandon = functools.partial(
        _abandon, loop_thread, client, type(public_client).__name__, _caller()
    )
    _open_clients[public_client] = abandon
    weakref.finalize(public_client, abandon).atexit = False


def _caller() -> str:
    """The current line of the program, outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _abandon(
    loop_thread: LoopThread | LoopOfProgram, client: Abandonable, name: str, made_at: str
) -> concurrent.futures.Future[None] | None:
    """Start to abandon ``client``, from any thread, even the loop's; not if it was closed."""
    if client.is_closed or loop_thread.is_ended:
        return None
    article = "an" if name.startswith("A") else "a"
    warnings.warn(
        f"{article} {name} made at {made_at} was not closed: use it in a with block, or close it",
        ResourceWarning,
        stacklevel=2,
    )
    leaving = asyncio.run_coroutine_threadsafe(client.abandon(), loop_thread.loop)
    leaving.add_done_callback(functools.partial(_log_left, loop_thread))
    return leaving


def _log_left(
    loop_thread: LoopThread | LoopOfProgram, leaving: concurrent.futures.Future[None]
) -> None:
    """Log a failure to leave; until then this callback keeps the thread alive."""
    if not loop_thread.is_ended and not leaving.cancelled() and leaving.exception() is not None:
        _log.warning(
            "an unclosed client could not leave: %r — use it in a with block, or close it",
            leaving.exception(),
        )


def _end_all() -> None:
    """Abandon unclosed clients at exit; else the interpreter warns as it destroys their tasks."""
    begun = [
        leaving for abandon in tuple(_open_clients.values()) if (leaving := abandon()) is not None
    ]
    concurrent.futures.wait(begun, EXIT_MS / 1_000)
    for thread, loop in tuple(_running.items()):
        if not thread.is_alive():
            # This is the child of a fork, and the loop is the parent's: its tasks are not ours.
            for task in asyncio.all_tasks(loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            continue
        with contextlib.suppress(RuntimeError):  # It has just been closed.
            loop.call_soon_threadsafe(loop.stop)
        thread.join()


atexit.register(_end_all)


def cancelled_by_program(client: str) -> ClientClosedError:
    """The error of a client after the program has cancelled a task that it needs."""
    return ClientClosedError(
        f"a task of the {client} was cancelled by the program, as frameworks cancel all tasks at "
        f"shutdown, or with its event loop",
        advice=f"close() it, and make a new {client} to go on",
    )


class LoopCall(Generic[ResultT]):
    """A coroutine called on another thread's loop, and the one thread that waits for it.

    A future of ``run_coroutine_threadsafe`` does more, and costs a third of a call's time. The
    coroutine may have the waiting thread call something; see ``call_in_place``.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, ResultT]
    ) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._task: asyncio.Task[ResultT] | None = None
        self.thread_id: Final = threading.get_ident()
        """The thread that waits."""
        self._errand: Callable[[], None] | None = None
        self._is_over = False
        self._has_ended = threading.Lock()
        self._has_ended.acquire()
        loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        _call.set(self)
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[ResultT]) -> None:
        if not task.cancelled():
            # Otherwise asyncio would report a failure that nobody waits for any more.
            task.exception()
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        """Wake the thread, if it has not been already."""
        with contextlib.suppress(RuntimeError):
            self._has_ended.release()

    def result(self) -> ResultT:
        """Wait for the result or error; ``ClientClosedError`` if the loop is closed meanwhile.

        If the wait is interrupted (Ctrl-C), the coroutine is cancelled.
        """
        try:
            self._has_ended.acquire()
            while not self._is_over:
                errand, self._errand = self._errand, None
                if errand is not None:
                    errand()
                self._has_ended.acquire()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # It has just been closed.
                self._loop.call_soon_threadsafe(self._cancel)
            raise
        task, self._task = self._task, None
        assert task is not None
        try:
            if task.cancelled():
                # Only an interrupted wait, which is over then, or the loop's end cancels it.
                raise ClientClosedError("the cluster was closed during the call")
            return task.result()
        finally:
            # The error refers to this frame, so this frame must not refer to the error.
            del task

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def call_in_thread(self, function: Callable[[], object]) -> object:
        """Have the waiting thread call ``function``; return its result or raise its error."""
        outcome: asyncio.Future[object] = self._loop.create_future()

        def tell(report: Callable[..., None], value: object) -> None:
            if not outcome.done():
                report(value)

        def run() -> None:
            report: Callable[..., None] = outcome.set_result
            value: object
            try:
                value = function()
            except Exception as error:
                report, value = outcome.set_exception, error
            self._loop.call_soon_threadsafe(tell, report, value)

        self._errand = run
        self._wake()
        return await outcome


_call: Final[contextvars.ContextVar[LoopCall[Any] | None]] = contextvars.ContextVar(
    "oncelog_call", default=None
)
"""The call from another thread that the current coroutine is part of."""


async def call_in_place(function: Callable[[], object]) -> None:
    """Call ``function`` in the thread or task that called the client of this coroutine.

    In a task, an awaitable result is awaited.
    """
    call = _call.get()
    if call is not None:
        if inspect.iscoroutine(result := await call.call_in_thread(function)):
            result.close()
            raise TypeError(f"{function} is asynchronous, but its client is not")
    elif inspect.isawaitable(result := function()):
        await result


def current_user() -> object:
    """The caller of the client that this coroutine belongs to: a thread or, in asyncio, a task."""
    call = _call.get()
    return asyncio.current_task() if call is None else call.thread_id


class LoopThread:
    """Runs coroutines of the synchronous clients in one daemon thread.

    Every method may be called from any thread but the loop's own. The thread starts with the first
    use. It ends with ``close``, with the program, or once this object is garbage-collected.
    """

    def __init__(self, name: str = "oncelog-client") -> None:
        self._name = name
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._forbidden = ""
        self._on_forbid: _Callbacks = []
        self._on_close: _Callbacks = []
        """Never replaced: the thread holds it too."""

    def forbid(self, reason: str) -> None:
        """Make every use raise ``IllegalStateError`` with ``reason``: its thread is gone.

        For the child of a fork, which has the objects of its parent but none of their threads.
        """
        self._forbidden = reason
        for reference in self._on_forbid:
            if (callback := reference()) is not None:
                callback()

    def call_when_forbidden(self, callback: Callable[[], None]) -> None:
        """On ``forbid``, call the method ``callback`` if its object still exists."""
        with self._lock:
            self._on_forbid = _with_live(self._on_forbid, callback)

    def call_when_closed(self, callback: Callable[[], None]) -> None:
        """When the loop is about to end, call the method ``callback`` if its object still exists.

        The loop's tasks are cancelled only afterwards, so that the cancellation is not mistaken for
        the program's. ``ClientClosedError`` once closed.
        """
        with self._lock:
            if self._is_closed:
                raise ClientClosedError
            self._on_close[:] = _with_live(self._on_close, callback)

    @property
    def is_ended(self) -> bool:
        """Whether nothing can run on it: it was closed or forbidden, or never started."""
        thread = self._thread
        return self._is_closed or thread is None or not thread.is_alive()

    @property
    def is_forbidden(self) -> bool:
        """Whether ``forbid`` was called: nothing of the loop may be touched."""
        return bool(self._forbidden)

    def check(self) -> None:
        """Raise ``IllegalStateError`` if this process may not use the loop."""
        if self._forbidden:
            raise IllegalStateError(self._forbidden)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop; starts the thread if needed. ``ClientClosedError`` once closed."""
        self.check()
        loop = self._loop
        if loop is not None and not self._is_closed:
            return loop
        with self._lock:
            if self._is_closed:
                raise ClientClosedError
            if self._loop is None:
                self._loop = uvloop.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop,
                    args=(self._loop, self._on_close),
                    name=self._name,
                    daemon=True,
                )
                _running[self._thread] = self._loop
                self._thread.start()
                weakref.finalize(self, _stop, self._loop, self._thread).atexit = False
            return self._loop

    def submit(self, coroutine: Coroutine[Any, Any, ResultT]) -> LoopCall[ResultT]:
        """Start ``coroutine`` on the loop and return at once."""
        try:
            # Under the lock: what is submitted before ``close`` is on the loop before it stops.
            with self._lock:
                return LoopCall(self.loop, coroutine)
        except BaseException:
            coroutine.close()
            raise

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run ``coroutine`` on the loop, wait for it, and return its result or raise its error.

        If the wait is interrupted (Ctrl-C), the coroutine is cancelled.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise IllegalStateError(
                "a synchronous client was called from a callback on its own event loop",
                advice="call it in another thread, or use the asynchronous client",
            )
        return self.submit(coroutine).result()

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call ``callback`` on the loop soon, without waiting for it."""
        self.loop.call_soon_threadsafe(callback, *arguments)

    def close(self) -> None:
        """Cancel what still runs on the loop and end the thread. Safe to repeat."""
        with self._lock:
            self._is_closed = True
            if self._forbidden:
                return
            loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        loop.call_soon_threadsafe(loop.stop)
        if threading.current_thread() is not thread:
            thread.join()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """End the thread of a loop that is no longer referenced; a forked child has no thread."""
    if thread.is_alive():
        with contextlib.suppress(RuntimeError):  # The loop is already closed.
            loop.call_soon_threadsafe(loop.stop)


def _with_live(known: _Callbacks, callback: Callable[[], None]) -> _Callbacks:
    """``known`` without methods of objects that are gone, plus ``callback``."""
    return [*(one for one in known if one() is not None), weakref.WeakMethod(callback)]


def _run_loop(loop: asyncio.AbstractEventLoop, on_close: _Callbacks) -> None:
    """The thread: run the loop until stopped, then let every task see its cancellation."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(_call_all(on_close))
        _cancel_all(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
        # Before the loop is closed: a closed loop cannot be asked to stop.
        _running.pop(threading.current_thread(), None)
        loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    # Repeated: a task may start another one as it ends.
    while tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


async def _call_all(references: _Callbacks) -> None:
    for reference in references:
        if (callback := reference()) is not None:
            # As a callback of the loop, which reports what it raises.
            asyncio.get_running_loop().call_soon(callback)
    await asyncio.sleep(0)


class Blocking(Generic[ClientT]):
    """Base of a synchronous client: an asyncio client, and the thread that runs it.

    A class without an asyncio twin calls ``LoopThread.run`` itself.
    """

    def __init__(self, loop_thread: LoopThread, client: ClientT) -> None:
        self._loop_thread = loop_thread
        self._client = client


def blocking(
    method: Callable[Concatenate[ClientT, ParametersT], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate[Blocking[ClientT], ParametersT], ResultT]:
    """The synchronous form of ``method``, with its signature and docstring."""

    @wraps(method)
    def call(
        self: Blocking[ClientT], /, *args: ParametersT.args, **kwargs: ParametersT.kwargs
    ) -> ResultT:
        return self._loop_thread.run(method(self._client, *args, **kwargs))

    return call


# --- bound to a process -----------------------------------------------------------------------


AFTER_FORK: Final = (
    "this cluster, producer or consumer was made before the process forked and works only in the "
    "parent. Ray does not work in the child either: start it anew, with subprocess or with "
    "multiprocessing's 'spawn', and call oncelog.connect() there"
)
"""The error of such an object in a child process, where its event loop never runs."""

_ray_of_parent: Final[list[str]] = []
"""Why nothing can connect here, in a forked child of a process that used Ray."""


def record_fork() -> None:
    """Note that this process is the child of a fork."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        _ray_of_parent.append(
            "this process was forked from one that uses Ray, which does not work in the child: "
            "start it anew instead, with subprocess or with multiprocessing's 'spawn', and connect "
            "there"
        )


def refuse_ray_of_parent() -> None:
    """``ConnectionFailedError`` in a forked child, where each call of Ray would hang."""
    for reason in _ray_of_parent:
        raise ConnectionFailedError(reason)


class ProcessBound:
    """Base of objects that use threads and connections of the process that made them.

    Pickling, copying and sending to a Ray task raise ``TypeError`` with ``make_there``.
    """

    make_there: ClassVar[str] = "make one there"
    """What the other process must do instead."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Reject pickling and copying."""
        raise TypeError(
            f"a {type(self).__name__} works only in the process that made it and cannot be "
            f"pickled, copied or sent to a task or actor: {self.make_there}"
        )
