"""What every process needs around its server or client: clock, threads, metrics, environment.

No protocol here; ``api`` uses it too. Start at ``background``, which runs blocking work beside the
event loop. ``clock`` is the only source of time, and ``metrics`` has the table of all metrics.
"""
