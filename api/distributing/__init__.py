"""Reads and writes by many tasks of an engine such as Spark or Ray Data.

Nothing here knows an engine. Start at ``write`` for one transaction written by many tasks, at
``read`` for a ``PartitionRange`` per task. ``engine_connection`` is the access to the cluster for
both.
"""
