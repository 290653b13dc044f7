"""Workloads of ``storage``, ``transactions`` and ``scale``, each named after its benchmark.

``storage_logs`` makes the logs that several of them work on.
"""
