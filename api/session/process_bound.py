"""Objects that cannot be moved to another process, and say so."""

from __future__ import annotations

import sys
from typing import ClassVar, Final, NoReturn

from oncelog.storage.exceptions import ConnectionFailedError

AFTER_FORK: Final = (
    "this cluster, producer or consumer was made before the process forked and works only in the "
    "parent. Ray does not work in the child either: start it anew, with subprocess or with "
    "multiprocessing's 'spawn', and call oncelog.connect() there"
)
"""The error of such an object in a child process, where its event loop never runs."""


_ray_of_parent: Final[list[str]] = []
"""In the child of a fork, of a process that used Ray: why nothing can be connected here."""


def note_fork() -> None:
    """This is the child of a fork."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        _ray_of_parent.append(
            "this process was forked from one that uses Ray, which does not work in the child: "
            "start it anew instead, with subprocess or with multiprocessing's 'spawn', and connect "
            "there"
        )


def refuse_ray_of_parent() -> None:
    """``ConnectionFailedError`` in the child of a fork, where each call of Ray would hang."""
    for reason in _ray_of_parent:
        raise ConnectionFailedError(reason)


class ProcessBound:
    """Base of what lives on the threads and connections of the process that made it.

    Pickling, copying and sending to a Ray task raise ``TypeError`` with ``make_there``.
    """

    make_there: ClassVar[str] = "make one there"
    """What the other process has to do instead."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be pickled or copied."""
        raise TypeError(
            f"a {type(self).__name__} works only in the process that made it and cannot be "
            f"pickled, copied or sent to a task or actor: {self.make_there}"
        )
