"""What the files of a log contain, for people and tools, and whether it is consistent.

Only reads, even beside a running replica. Start at ``contents`` for the one, at ``verify`` for the
other.
"""
