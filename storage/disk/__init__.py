"""Files and syncs, and what to do after a disk error.

All file access goes through ``file_system``, which the simulator replaces by a disk of its own.
Nothing here knows about batches. Start at ``file_system``, then ``sync_point``.
"""
