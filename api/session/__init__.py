"""A program's connection to a cluster, and what everything made from it shares.

Start at ``cluster_connection``; ``routing`` knows which actor to call, ``retry`` when to call
again.
"""
