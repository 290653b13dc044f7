"""Turns servers into Ray actors: assembles each, and chooses its node and name.

The only package of ``actors`` that imports all others. Start at ``assembly``, whose servers
``processes`` makes into actors. ``broker`` and ``metadata_voter`` are a broker's own actor,
``host`` holds several replicas, ``cluster_location`` finds the data of a cluster, and
``server_metrics`` reports metrics.
"""
