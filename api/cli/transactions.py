"""``oncelog transactions``: inspect transactional ids, abort transactions, delete ids."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any, Final

from oncelog.actors.protocol.messages.partition import ProducerDescription
from oncelog.actors.protocol.messages.transaction import TransactionDescription
from oncelog.actors.protocol.transaction.transaction_state import TransactionState
from oncelog.api.admin.hanging import HangingTransaction, IncompleteSearchError
from oncelog.api.cli.connect import add_cluster_arguments, connect
from oncelog.api.cli.terminal import (
    Commands,
    UsageError,
    add_actions,
    add_command,
    add_json,
    bytes_as_json,
    duration_text,
    report,
    say,
    table,
    whole_number,
)
from oncelog.storage.model import INT64_MAX, TopicPartition

STATES: Final = tuple(
    state.value for state in TransactionState if state is not TransactionState.DEAD
)


# --- arguments --------------------------------------------------------------------------------


def add_commands(commands: Commands) -> None:
    """Add ``oncelog transactions`` and its actions."""
    text = "Show transactional ids, find hanging transactions, abort, complete and delete."
    actions = add_actions(commands, "transactions", text)
    _add_list(actions)
    describe = add_command(actions, "describe", "Show one transactional id.", describe_transaction)
    describe.add_argument("transactional_id", metavar="ID")
    producers = add_command(
        actions, "describe-producers", "Show the producers of a partition.", describe_producers
    )
    producers.add_argument("topic", metavar="TOPIC")
    producers.add_argument("--partition", type=whole_number(0), required=True, metavar="N")
    _add_find_hanging(actions)
    _add_abort(actions)
    _add_complete(actions)
    delete = add_command(
        actions,
        "delete",
        "Delete a transactional id and its commit token; for jobs that never run again.",
        delete_transactional_id,
    )
    delete.add_argument("transactional_id", metavar="ID")
    for name, action in actions.choices.items():
        add_cluster_arguments(action)
        if name not in {"abort", "complete", "delete"}:
            add_json(action)


def _add_list(actions: Commands) -> None:
    listing = add_command(actions, "list", "List the transactional ids.", list_transactions)
    listing.add_argument(
        "--state",
        action="append",
        default=[],
        choices=STATES,
        metavar="STATE",
        help=f"only those in this state ({', '.join(STATES)}); may be given more than once",
    )
    listing.add_argument(
        "--producer-id",
        action="append",
        default=[],
        type=whole_number(0, INT64_MAX),
        metavar="N",
        help="only the id that has this producer id; may be given more than once",
    )
    listing.add_argument(
        "--running-longer-than-ms",
        type=whole_number(0, INT64_MAX),
        metavar="T",
        help="only transactions that have been open for longer",
    )


def _add_find_hanging(actions: Commands) -> None:
    find = add_command(
        actions,
        "find-hanging",
        "Find transactions that are open on a partition and that no coordinator will end.",
        find_hanging,
    )
    find.add_argument("--broker", type=whole_number(0), metavar="N", help="led by this broker")
    find.add_argument("--topic", metavar="TOPIC", help="of this topic")
    find.add_argument("--partition", type=whole_number(0), metavar="N", help="of this partition")
    find.add_argument(
        "--older-than-ms",
        type=whole_number(0, INT64_MAX),
        metavar="T",
        help="with no record for this long (default: the longest transaction timeout + 5 min)",
    )


def _add_abort(actions: Commands) -> None:
    abort = add_command(
        actions,
        "abort",
        "Abort the open transaction of an id, or a hanging one of a partition.",
        abort_transaction,
    )
    abort.add_argument("transactional_id", metavar="ID", nargs="?", help="a transactional id")
    abort.add_argument("--topic", metavar="TOPIC", help="of a hanging transaction")
    abort.add_argument("--partition", type=whole_number(0), metavar="N")
    abort.add_argument(
        "--start-offset",
        type=whole_number(0, INT64_MAX),
        metavar="O",
        help="where the hanging transaction begins, as find-hanging prints it",
    )


def _add_complete(actions: Commands) -> None:
    complete = add_command(
        actions,
        "complete",
        "Commit or abort the prepared transaction of an id, as the other system has decided.",
        complete_transaction,
    )
    complete.add_argument("transactional_id", metavar="ID")
    verdict = complete.add_mutually_exclusive_group(required=True)
    verdict.add_argument("--commit", action="store_true", help="the other system has committed")
    verdict.add_argument("--abort", action="store_true", help="the other system has not committed")


# --- commands ---------------------------------------------------------------------------------


def list_transactions(args: argparse.Namespace) -> int:
    """Print the transactional ids that pass the filters, one per line."""
    with connect(args) as cluster:
        found = cluster.admin().list_transactions(
            states=args.state,
            producer_ids=args.producer_id,
            running_longer_than_ms=args.running_longer_than_ms,
        )
    if args.json:
        say(json.dumps([as_json(one) for one in found], indent=2))
    elif found:
        headings = ("transactional id", "state", "producer id", "epoch", "open for", "partitions")
        rows = (
            (
                one.transactional_id,
                one.state,
                str(one.producer_id),
                one.producer_epoch,
                _open_for(one),
                len(one.partitions),
            )
            for one in found
        )
        say(table(headings, rows))
    else:
        say("no transactional ids")
    return 0


def describe_transaction(args: argparse.Namespace) -> int:
    """Print what its coordinator knows about one transactional id."""
    with connect(args) as cluster:
        one = cluster.admin().describe_transaction(args.transactional_id)
    if args.json:
        say(json.dumps(as_json(one), indent=2))
        return 0
    token = one.commit_token
    facts = (
        ("id", one.transactional_id),
        ("state", one.state),
        ("producer", f"{one.producer_id}, epoch {one.producer_epoch}"),
        ("timeout", duration_text(one.transaction_timeout_ms)),
        ("open for", _open_for(one) or "not open"),
        ("token", "none" if token is None else json.dumps(bytes_as_json(token))),
    )
    for name, value in facts:
        say(f"{name:<9} {value}")
    if one.prepared is not None:
        ago = duration_text(max(int(time.time() * 1_000) - one.prepared.prepared_ms, 0))
        say(
            f"prepared  {ago} ago, by producer {one.prepared.producer_id}, epoch "
            f"{one.prepared.producer_epoch}"
        )
    if one.members:
        say()
        rows = [
            (
                str(member.producer_id),
                member.producer_epoch,
                member.status,
                _names(member.partitions),
            )
            for member in one.members
        ]
        say(table(("member", "epoch", "status", "partitions"), rows))
    elif one.partitions:
        say()
        say(table(("topic", "partition"), ((tp.topic, tp.partition) for tp in one.partitions)))
    return 0


def describe_producers(args: argparse.Namespace) -> int:
    """Print the producers in a partition leader's state."""
    tp = TopicPartition(args.topic, args.partition)
    with connect(args) as cluster:
        producers = cluster.admin().describe_producers(tp)
    if args.json:
        say(json.dumps([_producer_as_json(one) for one in producers], indent=2))
    elif producers:
        headings = ("producer id", "epoch", "last sequence", "last record", "open since offset")
        rows = (
            (
                str(one.producer_id),
                one.producer_epoch,
                one.last_sequence,
                _utc(one.last_timestamp_ms),
                one.current_txn_first_offset if one.current_txn_first_offset >= 0 else None,
            )
            for one in producers
        )
        say(table(headings, rows))
    else:
        say(f"{tp} has no producers")
    return 0


def find_hanging(args: argparse.Namespace) -> int:
    """Print hanging transactions and how to abort them; status 1 if the search is incomplete."""
    if args.partition is not None and args.topic is None:
        raise UsageError("--partition needs a topic", "give --topic as well")
    incomplete = None
    with connect(args) as cluster:
        try:
            found: Sequence[HangingTransaction] = cluster.admin().find_hanging_transactions(
                broker_id=args.broker,
                topic=args.topic,
                partition=args.partition,
                older_than_ms=args.older_than_ms,
            )
        except IncompleteSearchError as error:
            incomplete, found = error, error.found
    if args.json:
        say(json.dumps([_hanging_as_json(one) for one in found], indent=2))
    elif found:
        headings = (
            *("topic", "partition", "start offset", "producer id", "epoch"),
            *("last record", "transactional id"),
        )
        rows = (
            (
                one.topic_partition.topic,
                one.topic_partition.partition,
                one.start_offset,
                str(one.producer_id),
                one.producer_epoch,
                _utc(one.last_timestamp_ms),
                one.transactional_id,
            )
            for one in found
        )
        say(table(headings, rows))
        say()
        say(
            "abort one with `oncelog transactions abort --topic TOPIC --partition N "
            "--start-offset O`"
        )
    elif incomplete is None:
        say("no hanging transactions")
    return 0 if incomplete is None else report(incomplete)


def abort_transaction(args: argparse.Namespace) -> int:
    """Abort by transactional id, or a hanging transaction by partition and start offset."""
    place = (args.topic, args.partition, args.start_offset)
    has_place = [value is not None for value in place]
    is_by_id = args.transactional_id is not None
    if is_by_id == any(has_place) or (not is_by_id and not all(has_place)):
        raise UsageError(
            "no transaction is given",
            "give an id, or all of --topic, --partition and --start-offset",
        )
    with connect(args) as cluster:
        admin = cluster.admin()
        if is_by_id:
            is_visible = admin.abort_transaction(args.transactional_id)
            rest = "" if is_visible else "; some partitions get their markers later"
            say(f"aborted the transaction of {args.transactional_id}{rest}")
            return 0
        done = admin.abort_hanging_transaction(
            TopicPartition(args.topic, args.partition), start_offset=args.start_offset
        )
    say(
        f"aborted the transaction of producer {done.producer_id}, epoch {done.producer_epoch}, "
        f"on {done.topic_partition} from offset {done.start_offset} on"
    )
    return 0


def complete_transaction(args: argparse.Namespace) -> int:
    """Commit or abort a prepared transaction."""
    with connect(args) as cluster:
        is_visible = cluster.admin().complete_prepared_transaction(
            args.transactional_id, committed=args.commit
        )
    rest = "" if is_visible else "; some partitions get their markers later"
    verb = "committed" if args.commit else "aborted"
    say(f"{verb} the prepared transaction of {args.transactional_id}{rest}")
    return 0


def delete_transactional_id(args: argparse.Namespace) -> int:
    """Delete a transactional id."""
    with connect(args) as cluster:
        cluster.admin().delete_transactional_id(args.transactional_id)
    say(f"deleted {args.transactional_id}")
    return 0


# --- showing ----------------------------------------------------------------------------------


def as_json(one: TransactionDescription) -> dict[str, Any]:
    """A transactional id as JSON."""
    is_open = one.transaction_start_ms >= 0
    return {
        "transactional_id": one.transactional_id,
        "state": one.state,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "transaction_timeout_ms": one.transaction_timeout_ms,
        "transaction_start_ms": one.transaction_start_ms if is_open else None,
        "last_update_ms": one.last_update_ms,
        "commit_token": bytes_as_json(one.commit_token),
        "partitions": [str(tp) for tp in one.partitions],
        "prepared": None
        if one.prepared is None
        else {
            "producer_id": one.prepared.producer_id,
            "producer_epoch": one.prepared.producer_epoch,
            "prepared_ms": one.prepared.prepared_ms,
        },
        "members": [
            {
                "producer_id": member.producer_id,
                "producer_epoch": member.producer_epoch,
                "status": member.status,
                "partitions": [str(tp) for tp in member.partitions],
            }
            for member in one.members
        ],
    }


def _producer_as_json(one: ProducerDescription) -> dict[str, Any]:
    is_open = one.current_txn_first_offset >= 0
    return {
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "last_sequence": one.last_sequence,
        "last_timestamp_ms": one.last_timestamp_ms,
        "coordinator_epoch": one.coordinator_epoch,
        "open_from_offset": one.current_txn_first_offset if is_open else None,
        "open_record_count": one.open_record_count,
    }


def _hanging_as_json(one: HangingTransaction) -> dict[str, Any]:
    return {
        "topic": one.topic_partition.topic,
        "partition": one.topic_partition.partition,
        "start_offset": one.start_offset,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "coordinator_epoch": one.coordinator_epoch,
        "last_timestamp_ms": one.last_timestamp_ms,
        "transactional_id": one.transactional_id,
    }


def _open_for(one: TransactionDescription) -> str | None:
    if one.transaction_start_ms < 0:
        return None
    return duration_text(max(int(time.time() * 1_000) - one.transaction_start_ms, 0))


def _utc(time_ms: int) -> str | None:
    """A time for people, to the second."""
    if time_ms < 0:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_ms / 1_000))


def _names(partitions: tuple[TopicPartition, ...]) -> str:
    return ", ".join(map(str, partitions)) or "none"
