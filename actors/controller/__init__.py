"""The controller's shell. Start at ``controller``.

``broker_membership`` says which brokers take part, ``moves`` where replicas go, ``replica_actors``
reaches them, and ``metadata_log`` has the voters and the snapshots of the controller's own log.
"""
