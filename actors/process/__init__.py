"""What the process of an actor has around its server: clock, threads, metrics, environment.

No protocol here. Start at ``background``, which does blocking work beside the event loop.
"""
