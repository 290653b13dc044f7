"""Compaction: keep the latest record of each key, honouring what transactions decided.

Works on a log's sealed segments, in small steps, and swaps what it wrote for what it read. Start
at ``compactor``; ``filter`` says what becomes of a batch.
"""
