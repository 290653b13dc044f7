"""What stands in the files of a log, for people and tools, and whether it fits together.

Only reads, also beside a running replica. Start at ``verify``.
"""
