"""The rules of transactions: one coordinator shard's ids, from first partition to COMPLETE.

Start at ``machine``, which also decides what operators ask for and what the coordinator does by
itself; ``producers`` and ``runs`` decide the rest, ``ids`` is what is known. ``state`` has the
effect of each move on an id, ``end`` the table of verdicts, ``log`` the bytes of its records.
"""
