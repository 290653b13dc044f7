"""``python -m deaths``: see ``deaths.campaign``."""

from __future__ import annotations

import sys

from oncelog.actors.process.ray_environment import keep_output_clean

if __name__ == "__main__":
    keep_output_clean()
    # Ray reads what was just set when it is imported.
    from deaths.campaign import main

    sys.exit(main())
