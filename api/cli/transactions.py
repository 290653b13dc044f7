"""``oncelog transactions``: inspect transactional ids, abort transactions, delete ids."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Final

import click

from oncelog.actors.protocol.messages.partition import ProducerDescription
from oncelog.actors.protocol.messages.transaction import TransactionDescription
from oncelog.actors.protocol.transaction.transaction_state import TransactionState
from oncelog.api.admin.hanging import HangingTransaction, IncompleteSearchError
from oncelog.api.cli.arguments import (
    Arguments,
    Group,
    WholeNumber,
    argument,
    exclusive,
    flag,
    option,
    output_options,
    repeated,
    topic_argument,
    topic_names,
)
from oncelog.api.cli.connect import cluster_options, connect
from oncelog.api.cli.terminal import (
    UsageError,
    bytes_as_json,
    duration_text,
    fields,
    report,
    say,
    show,
    table,
)
from oncelog.storage.model import INT64_MAX, TopicPartition

STATES: Final = tuple(
    state.value for state in TransactionState if state is not TransactionState.DEAD
)


transactions: Final = Group("transactions")
_id: Final = argument("transactional_id", metavar="ID")


# --- commands ---------------------------------------------------------------------------------


@transactions.command("list")
@repeated(
    "--state",
    "STATE",
    f"only those in this state ({', '.join(STATES)})",
    type=click.Choice(STATES),
)
@repeated(
    "--producer-id", "N", "only the id that has this producer id", type=WholeNumber(0, INT64_MAX)
)
@option(
    "--running-longer-than-ms",
    type=WholeNumber(0, INT64_MAX),
    metavar="T",
    help="only transactions that have been open for longer",
)
@output_options
@cluster_options
def list_transactions(args: Arguments) -> int:
    """List the transactional ids."""
    with connect(args) as cluster:
        found = cluster.admin().list_transactions(
            states=args.state,
            producer_ids=args.producer_id,
            running_longer_than_ms=args.running_longer_than_ms,
        )
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
    show(
        args,
        [as_json(one) for one in found],
        lambda: table(headings, rows) if found else "no transactional ids",
    )
    return 0


@transactions.command("describe")
@_id
@output_options
@cluster_options
def describe_transaction(args: Arguments) -> int:
    """Show one transactional id: what its coordinator knows."""
    with connect(args) as cluster:
        one = cluster.admin().describe_transaction(args.transactional_id)
    show(args, as_json(one), lambda: _as_text(one))
    return 0


def _as_text(one: TransactionDescription) -> str:
    token = one.commit_token
    facts = [
        ("id", one.transactional_id),
        ("state", one.state),
        ("producer", f"{one.producer_id}, epoch {one.producer_epoch}"),
        ("timeout", duration_text(one.transaction_timeout_ms)),
        ("open for", _open_for(one) or "not open"),
        ("token", "none" if token is None else json.dumps(bytes_as_json(token))),
    ]
    if one.told_producer_id >= 0:
        # A Kafka client of version 1 has one pair for all of its transactions.
        told = f"producer {one.told_producer_id}, epoch {one.told_producer_epoch}"
        facts.append(("client knows", told))
    if one.prepared is not None:
        ago = duration_text(max(int(time.time() * 1_000) - one.prepared.prepared_ms, 0))
        by = f"producer {one.prepared.producer_id}, epoch {one.prepared.producer_epoch}"
        facts.append(("prepared", f"{ago} ago, by {by}"))
    parts = [fields(facts)]
    if one.members:
        rows = (
            (
                str(member.producer_id),
                member.producer_epoch,
                member.status,
                _names(member.partitions),
            )
            for member in one.members
        )
        parts.append(table(("member", "epoch", "status", "partitions"), rows))
    elif one.partitions:
        places = ((tp.topic, tp.partition) for tp in one.partitions)
        parts.append(table(("topic", "partition"), places))
    return "\n\n".join(parts)


@transactions.command("describe-producers")
@topic_argument
@option("--partition", type=WholeNumber(0), required=True, help="the partition")
@output_options
@cluster_options
def describe_producers(args: Arguments) -> int:
    """Show the producers of a partition."""
    tp = TopicPartition(args.topic, args.partition)
    with connect(args) as cluster:
        producers = cluster.admin().describe_producers(tp)
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
    show(
        args,
        [_producer_as_json(one) for one in producers],
        lambda: table(headings, rows) if producers else f"{tp} has no producers",
    )
    return 0


@transactions.command("find-hanging")
@option("--broker", type=WholeNumber(0), help="led by this broker")
@option("--topic", metavar="TOPIC", shell_complete=topic_names, help="of this topic")
@option("--partition", type=WholeNumber(0), help="of this partition")
@option(
    "--older-than-ms",
    type=WholeNumber(0, INT64_MAX),
    metavar="T",
    help="with no record for this long (default: the longest transaction timeout + 5 min)",
)
@output_options
@cluster_options
def find_hanging(args: Arguments) -> int:
    """Find transactions that are open on a partition and that no coordinator will end.

    The exit status is 1 if the search is incomplete.
    """
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
    if found or incomplete is None or args.json or args.output != "table":
        show(args, [_hanging_as_json(one) for one in found], lambda: _hanging_as_text(found))
    return 0 if incomplete is None else report(incomplete)


def _hanging_as_text(found: Sequence[HangingTransaction]) -> str:
    if not found:
        return "no hanging transactions"
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
    how = "`oncelog transactions abort --topic TOPIC --partition N --start-offset O`"
    return f"{table(headings, rows)}\n\nabort one with {how}"


@transactions.command("abort")
@argument("transactional_id", "a transactional id", metavar="ID", required=False)
@option("--topic", metavar="TOPIC", shell_complete=topic_names, help="of a hanging transaction")
@option("--partition", type=WholeNumber(0), help="its partition")
@option(
    "--start-offset",
    type=WholeNumber(0, INT64_MAX),
    metavar="O",
    help="where the hanging transaction begins, as find-hanging prints it",
)
@cluster_options
def abort_transaction(args: Arguments) -> int:
    """Abort the open transaction of an id, or a hanging one of a partition."""
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


@transactions.command("complete")
@_id
@flag("--commit", "the other system has committed")
@flag("--abort", "the other system has not committed")
@cluster_options
def complete_transaction(args: Arguments) -> int:
    """Commit or abort the prepared transaction of an id, as the other system has decided."""
    exclusive("--commit", "--abort", required=True)
    with connect(args) as cluster:
        is_visible = cluster.admin().complete_prepared_transaction(
            args.transactional_id, committed=args.commit
        )
    rest = "" if is_visible else "; some partitions get their markers later"
    verb = "committed" if args.commit else "aborted"
    say(f"{verb} the prepared transaction of {args.transactional_id}{rest}")
    return 0


@transactions.command("delete")
@_id
@cluster_options
def delete_transactional_id(args: Arguments) -> int:
    """Delete a transactional id and its commit token; for jobs that never run again."""
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
        "told": None
        if one.told_producer_id < 0
        else {
            "producer_id": one.told_producer_id,
            "producer_epoch": one.told_producer_epoch,
        },
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
