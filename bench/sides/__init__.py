"""The log and what stands beside it, as the workloads of a comparison see them.

Start at ``Side`` in ``oncelog_side``. ``spark_alone`` is what Spark does without any log.
"""
