"""The controller's rules: topics, leaders, epochs, producer ids, and the metadata log.

Start at ``cluster_machine``. ``elections``, ``brokers``, ``placement`` and ``reassignment`` have
the rules for several brokers, ``quorum`` those for electing a controller.
"""
