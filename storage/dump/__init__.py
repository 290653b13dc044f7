"""Print and verify the files of a log, for people and tools.

Nothing here writes, so it is safe beside a running replica. Start at ``contents`` for printing, at
``verify`` for checking.
"""
