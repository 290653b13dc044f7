"""Compaction: the latest record of each key stays, whatever transactions decided.

Works on sealed segments of a log, in small steps, and swaps what it wrote for what it read. Start
at ``compactor``.
"""
