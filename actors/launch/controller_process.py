"""Old import path of the controller's process, for actors that an earlier build started.

Ray restarts an actor by the module that its class was in, also after a rolling upgrade.
"""

from __future__ import annotations

from oncelog.actors.launch.processes import ControllerProcess

__all__ = ["ControllerProcess"]
