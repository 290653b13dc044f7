"""The rules of consumer groups (classic protocol) and of committed offsets.

Start at ``group_machine``; ``rebalance`` is one turn of it, ``group_offsets`` the committed
positions. ``group_state`` has the table of legal moves, ``group_records`` the bytes of the records.
``consumer_protocol`` is the part of members, of which the coordinator knows nothing.
"""
