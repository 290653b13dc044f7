"""An actor that answers at once, both ways."""

from __future__ import annotations

from oncelog.actors.launch.processes import actor_class, make_listener
from oncelog.actors.protocol.messages.partition import ProduceReply, ProduceRequest
from oncelog.actors.rpc.listener import Listener, ListenerAddress


class EmptyServer:
    """Does nothing with what it is sent."""

    async def produce(self, request: ProduceRequest) -> ProduceReply:
        """Tell the size of the batch."""
        return ProduceReply(base_offset=len(request.batch))


@actor_class
class EmptyProcess(EmptyServer):
    """An ``EmptyServer`` that listens."""

    listener: Listener

    def __init__(self) -> None:
        self.listener = make_listener(super())

    async def listener_address(self) -> ListenerAddress:
        """Where it listens."""
        return await self.listener.address()
