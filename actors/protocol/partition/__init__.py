"""The rules of one partition: role, offsets, what may be appended, what may be read.

Start at ``machine``; ``producers`` is fencing and de-duplication, ``bounds`` the four offsets.
"""
