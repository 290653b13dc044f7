"""Shared by the coordinators and the controller: a durable machine on the log it leads.

Start at ``runtime``: decide, append, wait, apply, reply. ``cluster_view`` caches topics and leaders
for the coordinators. ``actor_watch`` finds silent actors, for the controller and brokers;
``leader_watch`` ends calls to deposed leaders, for coordinators and clients.
"""
