"""An actor that answers at once, both ways."""

from __future__ import annotations

from oncelog.actors.config import CONNECTIONS
from oncelog.actors.launch.processes import ActorProcess
from oncelog.actors.protocol.messages.partition import ProduceReply, ProduceRequest


class EmptyServer:
    """Does nothing with what it is sent."""

    async def produce(self, request: ProduceRequest) -> ProduceReply:
        """Tell the size of the batch."""
        return ProduceReply(base_offset=len(request.batch))


class EmptyProcess(ActorProcess):
    """The process of an ``EmptyServer``."""

    answering = (EmptyServer,)

    def __init__(self) -> None:
        super().__init__(EmptyServer(), calls=CONNECTIONS)
