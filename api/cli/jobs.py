"""``oncelog jobs``: the jobs of ``cluster.process``, which outlive the programs that start them."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from oncelog.api.cli.connect import add_cluster_arguments, connect
from oncelog.api.cli.terminal import (
    STATUS_ERROR,
    Commands,
    add_actions,
    add_command,
    add_json,
    say,
    table,
    whole_number,
)

if TYPE_CHECKING:
    from oncelog.api.processing.job import JobStatus, ProcessJob


def add_commands(commands: Commands) -> None:
    """Add ``oncelog jobs`` and its actions."""
    actions = add_actions(commands, "jobs", "List, describe or stop jobs of cluster.process.")
    listing = add_command(actions, "list", "List the jobs.", list_jobs)
    describe = add_command(
        actions,
        "describe",
        "Show what a job does; exit status 1 if a worker of it has failed.",
        describe_job,
    )
    stop = add_command(actions, "stop", "Let a job commit what it has begun, and end it.", stop_job)
    stop.add_argument(
        "--timeout-ms",
        type=whole_number(0),
        default=30_000,
        metavar="T",
        help="when to end workers that have not ended by themselves (default: 30000)",
    )
    for action in (describe, stop):
        action.add_argument("group", metavar="GROUP")
    add_json(listing, describe)
    for action in (listing, describe, stop):
        add_cluster_arguments(action)


def list_jobs(args: argparse.Namespace) -> int:
    """``oncelog jobs list``."""
    with connect(args) as cluster:
        found = [(job, job.status()) for job in cluster.jobs()]
    facts = [_facts(job, status) for job, status in found]
    if args.json:
        say(json.dumps(facts))
        return 0
    names = ("group", "state", "source", "sink", "workers", "lag", "records_in", "restarts")
    if facts:
        say(table([name.upper().replace("_", " ") for name in names], _rows(facts, names)))
    return 0


def describe_job(args: argparse.Namespace) -> int:
    """``oncelog jobs describe``."""
    with connect(args) as cluster:
        job = cluster.job(args.group)
        status = job.status()
    facts = _facts(job, status)
    facts["each_worker"] = [
        {
            "worker": worker.worker_index,
            "state": worker.state.value,
            "process_id": worker.process_id,
            "records_in": worker.records_in,
            "records_out": worker.records_out,
            "commits": worker.commits,
            "aborts": worker.aborts,
            "reason": worker.reason,
        }
        for worker in status.workers
    ]
    if args.json:
        say(json.dumps(facts))
    else:
        workers = facts.pop("each_worker")
        say("\n".join(f"{name:18}{value}" for name, value in facts.items()))
        names = ("worker", "state", "process_id", "records_in", "commits", "aborts", "reason")
        say(table([name.upper().replace("_", " ") for name in names], _rows(workers, names)))
    return STATUS_ERROR if status.failures else 0


def stop_job(args: argparse.Namespace) -> int:
    """``oncelog jobs stop``."""
    with connect(args) as cluster:
        status = cluster.job(args.group).stop(args.timeout_ms)
    say(f"stopped {args.group}: {status.lag} offsets were not processed")
    return 0


def _facts(job: ProcessJob, status: JobStatus) -> dict[str, Any]:
    return {
        "group": job.group_id,
        "state": _state(status),
        "source": job.source,
        "sink": job.sink,
        "workers": len(status.workers),
        "lag": status.lag,
        "records_in": status.records_in,
        "records_out": status.records_out,
        "commits": status.commits,
        "aborts": status.aborts,
        "restarts": status.restarts,
        "function_failures": status.function_failures,
    }


def _state(status: JobStatus) -> str:
    """The state of a job: "failed" if any worker is, else that of its workers."""
    states = {worker.state.value for worker in status.workers}
    return "failed" if status.failures else "/".join(sorted(states))


def _rows(facts: list[dict[str, Any]], names: tuple[str, ...]) -> list[list[str]]:
    return [[str(fact[name]) for name in names] for fact in facts]
