"""Producers and members of distributed writes, and how their batches are sent.

Start at ``producer``. ``record_sender`` and ``partition_sender`` are behind ``send``; ``core`` is
the transactional calls.
"""
