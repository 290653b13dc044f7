"""Seeds that once failed: (seed, changes to what it draws, why it failed). Never remove one.

What a seed stands for changes with the code that draws from it, so each bug has a test of its own
as well; these runs are kept because trouble likes old places.
"""

from __future__ import annotations

from typing import Any

REGRESSIONS: list[tuple[int, dict[str, Any], str]] = []
