"""Calls between processes: Ray finds an actor, and a connection or Ray carries the call.

Callers use only ``Transport`` (``actors.interfaces``). Start at ``actor_transport`` for the
caller's side and at ``dispatch`` for the called side, where both ways end. ``listener`` accepts
calls over connections, within the limits of ``admission``; ``frames`` and ``message_codec`` have
the bytes.
"""
