"""The rules of transactions: one coordinator shard's ids, from first partition to COMPLETE.

Start at ``transaction_machine``, which also decides what operators ask for and what the coordinator
does by itself; ``producers`` and ``runs`` decide the rest, ``ids`` is what is known.
``transaction_state`` has the effect of each move on an id, ``end`` the table of verdicts,
``transaction_records`` the bytes of its records.
"""
