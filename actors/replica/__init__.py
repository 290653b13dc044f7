"""One log in its role: opened, leading, waited for, synced and kept.

Start at ``replica`` for its life and ``replica_log`` for an append; ``partition_leader`` is what
clients call, and ``maintenance`` what a replica does besides.
"""
