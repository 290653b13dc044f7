"""More protections removed, of coordinators and the controller. See ``sim_mutants`` and others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

from msgspec import structs
from sim_mutants import BUSY, Wrap, replaced, together
from sim_nemesis import RATES
from sim_saboteurs import ALONE, LATE, Saboteur, preparing

from oncelog.actors.protocol.cluster import cluster_records
from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.cluster.cluster_records import LeaderElected
from oncelog.actors.protocol.messages.partition import TxnMarker
from oncelog.actors.protocol.transaction import ids as transactional_ids
from oncelog.actors.protocol.transaction import producers as transaction_producers
from oncelog.actors.protocol.transaction import transaction_records, transaction_state
from oncelog.actors.protocol.transaction.end import EndAge
from oncelog.actors.protocol.transaction.transaction_machine import Upkeep
from oncelog.actors.protocol.transaction.transaction_state import TransactionMetadata
from oncelog.actors.transactions import completions as transaction_completions
from oncelog.actors.transactions.completions import MarkerSender, TransactionCompletions


def _tokens_dropped_by_aborts() -> Any:
    real = transaction_state.prepared

    def prepared(metadata: TransactionMetadata, **named: Any) -> TransactionMetadata:
        found = real(metadata, **named)
        return found if named["committed"] else structs.replace(found, commit_token=None)

    return preparing(prepared)


def _visible_at_once() -> Any:
    """A commit answers "visible" without a look at its markers."""

    async def is_visible(self: TransactionCompletions, completion: Any) -> bool:
        return True

    return mock.patch.object(TransactionCompletions, "is_visible", is_visible)


def _completions_not_resumed() -> Any:
    """A coordinator that comes back leaves what was decided as it is."""
    return mock.patch.object(transaction_completions.TransactionCompletions, "resume")


def _open_for_ever() -> Any:
    """No transaction is over its time."""
    return mock.patch.object(Upkeep, "_is_expired", return_value=False)


def _prepared_time_out() -> Any:
    """A prepared transaction is aborted when its time is over, as any that is open."""

    def is_expired(self: Upkeep, metadata: TransactionMetadata, now_ms: int) -> bool:
        is_free = not self.ids.is_pending(metadata.transactional_id)
        is_open = metadata.state in transaction_state.OPEN
        return is_open and is_free and self._deadline_ms(metadata) < now_ms

    return mock.patch.object(Upkeep, "_is_expired", is_expired)


def _decisions_again() -> Any:
    """What is decided is decided anew when its time is over, and nobody asserts the moves."""

    def is_expired(self: Upkeep, metadata: TransactionMetadata, now_ms: int) -> bool:
        is_over = metadata.start_ms + metadata.transaction_timeout_ms < now_ms
        return is_over and not self.ids.is_pending(metadata.transactional_id)

    return together(
        mock.patch.object(transactional_ids, "invariant"),
        mock.patch.object(Upkeep, "_is_expired", is_expired),
        replaced(
            Upkeep,
            "expired_transactions",
            lambda _: (
                lambda self, now_ms: [
                    found.transactional_id
                    for found in self.ids.all()
                    if found.state.name != "EMPTY" and self._is_expired(found, now_ms)
                ]
            ),
        ),
    )


def _winners_and_losers() -> Any:
    """Every member of a run that commits is a winner."""

    real = transaction_state.prepared

    def prepared(metadata: TransactionMetadata, **named: Any) -> TransactionMetadata:
        if named["committed"]:
            named["winners"] = frozenset(metadata.members)
        return real(metadata, **named)

    return preparing(prepared)


def _ids_handed_out_twice() -> Any:
    def wrap(real: Wrap) -> Wrap:
        def decide(self: ClusterMachine, request: Any) -> Any:
            decision = real(self, request)
            return type(decision)(reply=decision.reply)

        return decide

    return replaced(ClusterMachine, "decide_allocate_producer_ids", wrap)


def _epochs_given_again() -> Any:
    """The controller gives a start the epoch of the start before it."""

    def wrap(real: Wrap) -> Wrap:
        def decide(self: ClusterMachine, request: Any) -> Any:
            found = self._find(request.topic_partition)
            if found is None or found[1].leader_epoch < 1:
                return real(self, request)
            found[1].leader_epoch -= 1
            try:
                asked = structs.replace(request, expected_epoch=found[1].leader_epoch)
                return real(self, asked)
            finally:
                found[1].leader_epoch += 1

        return decide

    return replaced(ClusterMachine, "decide_become_leader", wrap)


def _elections_by_name() -> Any:
    """The controller elects a start with the log of another topic that had the name."""

    def wrap(real: Wrap) -> Wrap:
        def decide(self: ClusterMachine, request: Any) -> Any:
            found = self._find(request.topic_partition)
            if found is not None:
                request = structs.replace(request, topic_id=found[0].topic_id)
            return real(self, request)

        return decide

    return replaced(ClusterMachine, "decide_become_leader", wrap)


def _causes_not_logged() -> Any:
    """Why an epoch rose is known to the coordinator that decided it, and to no other."""

    def wrap(real: Wrap) -> Wrap:
        def tagged(*arguments: Any) -> Any:
            fields = real(*arguments)
            return [field for field in fields if field[0] != transaction_records.TAG_EPOCH_CAUSE]

        return tagged

    return replaced(transaction_records, "_tagged", wrap)


def _starts_not_logged() -> Any:
    """To which start of a replica a leader epoch was given is known to nobody but its giver."""

    def fields(record: Any) -> dict[str, Any]:
        return structs.asdict(record) | (
            {"incarnation": ""} if isinstance(record, LeaderElected) else {}
        )

    return mock.patch.object(cluster_records, "structs", SimpleNamespace(asdict=fields))


def _ends_of_others() -> Any:
    """Who has been fenced may end the transaction of its successor."""
    return mock.patch.object(transaction_producers, "end_age", return_value=EndAge.CURRENT)


def _markers_of(change: Callable[[TxnMarker], TxnMarker]) -> Any:
    def wrap(real: Wrap) -> Wrap:
        async def send(self: MarkerSender, markers: Any, **named: Any) -> Any:
            return await real(self, [change(marker) for marker in markers], **named)

        return send

    return replaced(MarkerSender, "send", wrap)


def _epochs_of_markers() -> Any:
    """A marker has the epoch of another decision, one that is not made yet."""
    return _markers_of(
        lambda marker: structs.replace(marker, producer_epoch=marker.producer_epoch + 1)
    )


def _verdicts_of_markers() -> Any:
    """Now and then a marker has the other verdict."""
    return _markers_of(
        lambda marker: structs.replace(
            marker, committed=marker.committed is (marker.producer_epoch % 5 > 0)
        )
    )


QUIET = ALONE | dict.fromkeys(RATES, 0.0)
QUIET |= {"disk_refusal": 0.0, "file_damage": 0.0, "move": 0.0, "kill_at_message": 0.0}
QUIET |= {"kill_group": 0.0, "operators": 0, "request_timeout_ms": 1_000}
"""Nothing goes wrong but what is asked for."""


COORDINATOR_MUTANTS = (
    Saboteur(
        name="elections by topic id",
        sabotage=_elections_by_name,
        checker="World",
        # A copy has to come in the moment between a creation and the first election.
        changes=ALONE
        | LATE
        | {"remakers": 12, "duplicate": 0.8, "delay_max_ms": 3_000.0, "kill": 1.0, "move": 0.0},
    ),
    Saboteur(
        name="tokens kept by aborts",
        sabotage=_tokens_dropped_by_aborts,
        checker="WrongTokens",
        changes=ALONE | BUSY | {"abort_ratio": 0.5, "kill_client": 1.0},
    ),
    Saboteur(
        name="visible means readable",
        sabotage=_visible_at_once,
        checker="UnreadableCommits",
        changes=ALONE | BUSY | {"isolate": 0.5, "pause": 1.0},
    ),
    Saboteur(
        name="completions resumed",
        sabotage=_completions_not_resumed,
        checker="World",
        changes=ALONE | BUSY | {"kill": 1.0},
    ),
    Saboteur(
        name="time-outs of transactions",
        sabotage=_open_for_ever,
        checker="OpenAtTheEnd",
        changes=ALONE | {"kill_client": 1.0},
    ),
    Saboteur(
        name="no time-out of what is prepared",
        sabotage=_prepared_time_out,
        checker="LostRecords",
        changes=ALONE | {"preparers": 2, "transaction_timeout_ms": 1_000},
    ),
    Saboteur(
        name="final decisions",
        sabotage=_decisions_again,
        checker="IllegalMoves",
        changes=ALONE | BUSY | {"transaction_timeout_ms": 1_000},
    ),
    Saboteur(
        name="epochs given once",
        sabotage=_epochs_given_again,
        checker="SharedEpochs",
        changes=ALONE | {"kill": 1.0},
    ),
    Saboteur(
        name="causes in the log",
        sabotage=_causes_not_logged,
        checker="UnequalStates",
        changes=ALONE | BUSY,
    ),
    Saboteur(
        name="starts in the log",
        sabotage=_starts_not_logged,
        checker="UnequalStates",
        changes={"kill": 1.0},
    ),
    Saboteur(
        name="ends of one's own",
        sabotage=_ends_of_others,
        checker="FencedCommits",
        changes=ALONE | BUSY | {"hijackers": 2},
    ),
    Saboteur(
        name="epochs of markers",
        sabotage=_epochs_of_markers,
        checker="MarkersBeforeDecision",
        changes=ALONE,
    ),
    Saboteur(
        name="verdicts of markers",
        sabotage=_verdicts_of_markers,
        checker="ContradictingMarkers",
        changes=ALONE,
    ),
    Saboteur(
        name="losers of a run",
        sabotage=_winners_and_losers,
        checker="AbortedReads",
        changes=ALONE | {"jobs": 2},
    ),
    Saboteur(
        name="producer ids handed out once",
        sabotage=_ids_handed_out_twice,
        checker="ChangedDecisions",
        changes={"hijackers": 1, "jobs": 2, "writers": 3, "kill": 1.0},
    ),
)
