"""The log of one replica: its segments behind one set of offsets, opened, recovered and kept.

What stands beside the segments lives here as well: checkpoints, leader epochs, producer
snapshots, topic id. Start at ``partition``; ``loader`` and ``recovery`` tell what a start does.
"""
