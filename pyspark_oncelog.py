"""What Spark finds by itself: it looks for modules of this prefix that have a ``DefaultSource``.

So format ``oncelog`` is there in every session of a Python in which the package is installed, also
on a Spark Connect server. ``spark_bridge.register`` is needed only to name a cluster for all.
"""

from __future__ import annotations

from oncelog.spark_bridge.source import OncelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
