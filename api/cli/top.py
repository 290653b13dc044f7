"""``oncelog top``: what the cluster does now, looked at again and again."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import click

from oncelog.actors.protocol.messages.group import GroupDescription
from oncelog.actors.protocol.messages.transaction import TransactionDescription
from oncelog.api.cli.arguments import Arguments, Command, WholeNumber, flag, option
from oncelog.api.cli.connect import cluster_options, connect
from oncelog.api.cli.groups import bounds
from oncelog.api.cli.status import ClusterStatus, broker_state, findings_table, look
from oncelog.api.cli.terminal import (
    CliError,
    EndedBySignal,
    describe_error,
    duration_text,
    is_terminal,
    say,
    size_text,
    table,
    visible,
)
from oncelog.api.session.committed_offsets import lag_of
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import TopicPartition

if TYPE_CHECKING:
    from oncelog.api.admin.admin import Admin

ROWS_MAX: Final = 1_000
"""The most rows that a table of the view may have."""

GROUPS_MAX: Final = 100
"""The offsets of this many groups are looked up each time, in the order of their names."""

CALL_TIMEOUT_MS: Final = 5_000
"""How long a call may take until the last view is shown again."""

LAGS_MAX_S: Final = 5.0
"""After that time the lag of further groups is not looked up until the next look."""

QUIT_KEYS: Final = frozenset(b"qQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The cluster at one moment; ``at_s`` is monotonic."""

    at_s: float
    status: ClusterStatus
    transactions: tuple[TransactionDescription, ...] = ()
    groups: tuple[tuple[GroupDescription, int | None], ...] = ()
    """Groups with their lag, a number of offsets; ``None`` if it is unknown."""

    places: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Of each partition the end of its leader's log and its size in bytes."""


@click.command(cls=Command)
@option(
    "--interval-ms",
    type=WholeNumber(100),
    default=2_000,
    metavar="T",
    help="look again every T ms (default: 2000)",
)
@option(
    "--rows",
    type=WholeNumber(1, ROWS_MAX),
    default=10,
    help="at most N partitions, transactions and groups each (default: 10)",
)
@flag("--once", "print it once, after one interval; as without a terminal")
@cluster_options
def top(args: Arguments) -> int:
    """Show brokers, busy partitions, open transactions, groups and problems; q ends it."""
    interval_s = args.interval_ms / 1_000
    with connect(args) as cluster:
        admin = cluster.admin(CALL_TIMEOUT_MS)
        last = look_around(args, admin)
        if args.once or not (is_terminal(sys.stdout) and is_terminal(sys.stdin)):
            threading.Event().wait(interval_s)
            say(view(last, look_around(args, admin), args.rows))
            return 0
        try:
            with _screen() as show, _keys() as is_quit:
                shown = view(None, last, args.rows)
                show(shown)
                while not is_quit(interval_s):
                    try:
                        now = look_around(args, admin)
                    except (OncelogError, CliError) as error:
                        # A failover takes a while, and is what people want to watch.
                        show(f"{visible(describe_error(error))}\n\n{shown}")
                        continue
                    shown = view(last, now, args.rows)
                    show(shown)
                    last = now
        except EndedBySignal as ended:
            return ended.status
    return 0


def look_around(args: Arguments, admin: Admin) -> Look:
    """Ask for all that is shown."""
    status = look(args)
    leading = (actor for actor in status.shown_actors if actor.reply.is_leader)
    transactions: tuple[TransactionDescription, ...] = ()
    groups: tuple[tuple[GroupDescription, int | None], ...] = ()
    if status.has_controller:
        found = admin.list_transactions()
        transactions = tuple(one for one in found if one.transaction_start_ms >= 0)
        described = admin.list_groups()[:GROUPS_MAX]
        deadline_s = time.monotonic() + LAGS_MAX_S
        groups = tuple((group, _lag(admin, group, deadline_s)) for group in described)
    return Look(
        at_s=time.monotonic(),
        status=status,
        transactions=transactions,
        groups=groups,
        places={
            actor.topic_partition: (actor.reply.log_end_offset, actor.reply.size_bytes)
            for actor in leading
        },
    )


def _lag(admin: Admin, group: GroupDescription, deadline_s: float) -> int | None:
    """How many offsets a group has not committed, of those that are stable; ``None`` if unknown."""
    if time.monotonic() >= deadline_s:
        return None
    try:
        committed = admin.list_group_offsets(group.group_id, require_stable=False)
        places = {tp: position.offset for tp, position in committed.items()}
        starts, ends = bounds(admin, places)
    except OncelogError:
        return None  # Its row says so, and the problems of the cluster stand below.
    return sum(
        lag_of(places[tp], start_offset=starts[tp], end_offset=end) for tp, end in ends.items()
    )


# --- the view ---------------------------------------------------------------------------------


def view(last: Look | None, now: Look, rows: int) -> str:
    """What is shown, with at most ``rows`` of each kind; rates need the look before."""
    status = now.status
    parts = [
        f"cluster {status.metadata.cluster_id or 'unknown'}: {status.state}",
        table(
            ("broker", "state", "replicas"),
            [
                (one.broker_id, broker_state(status, one), status.replica_count(one.broker_id))
                for one in status.metadata.brokers[:rows]
            ],
        ),
        table(("topic", "partition", "records/s", "bytes/s", "size"), _busiest(last, now)[:rows]),
    ]
    oldest = sorted(now.transactions, key=lambda one: one.transaction_start_ms)
    if oldest:
        now_ms = int(time.time() * 1_000)
        shown = [
            (
                one.transactional_id,
                one.state,
                duration_text(max(now_ms - one.transaction_start_ms, 0)),
                len(one.partitions),
            )
            for one in oldest[:rows]
        ]
        parts.append(table(("open transaction", "state", "open for", "partitions"), shown))
    if now.groups:
        # Groups whose lag is unknown come last.
        behind = sorted(
            now.groups,
            key=lambda pair: (1 if pair[1] is None else -pair[1], pair[0].group_id),
        )[:rows]
        lags = [(one.group_id, one.state, len(one.members), lag) for one, lag in behind]
        parts.append(table(("group", "state", "members", "lag"), lags))
    if status.findings:
        parts.append(findings_table(status))
    return "\n\n".join(parts)


def _busiest(last: Look | None, now: Look) -> list[tuple[object, ...]]:
    """The partitions by their rates, the busiest first."""
    passed_s = 0.0 if last is None else now.at_s - last.at_s
    found = []
    for tp, (end, size_bytes) in now.places.items():
        records_per_s = bytes_per_s = 0
        if last is not None and tp in last.places and passed_s > 0:
            end_before, size_before = last.places[tp]
            records_per_s = round(max(end - end_before, 0) / passed_s)
            # Old segments that are deleted meanwhile make it smaller.
            bytes_per_s = round(max(size_bytes - size_before, 0) / passed_s)
        found.append((-records_per_s, -bytes_per_s, tp, size_bytes))
    return [
        (tp.topic, tp.partition, -records, size_text(-speed), size_text(size_bytes))
        for records, speed, tp, size_bytes in sorted(found)
    ]


# --- the terminal -----------------------------------------------------------------------------


@contextlib.contextmanager
def _screen() -> Iterator[Callable[[str], None]]:
    """The whole terminal; what was there comes back. The block is given what shows a text."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        yield lambda text: live.update(Text.from_ansi(text), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Keys arrive at once. The block is given what waits for q, for some seconds."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield lambda wait_s: _has_quit(descriptor, wait_s)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _has_quit(descriptor: int, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while (left := deadline - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left)[0]:
            typed = os.read(descriptor, 64)
            # Nothing to read is the end: the terminal is gone.
            if not typed or QUIT_KEYS & set(typed):
                return True
    return False
