"""What surrounds the server in an actor's process: clock, threads, metrics, environment.

No protocol here. Start at ``background``, which does blocking work beside the event loop; ``clock``
is all that knows the time, and ``metrics`` all metrics.
"""
