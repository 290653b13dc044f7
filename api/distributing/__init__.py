"""Reads and writes that many tasks of a foreign engine share: Spark, Ray Data.

Nothing here knows an engine. Start at ``write`` for a write of many tasks as one transaction, at
``read`` for a ``PartitionRange`` per task. ``engine_connection`` is what both need of a cluster.
"""
