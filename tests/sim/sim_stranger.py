"""Users: those who work within their rights, and one with few who tries everything.

What the stranger may do changes all the time, and a process may not know it yet, or know no rules
at all. So each answer that he gets is judged by the rules that the called process had then, and by
what ``access_rows`` says of both: he is refused what he has no right to, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from access_rows import (
    DESCRIBE_GROUP,
    DESCRIBE_IDS,
    DESCRIBE_TOPIC,
    LISTINGS,
    REFUSALS,
    ROWS,
    WRITE_ID,
    WRITE_TOPICS,
    Names,
    Right,
    Row,
    allows,
    lacking,
    told,
)
from sim_checkers import Violation
from sim_process import Client
from sim_stage import Player, Stage
from sim_world import World

from oncelog.actors.interfaces import CONTROLLER_ACTOR, address_of
from oncelog.actors.protocol.access import RAY, Principal
from oncelog.actors.protocol.messages.access import (
    CLUSTER_NAME,
    RAY_NAME,
    Acl,
    AlterAclsRequest,
    AlterAuthorizationRequest,
    Operation,
    Resource,
    Rules,
)
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.brokers import FindKafkaListenerRequest
from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.actors.protocol.messages.group import (
    DescribeGroupsRequest,
    OffsetAndMetadata,
    OffsetCommitRequest,
)
from oncelog.actors.protocol.messages.partition import FetchTogetherRequest
from oncelog.actors.protocol.messages.transaction import (
    AddOffsetsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    VerifyTxnRequest,
)
from oncelog.actors.rpc.door import Door
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import INTERNAL_TOPICS

STRANGER = Principal("User:stranger")
PAUSE_MS = 200.0
CHANGE_MS = 1_000.0
TIMEOUT_MS = 1_000
SET_UP_LIMIT_S = 120.0
KNOWN_LIMIT_S = 60.0
TRIAL_LIMIT_S = 300.0
TRIALS_MAX = 20
"""How often a call is made again that nobody answers, once there are no faults."""

_REFUSED = frozenset(REFUSALS.values())
_UNANSWERED = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT})


class LetInError(AssertionError):
    """A stranger was answered what he may not ask, or refused what he may."""


# --- the rules ------------------------------------------------------------------------------------

OWN = Names("strangers", "strangers", "strangers")
BY_PREFIX = Names("strange-1", "strange-1", "strange-1")
OTHERS_GROUP = "others"
OTHERS_ID = "writer-0"
NOT_HIS = ("strangers-2", "strange", "strange-denied", "elsewhere")
"""Names that ACLs of his come close to: longer, shorter, denied, for another address."""


def _acl(resource: Resource, name: str, operation: Operation = Operation.ALL, **how: Any) -> Acl:
    fields = {"principal": STRANGER.name, "resource": resource, "name": name}
    return Acl(**fields, operation=operation, **how)


_NAMED = (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID)
_OWN_ACLS = tuple(
    acl
    for resource in _NAMED
    for acl in (
        _acl(resource, "strangers"),
        _acl(resource, "strange-", is_prefix=True),
        _acl(resource, "strange-denied", is_allowed=False),
        _acl(resource, "elsewhere", host="10.9.9.9"),
    )
)
_SEEN_ACLS = (
    _acl(Resource.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE),
    _acl(Resource.TOPIC, "*", Operation.READ),
)
PHASES: dict[str, tuple[Acl, ...]] = {
    "nothing": (),
    "own": _OWN_ACLS,
    "seen": _OWN_ACLS + _SEEN_ACLS,
}
"""What he has from time to time."""


def set_rules(stage: Stage) -> None:
    """Give all users their rights and switch the rules on; return once every process knows."""
    world = stage.world
    client = world.client("rule-maker")
    world.run(client.spawn(_set_rules(client, stage)), limit_s=SET_UP_LIMIT_S)
    world.run(world.until(lambda: are_rules_known(world)), limit_s=KNOWN_LIMIT_S)
    stage.first_rules = _version(world)


def are_rules_known(world: World) -> bool:
    """Whether every living process goes by what the controller has."""
    controller = world.server(CONTROLLER_ACTOR)
    if controller is None or not controller.shell.runtime.is_loaded:
        return False
    version = _version(world)
    return all(
        process.dispatch.door.version == version
        for process in world.processes.values()
        if process.dispatch is not None
    )


def _version(world: World) -> int:
    version: int = world.server(CONTROLLER_ACTOR).shell.machine.access.version
    return version


_ANY_TOPIC = ((Resource.TOPIC, "*", one) for one in (Operation.READ, Operation.WRITE))
_RIGHTS: dict[str, tuple[tuple[Resource, str, Operation], ...]] = {
    "writer": (
        (Resource.TOPIC, "*", Operation.WRITE),
        (Resource.TRANSACTIONAL_ID, "*", Operation.WRITE),
    ),
    "plain": ((Resource.TOPIC, "*", Operation.WRITE),),
    "reader": ((Resource.TOPIC, "*", Operation.READ),),
    "copier": (
        *_ANY_TOPIC,
        (Resource.TRANSACTIONAL_ID, "*", Operation.WRITE),
        (Resource.GROUP, "*", Operation.READ),
    ),
}
"""What those need who work, by the first word of a role's name; all others are programs."""


def principal_of(role: str) -> Principal | None:
    """As whom a role works where there are rules; ``None``: as any program."""
    kind = role.partition("-")[0]
    return Principal(f"User:{kind}") if kind in _RIGHTS else None


async def _set_rules(client: Client, stage: Stage) -> None:
    acls = (
        *(
            Acl(principal=f"User:{kind}", resource=resource, name=name, operation=operation)
            for kind, rights in _RIGHTS.items()
            for resource, name, operation in rights
        ),
        *_OWN_ACLS,
    )
    on = AlterAuthorizationRequest(is_on=True, super_users=(RAY_NAME,))
    position = (stage.partitions[0], OffsetAndMetadata(offset=0))
    group = OffsetCommitRequest(group_id=OTHERS_GROUP, offsets=(position,))
    for request in (group, AlterAclsRequest(added=acls), on):
        await _insist(client, stage.world, request)


async def _insist(client: Client, world: World, request: Request[Any]) -> None:
    """Call whoever takes such requests until one has done it."""
    while True:
        for address in _places(world, request):
            reply = await client.transport.call(address, request, timeout_ms=10_000)
            if reply.error is ErrorCode.NONE:
                return
        await asyncio.sleep(0.01)


def _change_to(phase: str) -> AlterAclsRequest:
    """Gives the stranger what he has in a phase, and takes all else; safe to repeat."""
    kept = PHASES[phase]
    every = dict.fromkeys(acl for acls in PHASES.values() for acl in acls)
    return AlterAclsRequest(added=kept, removed=tuple(acl for acl in every if acl not in kept))


async def rule_changer(player: Player) -> None:
    """Changes the rights of the stranger all the time."""
    while player.is_on:
        await player.pause(CHANGE_MS)
        change = _change_to(player.random.choice(tuple(PHASES)))
        await player.client.transport.call(CONTROLLER_ACTOR, change, timeout_ms=TIMEOUT_MS)
        player.stage.counts["rules changed"] += 1


# --- what he asks ---------------------------------------------------------------------------------


OF_GATEWAYS = {FindKafkaListenerRequest, VerifyTxnRequest}
"""What only gateways answer or ask, which these worlds have none of."""

EVERY_ROW = [row for row in ROWS + LISTINGS if row.kind not in OF_GATEWAYS]


class Attempt(NamedTuple):
    """A request, made of names some of which he may have no right to."""

    row: Row
    names: Names

    @property
    def request(self) -> Request[Any]:
        return self.row.make(self.names)


def _attempts(stage: Stage, random: Random, row: Row) -> Iterator[Attempt]:
    """A request with names of his own, and for each of its needs with names that are not."""
    yield from (Attempt(row, OWN), Attempt(row, BY_PREFIX))
    for right in row.rights:
        others = random.choice(stage.partitions).topic, OTHERS_GROUP, OTHERS_ID
        for other in (Names(*others).of(right.resource), random.choice(NOT_HIS)):
            yield Attempt(row, OWN.with_other(right.resource, other))


def _places(world: World, request: Request[Any]) -> list[str]:
    """The addresses of all that would take such a request, if it came from the right caller."""
    method = request.method
    found = [
        actor.name
        for actor in world.actors()
        if actor.dispatch is not None
        and (hasattr(Door, method) or hasattr(actor.dispatch.server, method))
    ]
    held = [
        world.placement_of(server.replica.topic_partition)
        for name, server in world.servers().items()
        if name not in world.processes and hasattr(server, method)
    ]
    return found + list(dict.fromkeys(map(address_of, filter(None, held))))


async def stranger(player: Player) -> None:
    """Asks for this and that, until the stage is over."""
    player.client.principal = STRANGER
    while player.is_on:
        await player.pause(PAUSE_MS)
        row = player.random.choice(EVERY_ROW)
        attempt = player.random.choice(list(_attempts(player.stage, player.random, row)))
        await _ask(player.stage, player.client, player.random, attempt)


async def _ask(
    stage: Stage, client: Client, random: Random, attempt: Attempt, address: str = ""
) -> Any:
    """Make one call and judge its answer; ``None`` if nobody gave one."""
    request = attempt.request
    places = _places(stage.world, request)
    if not places:
        return None
    heard: list[Rules | None] = []

    def judged(who: Principal, method: str, rules: Rules | None) -> None:
        if (who, method) == (STRANGER, request.method):
            heard.append(rules)

    stage.counts["calls of a stranger"] += 1
    stage.world.on_judged.append(judged)
    try:
        reply = await client.transport.call(
            address or random.choice(places), request, timeout_ms=TIMEOUT_MS
        )
    finally:
        stage.world.on_judged.remove(judged)
    if reply.error in _UNANSWERED:
        return None
    stage.counts["calls of a stranger refused"] += reply.error in _REFUSED
    known = [rules for rules in heard if rules and rules.version >= stage.first_rules]
    if not any(_is_right(stage, attempt, rules, reply) for rules in known):
        stage.world.fail(
            LetInError(f"{request} was answered {reply}"), "a stranger was not judged by the rules"
        )
    return reply


# --- what he must be answered ---------------------------------------------------------------------


def _is_right(stage: Stage, attempt: Attempt, rules: Rules, reply: Any) -> bool:
    """Whether a called process that goes by ``rules`` may answer this."""
    lacked = lacking(attempt.row, attempt.names, rules, STRANGER, host="")
    whole = {REFUSALS[right.resource] for right in lacked if not right.in_part}
    if whole:
        is_right = reply.error in whole
    else:
        is_left_out = not lacked or _is_left_out(attempt.request, reply)
        is_right = (
            reply.error not in _REFUSED
            and is_left_out
            and all(allows(rules, STRANGER, right, name, "") for right, name in _shown(reply))
        )
    if is_right and len(lacked) == 1:
        stage.refused.add(_lack(attempt.row, lacked[0]))
    return is_right


def _lack(row: Row, right: Right) -> str:
    return f"{row} without {told(right)}"


def _is_left_out(request: Request[Any], reply: Any) -> bool:
    """Whether the reply does nothing about the one thing in a request that he has no right to."""
    if isinstance(request, DescribeTransactionsRequest):
        return reply.error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if isinstance(request, EndTxnRequest):
        return not reply.enrolments
    if isinstance(request, MetadataRequest):
        # Who may not see it is told so, whether there is one or not.
        return request.topics is None or reply.refused == request.topics
    if isinstance(request, DescribeGroupsRequest):
        # Then it is not shown either.
        return True
    if isinstance(request, FetchTogetherRequest):
        # Beside it there may be what was begun while he had the right.
        refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return any(one.reply.error is refusal for one in reply.ended)
    errors = {part.error for part in _parts(reply)}
    return errors == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def _parts(reply: Any) -> list[Any]:
    return [
        part
        for name in ("enrolments", "results", "offsets")
        for part in getattr(reply, name, ())
        if hasattr(part, "topic_partition")
    ]


def _shown(reply: Any) -> Iterator[tuple[Right, str]]:
    """What a reply says that there is, with the right that it takes to see it."""
    topics = [one.name for one in getattr(reply, "topics", ())]
    topics += [one.topic_partition.topic for one in _parts(reply) if one.error is ErrorCode.NONE]
    for one in getattr(reply, "transactions", ()):
        yield DESCRIBE_IDS, one.transactional_id
        topics += [tp.topic for tp in one.partitions]
    for one in getattr(reply, "groups", ()):
        yield DESCRIBE_GROUP, one.group_id
    yield from ((DESCRIBE_TOPIC, topic) for topic in topics if topic not in INTERNAL_TOPICS)


# --- everything, at the end -----------------------------------------------------------------------


ENROLLED_AHEAD = "a commit that enrols ahead"


def try_everything(stage: Stage) -> list[Violation]:
    """Once there are no faults: each request, with each right that it needs lacking alone."""
    client = stage.world.client("last-stranger")
    stage.world.run(client.spawn(_try_everything(stage, client)), limit_s=TRIAL_LIMIT_S)
    taken = [row for row in EVERY_ROW if _places(stage.world, row.make(OWN))]
    stage.counts["kinds of requests of a stranger"] = len({row.kind for row in taken})
    lacks = {_lack(row, right) for row in taken for right in row.rights} | {ENROLLED_AHEAD}
    untried = lacks - stage.refused
    return [Violation("UntriedRequests", lack) for lack in sorted(untried)]


async def _try_everything(stage: Stage, client: Client) -> None:
    world = stage.world
    random = Random(f"last stranger {world.seed}")
    for phase in PHASES:
        client.principal = RAY
        await _insist(client, world, _change_to(phase))
        await world.until(lambda: are_rules_known(world))
        client.principal = STRANGER
        for row in EVERY_ROW:
            for attempt in dict.fromkeys(_attempts(stage, random, row)):
                if phase == "own" or attempt.names == OWN:
                    await _ask_again(stage, client, random, attempt)
    await _enrol_ahead(stage, client, random)


async def _ask_again(stage: Stage, client: Client, random: Random, attempt: Attempt) -> None:
    """Ask until there is an answer, if that must be a refusal."""
    controller = stage.world.actor(CONTROLLER_ACTOR)
    rules = controller.dispatch.door.rules if controller else None
    has_all = rules and not lacking(attempt.row, attempt.names, rules, STRANGER, host="")
    for _ in range(1 if has_all else TRIALS_MAX):
        if await _ask(stage, client, random, attempt) is not None:
            return


async def _enrol_ahead(stage: Stage, client: Client, random: Random) -> None:
    """Commit a transaction, and enrol for the next one what he may only read."""
    others = BY_PREFIX._replace(topic=stage.partitions[0].topic)
    own: dict[str, Any] = {"transactional_id": others.transactional_id}
    init = InitProducerIdRequest(**own)
    for address in _places(stage.world, init) * TRIALS_MAX:
        producer = await client.transport.call(address, init, timeout_ms=TIMEOUT_MS)
        fields = own | {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
        }
        add = AddOffsetsToTxnRequest(group_id=others.group, **fields)
        await client.transport.call(address, add, timeout_ms=TIMEOUT_MS)
        end = EndTxnRequest(committed=True, next_partitions=(others.partition,), **fields)
        row = Row(lambda _, end=end: end, (WRITE_ID, WRITE_TOPICS))
        reply = await _ask(stage, client, random, Attempt(row, others), address)
        if reply is not None and reply.error is ErrorCode.NONE:
            stage.refused.add(ENROLLED_AHEAD)
            return
        await asyncio.sleep(0.1)
