"""Which brokers are registered, and which of them are live.

Rules. A broker is identified by its data directory: another directory under its number is rejected
while any partition depends on the first. Registering gives the broker an epoch and fences it until
its first heartbeat; calls with an older epoch are stale. A broker that is silent for a session is
fenced. Sessions are in memory only: a controller that starts gives every broker a full one.

| request | state | answer |
|---|---|---|
| register_broker | unknown, or known without a directory id | registered, fenced |
| register_broker | known, the same directory, fenced | registered anew, with a newer epoch |
| register_broker | the same, not fenced, its epoch is on its disk | a newer epoch |
| register_broker | the same, not fenced, its epoch is not | its epoch again, nothing logged |
| register_broker | the same, after a reboot | likewise; others lead topics that do not sync |
| register_broker | an older copy of the directory | as another directory |
| register_broker | another directory, the first has a last copy | DUPLICATE_BROKER_REGISTRATION |
| register_broker | another directory, fenced, no last copy | registered, fenced: a new disk |
| register_broker | another directory, not fenced | DUPLICATE_BROKER_REGISTRATION |
| register_broker | no directory id, or another cluster's | INVALID_REQUEST |
| broker_heartbeat | unknown | BROKER_NOT_AVAILABLE |
| broker_heartbeat | of another epoch | STALE_BROKER_EPOCH |
| broker_heartbeat | fenced | unfenced, durably, unless its node is gone or not reached |
| broker_heartbeat | its epoch is on its disk now | that is logged |
| broker_heartbeat | some of its actors are silent | others lead their partitions |
| broker_heartbeat | some of its replicas are offline | likewise |
| broker_heartbeat | its disk refuses appends to some | others lead these, if they can |
| broker_heartbeat | else | nothing logged |
| drain_broker | unknown | BROKER_NOT_AVAILABLE |
| drain_broker | too few would be left for a user topic | INVALID_REPLICATION_FACTOR, and which |
| drain_broker | none would be left for an internal topic | likewise |
| drain_broker | as it is already (a retry) | nothing logged |
| broker_heartbeat | it had no answer for a while | its session counts from the last answer |
| session over | not fenced | fenced |
| its actors answer, but not the broker's own | not fenced | its session begins anew |

Source: KIP-631, KIP-841, KIP-858.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from oncelog.actors.protocol.cluster.cluster_records import (
    BrokerChanged,
    BrokerRegistered,
    decision,
)
from oncelog.actors.protocol.cluster.cluster_state import BrokerState, TopicState
from oncelog.actors.protocol.cluster.elections import (
    Brokers,
    Records,
    after_draining,
    after_fencing,
    after_new_directory,
    after_reboot,
    after_refusal,
    after_silence,
    after_unfencing,
    is_last_copy,
)
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.cluster.placement import usable_brokers
from oncelog.actors.protocol.effects import Decision, refused
from oncelog.actors.protocol.messages.brokers import (
    BrokerHeartbeatReply,
    BrokerHeartbeatRequest,
    DrainBrokerReply,
    DrainBrokerRequest,
    RegisterBrokerReply,
    RegisterBrokerRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import INTERNAL_TOPICS

Topics = Mapping[str, TopicState]


class BrokerSessions:
    """When each broker was last heard, by the controller's clock; not durable."""

    __slots__ = ("_last_contact_ms", "_session_ms")

    def __init__(self, brokers: Brokers, *, session_ms: int, now_ms: int) -> None:
        self._session_ms = session_ms
        self._last_contact_ms = dict.fromkeys(brokers, now_ms)

    def record_contact(self, broker_id: int, now_ms: int) -> None:
        """A registered broker has registered or sent a heartbeat of its epoch."""
        self._last_contact_ms[broker_id] = max(now_ms, self._last_contact_ms.get(broker_id, now_ms))

    def expired(self, brokers: Brokers, now_ms: int) -> tuple[int, ...]:
        """The brokers to fence now."""
        return tuple(
            broker_id
            for broker_id, broker in sorted(brokers.items())
            if not broker.is_fenced and now_ms >= self._end_ms(broker_id, now_ms)
        )

    def silent(self, brokers: Brokers, now_ms: int) -> tuple[int, ...]:
        """The brokers of whose session less than half is left."""
        return self.expired(brokers, now_ms + self._session_ms // 2)

    def wake_ms(self, brokers: Brokers, now_ms: int) -> int | None:
        """When the next session ends; None if every broker is fenced."""
        ends = (
            self._end_ms(broker_id, now_ms)
            for broker_id, broker in brokers.items()
            if not broker.is_fenced
        )
        return min(ends, default=None)

    def _end_ms(self, broker_id: int, now_ms: int) -> int:
        return self._last_contact_ms.setdefault(broker_id, now_ms) + self._session_ms


def decide_register(
    topics: Topics, brokers: Brokers, request: RegisterBrokerRequest, cluster_id: str
) -> Decision[RegisterBrokerReply]:
    """Register a broker, fenced until its first heartbeat, unless it is registered already.

    The broker's actor may restart alone; that says nothing about its replicas.
    """
    if not request.directory_id or request.cluster_id != cluster_id:
        detail = (
            f"broker {request.broker_id} has a directory of cluster {request.cluster_id!r} with "
            f"the id {request.directory_id!r}, and this is cluster {cluster_id}"
        )
        return refused(request, ErrorCode.INVALID_REQUEST, detail)
    known = brokers.get(request.broker_id)
    is_other = known is not None and not request.disk.may_be(known.disk)
    if known is not None and is_other:
        detail = _registration_refusal(topics, known, request)
        if detail:
            return refused(request, ErrorCode.DUPLICATE_BROKER_REGISTRATION, detail)
    is_same = known is not None and known.directory_id == request.directory_id and not is_other
    epoch = 1 + max((broker.broker_epoch for broker in brokers.values()), default=-1)
    record = BrokerRegistered(
        broker_id=request.broker_id,
        data_dir=request.data_dir,
        directory_id=request.directory_id,
        rack=request.rack,
        broker_epoch=epoch,
        is_fenced=known is None or not is_same or known.is_fenced,
        disk_epoch=request.directory_epoch,
        boot_id=request.boot_id,
    )
    if known is not None and is_same and not known.is_fenced:
        is_kept = request.directory_epoch == known.broker_epoch
        was = known.data_dir, known.rack, known.boot_id
        if was == (request.data_dir, request.rack, request.boot_id) and not is_kept:
            return Decision(reply=RegisterBrokerReply(broker_epoch=known.broker_epoch))
        lacking = after_reboot(topics.values(), known, request.boot_id, brokers)
        return decision(RegisterBrokerReply(broker_epoch=epoch), record, *lacking)
    moved = after_fencing(topics.values(), request.broker_id, brokers)
    if known is not None and is_same:
        moved += after_reboot(topics.values(), known, request.boot_id, brokers)
    if is_other:
        moved += after_new_directory(topics.values(), request.broker_id, brokers)
    return decision(RegisterBrokerReply(broker_epoch=epoch), record, *moved)


def own_node(brokers: Brokers, broker_id: int, *, data_dir: str, rack: str) -> Records:
    """Update the controller's own broker, which does not register; () if nothing changed."""
    known = brokers.get(broker_id)
    if known is None or (known.data_dir, known.rack) == (data_dir, rack):
        return ()
    record = BrokerRegistered(
        broker_id=broker_id,
        data_dir=data_dir,
        directory_id=known.directory_id,
        rack=rack,
        broker_epoch=known.broker_epoch,
        is_fenced=known.is_fenced,
        disk_epoch=known.disk_epoch,
        boot_id=known.boot_id,
    )
    return (record,)


def _registration_refusal(
    topics: Topics, known: BrokerState, request: RegisterBrokerRequest
) -> str:
    """Why another directory cannot take over the broker's number; "" if it can."""
    who = (
        f"broker {known.broker_id} has the directory {known.directory_id} in {known.data_dir!r}, "
        f"and a node of that number came with {request.directory_id}: is its disk mounted, and do "
        "two nodes have one number?"
    )
    if request.directory_id == known.directory_id:
        who = (
            f"broker {known.broker_id} has the directory {known.directory_id}, and came with an "
            f"older copy of it (of epoch {request.directory_epoch}, not {known.disk_epoch}): bring "
            "the newer one back, or empty the older one."
        )
    if not known.is_fenced:
        return f"{who} The first is not fenced"
    for topic in topics.values():
        for number, partition in enumerate(topic.partitions):
            if is_last_copy(partition, known.broker_id):
                return f"{who} The first has the last copy of {topic.name}-{number}"
    return ""


def decide_heartbeat(
    topics: Topics,
    brokers: Brokers,
    request: BrokerHeartbeatRequest,
    silent: Collection[Placement] = (),
    refusing: Collection[Placement] = (),
    *,
    is_reached: bool = True,
) -> Decision[BrokerHeartbeatReply]:
    """A broker is alive: unfence it if it was fenced, and let it lead what only it can.

    ``silent``: the replicas in ``request.silent_actors`` and those that are offline. ``refusing``:
    those whose disk refuses appends. Other replicas lead in place of both. Unless it ``is_reached``
    the broker stays fenced: answers do not reach it, or Ray has given up its node and will end its
    processes.
    """
    broker = brokers.get(request.broker_id)
    if broker is None:
        detail = f"broker {request.broker_id} is not registered"
        return refused(request, ErrorCode.BROKER_NOT_AVAILABLE, detail)
    if request.broker_epoch != broker.broker_epoch:
        detail = f"broker_epoch={request.broker_epoch}: it is {broker.broker_epoch}"
        return refused(request, ErrorCode.STALE_BROKER_EPOCH, detail)
    disk_epoch = broker.broker_epoch if request.is_kept else broker.disk_epoch
    if not broker.is_fenced:
        moved: Records = after_silence(topics.values(), silent, brokers)
        moved += after_refusal(topics.values(), refusing, brokers)
        if disk_epoch > broker.disk_epoch:
            moved = (_changed(broker, disk_epoch=disk_epoch), *moved)
        return decision(BrokerHeartbeatReply(), *moved)
    if not is_reached:
        return Decision(reply=BrokerHeartbeatReply())
    record = _changed(broker, is_fenced=False, disk_epoch=disk_epoch)
    led = after_unfencing(topics.values(), request.broker_id)
    return decision(BrokerHeartbeatReply(), record, *led)


def fence(topics: Topics, brokers: Brokers, broker_id: int) -> Records:
    """Fence a broker whose session is over; others lead what it led."""
    broker = brokers[broker_id]
    record = _changed(broker, is_fenced=True)
    return (record, *after_fencing(topics.values(), broker_id, brokers))


def decide_drain(
    topics: Topics, brokers: Brokers, request: DrainBrokerRequest
) -> Decision[DrainBrokerReply]:
    """Move leaders off the broker at once; ``reassignment.drained`` moves its replicas later."""
    broker = brokers.get(request.broker_id)
    if broker is None:
        detail = f"broker {request.broker_id} is not registered"
        return refused(request, ErrorCode.BROKER_NOT_AVAILABLE, detail)
    if broker.is_draining == request.is_draining:
        return Decision(reply=DrainBrokerReply())
    record = _changed(broker, is_draining=request.is_draining)
    if not request.is_draining:
        return decision(DrainBrokerReply(), record)
    left = len(usable_brokers(brokers).keys() - {request.broker_id})
    for topic in topics.values():
        for partition in topic.partitions:
            needed = 1 if topic.name in INTERNAL_TOPICS else len(partition.target)
            if request.broker_id in partition.target and needed > left:
                detail = (
                    f"broker {request.broker_id} cannot be drained: topic {topic.name!r} has "
                    f"{len(partition.target)} replicas, and {left} brokers would be left for them"
                )
                return refused(request, ErrorCode.INVALID_REPLICATION_FACTOR, detail)
    moved = after_draining(topics.values(), request.broker_id, brokers)
    return decision(DrainBrokerReply(), record, *moved)


def _changed(
    broker: BrokerState,
    *,
    is_fenced: bool | None = None,
    is_draining: bool | None = None,
    disk_epoch: int | None = None,
) -> BrokerChanged:
    """A record of the broker with the given values changed."""
    return BrokerChanged(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        is_fenced=broker.is_fenced if is_fenced is None else is_fenced,
        is_draining=broker.is_draining if is_draining is None else is_draining,
        disk_epoch=broker.disk_epoch if disk_epoch is None else disk_epoch,
    )
