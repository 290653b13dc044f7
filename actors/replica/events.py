"""What a replica asks of the process around it."""

from __future__ import annotations

from oncelog.actors.protocol.messages.cluster import AlterIsrReply
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition.followers import IsrProposal
from oncelog.storage.errors import ErrorCode


class ReplicaEvents:
    """Passed to a replica when it is made; these defaults are of one without a process around it.

    ``send_push`` and ``propose_isr`` make calls, and never raise for a lost one.
    """

    async def send_push(self, broker_id: int, request: ReplicateRequest) -> ReplicateReply:
        """Push to the follower on a broker."""
        detail = f"{request.topic_partition} has no way to broker {broker_id}"
        return request.failed(ErrorCode.NETWORK_EXCEPTION, detail)

    async def propose_isr(self, proposal: IsrProposal) -> AlterIsrReply:
        """Ask the controller to change the ISR."""
        detail = f"nobody to ask for the ISR {proposal.isr}"
        return AlterIsrReply(error=ErrorCode.NETWORK_EXCEPTION, detail=detail)

    def refresh_keys_soon(self) -> None:
        """A ticket names newer keys: ask for them."""

    def refresh_settings_soon(self) -> None:
        """A leader has newer settings of the topic, or the rack of a broker is unknown: ask."""

    def start_upkeep(self) -> None:
        """The replica follows, and its log may be maintained."""

    def restart_later(self, reason: str) -> None:
        """The replica is offline for a transient reason: end the process in a while."""

    def end_for_another(self, reason: str) -> None:
        """Another leads: end the process."""

    def on_bug(self, bug: BaseException) -> None:
        """A broken invariant, or another exception without a caller to raise it to: end at once."""
        raise bug
