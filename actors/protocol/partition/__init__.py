"""The rules of one partition: role, offsets, what may be appended, what may be read.

Start at ``partition_machine``; ``producers`` has fencing and deduplication, ``bounds`` the four
offsets. ``replication`` is the leader's side of replication, with its ``followers``;
``quorum_replication`` is that of the controller's log. ``following`` is the follower's side.
"""
