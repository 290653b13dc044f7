"""What tests see of the product that nobody else does: each private name once, and here."""

from __future__ import annotations

from typing import Any, cast

from oncelog.actors.protocol import access
from oncelog.actors.rpc.actor_transport import ActorTransport
from oncelog.actors.rpc.admission import Caller
from oncelog.actors.rpc.listener import Listener, _Caller
from oncelog.storage.log.partition import PartitionLog


def core_of(client: Any) -> Any:
    """What does the work of a producer, a member or a consumer."""
    return client._core


def transaction_of(producer: Any) -> Any:
    """The state of a producer's transactions; ``None`` without a transactional id."""
    return core_of(producer)._state


def segments_of(log: PartitionLog) -> Any:
    return log._segments


def loops_of(transport: ActorTransport) -> dict[Any, Any]:
    """The connections of each event loop."""
    return transport._of_loop


def callers_of(listener: Listener) -> dict[Caller, None]:
    """Whose connections are trusted, the newest last."""
    return listener.places._trusted


def new_caller(listener: Listener) -> Any:
    """The listener's end of one more connection."""
    return _Caller(listener)


def acls_of_principal() -> Any:
    """How the ACLs of a principal are found by name."""
    return access._Acls


def copy_of(broker: Any) -> Any:
    """The broker's copy of the controller's log, if it follows one now."""
    return broker.voter._copy


def groups_of(machine: Any) -> Any:
    """What a machine of groups knows of each of them."""
    return machine._groups.values()


def generation_of(consumer: Any) -> int:
    """The generation of its group that a consumer is in; also of one that commits by itself."""
    return int(core_of(consumer)._identity().generation_id)


def tasks_of(shell: Any) -> Any:
    """What a shell does by itself, which its process would end with it."""
    return shell._tasks


def names_of(controller: Any) -> Any:
    """The names of topics that somebody is changing or waits to change."""
    return controller._names


def pending_of(connection: Any) -> dict[int, Any]:
    """The calls of a connection that are not answered yet, by id."""
    return cast("dict[int, Any]", connection._pending)


def waiting_of(room: Any) -> list[Caller]:
    """The connections whose requests wait for bytes of others."""
    return [reserved.caller for reserved in room._waiting]


def membership_of(client: Any) -> Any:
    """What keeps a consumer in its group; ``None`` outside one."""
    return core_of(client)._membership
