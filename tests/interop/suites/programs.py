"""Programs that others wrote, each run once or a few times, with what it has to print or leave."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
from suite import Place, Result, Status, UnavailableError

WHY_CHARS_MAX = 2_000


class Programs:
    """Each case is a test: a function that raises if a program does not do what it should.

    ``needs`` fetches what the cases need; it skips, as a test does, if that cannot be had.
    """

    settings = ()
    is_of_three_brokers = False

    def __init__(
        self, name: str, cases: Mapping[str, Callable[[Place], None]], needs: Callable[[], object]
    ) -> None:
        self.name = name
        self._cases = cases
        self._needs = needs

    def prepare(self) -> None:
        """Fetch what the cases need."""
        try:
            self._needs()
        except pytest.skip.Exception as error:
            raise UnavailableError(str(error)) from error

    def tests(self) -> list[str]:
        """The names of all cases."""
        return list(self._cases)

    def run(self, tests: Sequence[str], place: Place) -> Iterator[Result]:
        """Run these; what one raises is its failure."""
        for test in tests:
            began_s, status, why = time.monotonic(), Status.PASSED, ""
            own = Place(place.cluster, place.directory / test)
            own.directory.mkdir()
            try:
                self._cases[test](own)
            except Exception as error:  # A case may fail in any way, and the others are run still.
                status, why = Status.FAILED, f"{type(error).__name__}: {error}"[:WHY_CHARS_MAX]
                (own.directory / "failure.txt").write_text(traceback.format_exc(), encoding="utf-8")
            yield Result(test=test, status=status, seconds=time.monotonic() - began_s, why=why)
