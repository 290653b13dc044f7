"""The controller's shell. Start at ``controller``.

``broker_membership`` registers and fences brokers, ``moves`` reassigns replicas, ``replica_actors``
starts and calls their actors, and ``metadata_log`` manages voters and snapshots of the controller's
own log.
"""
