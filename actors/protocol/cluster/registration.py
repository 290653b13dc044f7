"""Which brokers there are, as long as they send no heartbeats (``brokers`` has those rules).

A number and a data directory belong together for good.

| register_broker | answer |
|---|---|
| a number that nobody has | registered |
| the number and its directory again | NONE; logged only if the path or the rack has changed |
| the number of another directory | INVALID_REQUEST, with both |
| of another cluster | INVALID_REQUEST, with both |
"""

from __future__ import annotations

from oncelog.actors.protocol.cluster.log import BrokerRegistered, decision
from oncelog.actors.protocol.cluster.state import BrokerState, registered
from oncelog.actors.protocol.effects import Decision, refused
from oncelog.actors.protocol.messages.brokers import RegisterBrokerReply, RegisterBrokerRequest
from oncelog.storage.errors import ErrorCode


def decide_register_broker(
    request: RegisterBrokerRequest, known: BrokerState | None, cluster_id: str
) -> Decision[RegisterBrokerReply]:
    """Register a broker, or refuse one whose directory is not the one of that number."""
    if request.cluster_id != cluster_id:
        detail = (
            f"broker {request.broker_id} has a directory of cluster {request.cluster_id}, and "
            f"this is cluster {cluster_id}"
        )
        return refused(request, ErrorCode.INVALID_REQUEST, detail)
    if known is not None and known.directory_id not in {"", request.directory_id}:
        detail = (
            f"broker {request.broker_id} has the directory {known.directory_id}, and a node of "
            f"that number came with {request.directory_id}: is its disk mounted, and do two "
            "nodes have one number?"
        )
        return refused(request, ErrorCode.INVALID_REQUEST, detail)
    record = BrokerRegistered(
        broker_id=request.broker_id,
        data_dir=request.data_dir,
        directory_id=request.directory_id,
        rack=request.rack,
    )
    if known == registered(record, known):
        return Decision(reply=RegisterBrokerReply())
    return decision(RegisterBrokerReply(), record)
