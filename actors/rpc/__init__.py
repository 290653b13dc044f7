"""How calls travel between processes: Ray finds an actor, a connection carries the call.

Whoever calls sees ``Transport`` only (``actors.interfaces``). Start at ``actor_transport`` for the
caller's side and ``listener`` for the other; ``frames`` and ``message_codec`` are the bytes.
"""
