"""The log of one replica: its segments behind one set of offsets; opening, recovery, upkeep.

The files beside the segments are handled here as well: checkpoints, leader epochs, producer
snapshots, topic id. Start at ``partition``; ``loader`` and ``recovery`` say what a start does.
"""
