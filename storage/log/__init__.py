"""The log of one replica: its segments behind one set of offsets; opening, recovery, retention.

So are the files beside the segments: ``side_files`` has checkpoints, leader epochs and topic id,
``producer_snapshot`` the state of producers. Start at ``partition``, whose read side is
``readable``; ``loader`` and ``recovery`` say how a log is opened.
"""
