"""Kafka's protocol at the door: clients of Kafka use the cluster as if it were one.

A request's bytes become a struct (``messages/``, made by a generator from Kafka's definitions), a
handler asks the actors in the client's name (``calls.py``), and its reply becomes bytes again. The
gateway has no state that a restart must keep. Start reading at ``door.py``.
"""
