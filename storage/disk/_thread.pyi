"""What ``_disk_thread.pyx`` offers."""

INTERFACE: int
"""Of this class; ``disk.thread`` uses only the one that it was written for."""

class DiskThread:
    """A thread that ends, when all is done that it was given, with this object.

    In a child of the process that made it nothing is ever taken.
    """

    def __init__(self) -> None:
        """OSError if no thread or no descriptor is left."""

    def fileno(self) -> int:
        """What becomes readable when a piece has ended; valid as long as this object."""

    def sync(self, descriptor: int) -> int:
        """Sync the data of an open file that stays open until its piece was taken.

        Returns the number of the piece, counted from one, or 0 if no more are taken now.
        """

    def take_ended(self) -> list[tuple[int, int]]:
        """Error number, or 0, and nanoseconds of each piece that ended, in the order given."""

    def wait(self, number: int) -> None:
        """Return when the piece of that number has ended; for other threads than the loop's."""
