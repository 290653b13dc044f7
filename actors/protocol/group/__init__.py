"""The rules of consumer groups (classic protocol) and of committed offsets.

Start at ``machine``; ``state`` has the table of legal moves, ``log`` the bytes of its records.
"""
