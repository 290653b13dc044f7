"""The rules of transactions: one coordinator shard's ids, from first partition to COMPLETE.

Start at ``machine`` and its parts: ``ids`` is what is known, ``producers``, ``runs``,
``operations`` and ``upkeep`` decide. ``state`` has the effect of each move on an id, ``end`` the
table of verdicts, ``log`` the bytes of its records.
"""
