"""Compaction: keep the latest record of each key, and no record of an aborted transaction.

It rewrites sealed segments in small steps and swaps each result in for the originals. Start at
``compactor``; ``filter`` decides what becomes of each batch.
"""
