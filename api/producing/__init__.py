"""Producers and members of distributed writes, and how their batches are sent.

Start at ``producer``. Behind ``send`` are ``record_buffer``, ``sender`` and ``partition_sender``;
``core`` is the transactional calls.
"""
