"""Where servers become Ray actors: on which node, under which name, put together from what.

The one room that knows all the others. Start at ``assembly``, of which ``processes`` makes actors;
``cluster_location`` says where the data is, and ``server_metrics`` what operators watch.
"""
