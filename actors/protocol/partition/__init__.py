"""The rules of one partition: role, offsets, what may be appended, what may be read.

Start at ``machine``; ``producers`` has fencing and deduplication, ``bounds`` the four offsets.
``replication`` is the leader's side of several replicas, ``following`` the follower's; no shell
calls them yet.
"""
