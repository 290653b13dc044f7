"""One ``.log`` file of whole batches, the indexes beside it, and the row of such files.

Reads and writes through ``storage.disk``; knows nothing of producers, leaders or transactions but
what a batch header says. Start at ``segment``; ``frames`` and ``inspection`` walk its batches.
"""
