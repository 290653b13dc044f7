"""``cluster.process``: a function over a topic, in parallel workers, exactly once.

Start at ``job`` for the user's side and ``loop`` for the worker's.
"""
