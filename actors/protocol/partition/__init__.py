"""The rules of one partition: role, offsets, what may be appended, what may be read.

Start at ``machine``; ``producers`` has fencing and deduplication, ``bounds`` the four offsets.
"""
