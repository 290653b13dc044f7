"""A program's connection to a cluster, shared by all its clients.

Start at ``cluster_connection``; ``routing`` knows which actor to call, ``retry`` when to call
again.
"""
