"""The rules of consumer groups (classic protocol) and of committed offsets.

Start at ``machine``; ``rebalance`` is one turn of it, ``offsets`` the committed positions.
``state`` has the table of legal moves, ``log`` the bytes of the records. ``consumer_protocol`` is
the part of members, of which the coordinator knows nothing.
"""
