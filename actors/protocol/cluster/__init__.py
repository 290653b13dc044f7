"""The rules of the controller: topics, leaders, epochs, producer ids, and their log.

Start at ``machine``.
"""
