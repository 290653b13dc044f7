"""One ``.log`` file of whole batches, the indexes beside it, and the list of such segments.

Reads and writes through ``storage.disk``. Knows of producers, leaders and transactions only what a
batch header says. Start at ``segment``; ``frames`` and ``inspection`` walk its batches.
"""
