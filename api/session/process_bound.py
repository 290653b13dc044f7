"""Objects that cannot be moved to another process, and say so."""

from __future__ import annotations

from typing import ClassVar, Final, NoReturn

AFTER_FORK: Final = (
    "this cluster, producer or consumer was made before the process forked and works only in the "
    "parent. Ray does not work in the child either: start it anew, with subprocess or with "
    "multiprocessing's 'spawn', and call oncelog.connect() there"
)
"""The error of such an object in a child process, where its event loop never runs."""


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
