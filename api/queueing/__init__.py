"""Queues: workers that share the records of topics, one record at a time.

Start at ``queue``; ``core`` is what both faces do, ``acquired`` reads what was acquired.
"""
