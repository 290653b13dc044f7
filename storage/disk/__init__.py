"""The disk as the log sees it: files, syncs, and the consequences of errors.

All access to the operating system goes through ``file_system``, where the simulator substitutes
its own disk. Knows nothing of batches. Start at ``file_system``, then ``sync_point``.
"""
