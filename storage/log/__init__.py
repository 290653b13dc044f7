"""The log of one replica: its segments behind one set of offsets; opening, recovery, upkeep.

The files beside the segments are handled here as well: ``side_files`` has checkpoints, leader
epochs and topic id, ``producer_snapshot`` the state of producers. Start at ``partition``, whose
read side is ``readable``; ``loader`` and ``recovery`` say what a start does.
"""
