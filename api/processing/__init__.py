"""``cluster.process``: a function over a topic, in parallel workers, exactly once.

Start at ``job`` for what a user has, and ``loop`` for what a worker does.
"""
