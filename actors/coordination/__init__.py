"""Shared by the coordinators and the controller: a durable machine on the log it leads.

Start at ``runtime``: decide, append, wait, apply, reply. ``actor_watch`` finds silent actors, for
the controller and brokers. For coordinators and clients, ``cluster_view`` caches topics and
leaders, and ``leader_watch`` ends calls to deposed leaders.
"""
