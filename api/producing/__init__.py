"""Producers and members of distributed writes, and how their batches are sent.

Start at ``producer``; ``record_sender`` and ``partition_sender`` are what happens behind ``send``,
``core`` is what a call does to the transaction.
"""
