"""The rules of the controller: topics, leaders, epochs, producer ids, and the log of them.

Start at ``machine``.
"""
