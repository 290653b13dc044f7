"""An actor that answers at once, both ways."""

from __future__ import annotations

from oncelog.actors.listener import Listener, ListenerAddress
from oncelog.actors.processes import actor_class, make_listener
from oncelog.actors.protocol.messages import ProduceReply, ProduceRequest


@actor_class
class EmptyProcess:
    """Does nothing with what it is sent."""

    listener: Listener

    def __init__(self) -> None:
        self.listener = make_listener(self)

    async def listener_address(self) -> ListenerAddress:
        """Where it listens."""
        return await self.listener.address()

    async def produce(self, request: ProduceRequest) -> ProduceReply:
        """Tell the size of the batch."""
        return ProduceReply(base_offset=len(request.batch))
