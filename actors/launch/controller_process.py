"""The controller's process, by the name that it had: an earlier version may have started it.

Ray starts an actor again by the module that its class was in, also after a rolling upgrade.
"""

from __future__ import annotations

from oncelog.actors.launch.processes import ControllerProcess

__all__ = ["ControllerProcess"]
