"""The rules of the controller: topics, leaders, epochs, producer ids, and their log.

Start at ``cluster_machine``. ``elections``, ``brokers``, ``placement`` and ``reassignment`` are the
rules of several brokers, ``quorum`` those of several controllers.
"""
