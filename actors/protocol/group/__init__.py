"""The rules of consumer groups (classic protocol) and of committed offsets.

Start at ``group_machine``; ``rebalance`` is one turn of it, ``group_offsets`` the committed
positions. ``group_state`` has the table of legal transitions, ``group_records`` the bytes of the
records. ``consumer_protocol`` is for the members; to the coordinator its bytes are opaque.
"""
