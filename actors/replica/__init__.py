"""One replica: it opens its log, leads or follows, syncs, and maintains it.

Start at ``replica`` for its life cycle and ``replica_log`` for an append. ``partition_leader``
serves clients, ``follower`` takes pushes, and ``maintenance`` does the periodic work. A replica
is given ``events``, what it asks of its process, and a role: what its kind of log adds.
"""
