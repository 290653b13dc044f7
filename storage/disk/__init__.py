"""The disk as the log sees it: files, syncs, and what becomes of an error.

Everything that touches the operating system passes through ``file_system``; the simulator puts
its own disk in there. Knows nothing of batches. Start at ``file_system``, then ``sync_point``.
"""
