"""The rules of consumer groups (classic protocol) and of committed offsets.

Start at ``machine``; ``rebalance`` is one turn of it, ``offsets`` the committed positions.
``state`` has the table of legal transitions, ``log`` the bytes of the records.
``consumer_protocol`` is for the members; to the coordinator its bytes are opaque.
"""
