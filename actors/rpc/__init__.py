"""How calls travel between processes: Ray finds an actor, and a connection or Ray carries the call.

Callers see only ``Transport`` (``actors.interfaces``). Start at ``actor_transport`` for the
caller's side and ``dispatch`` for the other, where both paths end; ``listener`` takes what comes
over a connection, within the bounds of ``admission``; ``frames`` and ``message_codec`` have the
bytes.
"""
