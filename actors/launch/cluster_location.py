"""Find the data of a cluster: which data directory, on which node.

Ray's control store remembers it until Ray ends; the data directory names its cluster permanently.
So a log is started where its data is, in whatever order nodes come back. A cluster is founded only
if neither knows of one: on the node labelled ``broker=1``, or without such labels on the node of
the program that starts the log. If several brokers have the metadata log, it is started on the one
with the newest epoch. The brokers' own actors are started as well, since the controller needs their
votes.
"""

from __future__ import annotations

import functools
import json
import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.experimental import internal_kv

from oncelog.actors.config import own_directory
from oncelog.actors.interfaces import NAMESPACE
from oncelog.actors.pin import BROKER_LABEL, BY_NODE_ID, LOCAL_BROKER_ID, Pin, broker_of, pin_of
from oncelog.actors.protocol.cluster.quorum import VOTERS_MAX, VoterState, majority_of
from oncelog.actors.replica.data_directory import (
    DirectoryIdentity,
    prepare,
    read_identity,
    read_voter_state,
)
from oncelog.actors.replica.log_directories import join_further
from oncelog.storage.disk.file_system import DirectoryLockedError, RealFileSystem
from oncelog.storage.exceptions import ConnectionFailedError, CorruptDataError, InvalidSettingError
from oncelog.storage.model import NO_LEADER_EPOCH

_logger = logging.getLogger(__name__)

INSPECT_TIMEOUT_S: Final = 30.0
"""Deadline for nodes to say what is in their data directory."""

GATHER_ATTEMPTS: Final = 300
GATHER_RETRY_S: Final = 1.0
"""Interval and number of looks for required nodes: workers start after the head."""

LOCK_ATTEMPTS: Final = 100
LOCK_RETRY_S: Final = 0.05

_KEY: Final = b"home"
_SECRET_KEY: Final = b"server secret"
SERVER_SECRET_BYTES: Final = 32

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLocation:
    """Which cluster's log it is, and where: ``data_dir`` on the node of ``pin``."""

    cluster_id: str
    broker_id: int
    data_dir: str
    pin: Pin
    voters: tuple[int, ...] = field(default=(), compare=False)
    """The brokers with copies of its metadata log at the start; empty if only one has it."""

    def __str__(self) -> str:
        return f"cluster {self.cluster_id}, which has its data in {self.data_dir} on {self.pin}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryReport:
    """What a node has in its data directory: an identity, nothing, or why it cannot tell."""

    node: Node
    identity: DirectoryIdentity | None = None
    error: str = ""
    voter: VoterState | None = None
    """The voter file's content; there is one where the metadata log has been copied."""

    @property
    def cluster_id(self) -> str | None:
        """The cluster that the directory belongs to."""
        return None if self.identity is None else self.identity.cluster_id


def read_location() -> ClusterLocation | None:
    """Where the log of this Ray cluster was started last; ``None`` if it never was."""
    data = internal_kv._internal_kv_get(_KEY, namespace=NAMESPACE.encode())
    if data is None:
        return None
    fields = json.loads(data)
    voters = tuple(fields.get("voters", ()))
    return ClusterLocation(**{**fields, "pin": Pin(**fields["pin"]), "voters": voters})


def write_location(location: ClusterLocation) -> None:
    """Remember where the log is, before its first actor is started."""
    data = json.dumps(asdict(location)).encode()
    internal_kv._internal_kv_put(_KEY, data, overwrite=True, namespace=NAMESPACE.encode())


def server_secret(*, is_new: bool) -> bytes:
    """What the servers of this Ray cluster prove to each other that they know.

    ``is_new``: no actor of the log runs, so one may be made. Otherwise it is the one that those
    have; b"" if an earlier build has started them.
    """
    namespace = NAMESPACE.encode()
    if is_new:
        secret = secrets.token_bytes(SERVER_SECRET_BYTES)
        # Of two programs that start the log at once, one puts it.
        internal_kv._internal_kv_put(_SECRET_KEY, secret, overwrite=False, namespace=namespace)
    known: bytes | None = internal_kv._internal_kv_get(_SECRET_KEY, namespace=namespace)
    return known or b""


def is_away(location: ClusterLocation) -> bool:
    """Whether no living node is the one that has the data."""
    return not any(location.pin.is_at(node) for node in ray.nodes())


def is_lost(location: ClusterLocation) -> bool:
    """Whether the log's node is away, and there are too few brokers for one that takes over."""
    living = {broker_of(node) for node in ray.nodes() if node["Alive"]} - {None, location.broker_id}
    return is_away(location) and len(living) < majority_of(VOTERS_MAX)


class VotersAwayError(ConnectionFailedError):
    """Too few copies of the metadata log are up to start the controller."""


def wait_for_location(
    data_dir: str, known: ClusterLocation | None, *, cluster_id: str | None
) -> ClusterLocation:
    """``find_location``, once a majority of the voters is there, if there are several.

    With a ``cluster_id`` also once nodes with its data are up. After ``GATHER_ATTEMPTS`` it raises
    the error of the last attempt.
    """
    transient = VotersAwayError if cluster_id is None else ConnectionFailedError
    for _ in range(GATHER_ATTEMPTS):
        try:
            return _find_with_majority(data_dir, known, cluster_id)
        except transient:
            threading.Event().wait(GATHER_RETRY_S)
    return _find_with_majority(data_dir, known, cluster_id)


def _find_with_majority(
    data_dir: str, known: ClusterLocation | None, cluster_id: str | None
) -> ClusterLocation:
    found = find_location(data_dir, known, is_ours=False, cluster_id=cluster_id)
    needed = majority_of(VOTERS_MAX)
    if found.voters and len(found.voters) < needed:
        raise VotersAwayError(
            f"of cluster {found.cluster_id} only broker {found.voters[0]} is up with a copy of "
            f"the metadata log, and it takes {needed}",
            advice="start Ray on the others' nodes, with their disks, and try again",
        )
    return found


def find_location(
    data_dir: str, known: ClusterLocation | None, *, is_ours: bool, cluster_id: str | None = None
) -> ClusterLocation:
    """The node to start the log on, its directory prepared: for a new cluster if there is none.

    ``known`` is where the log was before; ignored for another ``data_dir``. ``is_ours``: this
    program has started Ray, so its only node sees the files that we see. ``cluster_id``: the
    cluster that must exist; then none is founded. ConnectionFailedError if the data is missing, or
    in several places. InvalidSettingError for a directory that cannot be used.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    mine = ray.get_runtime_context().get_node_id()
    reports = (
        [_report_of(nodes[0], _inspect_here(data_dir))]
        if is_ours
        else inspect_nodes(nodes, data_dir)
    )
    is_known = known is not None and own_directory(known.data_dir) == own_directory(data_dir)
    was_here = known.cluster_id if known is not None and is_known else None
    expected = cluster_id or was_here
    node = choose_node(reports, data_dir, mine=mine, expected=expected)
    voters = voters_among(reports, node)
    if node is None:
        raise ConnectionFailedError(
            f"no node has the data of cluster {expected} in {data_dir} now"
            f"{f' (this is {known})' if known is not None else ''}",
            advice=(
                "start Ray on the nodes that have it, with their disks, and try again; or give "
                "another --data-dir to found a new cluster without that data"
            ),
        )
    broker_id = (broker_of(node) if voters else None) or LOCAL_BROKER_ID
    arguments = (data_dir, secrets.token_hex(16), broker_id)
    prepare_directory = _prepare_here if is_ours else functools.partial(_prepare_there, node)
    identity = prepare_directory(*arguments)
    if isinstance(identity, str):
        raise InvalidSettingError(f"data_dir={data_dir!r} on node {_name(node)}: {identity}")
    return ClusterLocation(
        cluster_id=identity.cluster_id,
        broker_id=identity.broker_id,
        data_dir=data_dir,
        pin=pin_of(node, nodes),
        voters=tuple(voters),
    )


def choose_node(
    reports: Sequence[DirectoryReport], data_dir: str, *, mine: str, expected: str | None
) -> Node | None:
    """The node that has the data of a cluster, or the one to found it on.

    ``expected``: the id of the cluster that must exist; returns ``None`` if no node has it.
    """
    owners = [
        report
        for report in reports
        if report.cluster_id in {expected or report.cluster_id} - {None}
    ]
    if expected is not None and not owners:
        return None
    if len({report.cluster_id for report in owners}) > 1:
        raise ConnectionFailedError(
            f"data_dir={data_dir!r} is that of another cluster on each of {_names(owners)}",
            advice="leave only the right one, or give another directory",
        )
    silent = [report for report in reports if report.error]
    if silent and not owners:
        raise ConnectionFailedError(
            f"node {_name(silent[0].node)} does not tell what is in {data_dir} "
            f"({silent[0].error}), so a cluster may be there",
            advice="try again, or stop that node",
        )
    labelled = [report for report in reports if BROKER_LABEL in report.node["Labels"]]
    places = owners or list(reports)
    voters = [report for report in owners if _is_voter(report)]
    if voters:
        return max(voters, key=_log_recency).node
    if labelled:
        places = _labelled_places(labelled, owners)
    own = [report for report in places if report.node["NodeID"] == mine]
    if own:
        return own[0].node
    if len({report.node["NodeManagerAddress"] for report in places}) > 1:
        raise ConnectionFailedError(
            f"{_names(places)} all have {data_dir}: run this on the one whose disk it is, or label "
            f"that node {BROKER_LABEL}={LOCAL_BROKER_ID}"
        )
    return min((report.node for report in places), key=lambda node: str(node["NodeID"]))


def _is_voter(report: DirectoryReport) -> bool:
    """Whether it has a copy of the metadata log, and the label of the broker whose that is."""
    identity = report.identity
    is_its = identity is not None and broker_of(report.node) == identity.broker_id
    return is_its and report.voter is not None


def _log_recency(report: DirectoryReport) -> tuple[int, int]:
    """Which voter is asked first to lead; whether its log is new enough, the others know."""
    epoch = NO_LEADER_EPOCH if report.voter is None else report.voter.epoch
    return epoch, -(broker_of(report.node) or 0)


def voters_among(reports: Sequence[DirectoryReport], node: Node | None) -> list[int]:
    """The brokers with a copy of the log that is started on ``node``; none if that has none."""
    chosen = [report for report in reports if report.node is node and _is_voter(report)]
    if not chosen:
        return []
    cluster_id = chosen[0].cluster_id
    numbers = (
        broker_of(report.node)
        for report in reports
        if _is_voter(report) and report.cluster_id == cluster_id
    )
    return sorted({number for number in numbers if number is not None})


def _labelled_places(
    labelled: Sequence[DirectoryReport], owners: Sequence[DirectoryReport]
) -> list[DirectoryReport]:
    wanted = str(LOCAL_BROKER_ID)
    brokers = [report for report in labelled if report.node["Labels"][BROKER_LABEL] == wanted]
    if len(brokers) != 1:
        raise ConnectionFailedError(
            f"nodes have labels {BROKER_LABEL}=N, and {len(brokers)} of them {BROKER_LABEL}="
            f"{wanted}: exactly one must, as the controller is on broker {wanted}"
        )
    if owners and brokers[0] not in owners:
        raise ConnectionFailedError(
            f"node {_name(brokers[0].node)} is labelled {BROKER_LABEL}={wanted}, but the data is "
            f"on {_names(owners)}: label that one instead"
        )
    return brokers


def inspect_nodes(nodes: Sequence[Node], data_dir: str) -> list[DirectoryReport]:
    """What each node has in ``data_dir``; all are asked at once."""
    asked = {_remote_on(node, _inspect_here).remote(data_dir): node for node in nodes}
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=INSPECT_TIMEOUT_S)
    reports = []
    for reference, node in asked.items():
        if reference not in answered:
            reports.append(
                DirectoryReport(node=node, error=f"no answer within {INSPECT_TIMEOUT_S:.0f} s")
            )
            continue
        try:
            reports.append(_report_of(node, ray.get(reference)))
        except RayError as error:
            reports.append(DirectoryReport(node=node, error=str(error).strip().splitlines()[0]))
    return reports


DirectoryContents = tuple[DirectoryIdentity | None, VoterState | None]


def _report_of(node: Node, found: DirectoryContents | str) -> DirectoryReport:
    if isinstance(found, str):
        return DirectoryReport(node=node, error=found)
    return DirectoryReport(node=node, identity=found[0], voter=found[1])


def _inspect_here(data_dir: str) -> DirectoryContents | str:
    """The directory's identity and voter file on this node, or why they cannot be read."""
    filesystem, path = RealFileSystem(), own_directory(data_dir)
    try:
        return read_identity(filesystem, path), read_voter_state(filesystem, path)
    except (OSError, CorruptDataError) as error:
        return str(error)


def _prepare_here(data_dir: str, new_cluster_id: str, broker_id: int) -> DirectoryIdentity | str:
    """``prepare`` on this node, or why that failed."""
    for _ in range(LOCK_ATTEMPTS):
        try:
            identity = prepare(
                RealFileSystem(),
                own_directory(data_dir),
                broker_id=broker_id,
                new_cluster_id=new_cluster_id,
            )
            if identity.broker_id == broker_id:
                join_further(RealFileSystem(), data_dir, new_directory_id=_new_directory_id)
        except DirectoryLockedError:
            threading.Event().wait(LOCK_RETRY_S)
        except (OSError, CorruptDataError) as error:
            return str(error)
        else:
            if identity.broker_id != broker_id:
                return (
                    f"it is that of broker {identity.broker_id}: the log starts on the node of "
                    f"broker {broker_id}"
                )
            return identity
    return "another program is about to start a log there: try again"


def _new_directory_id() -> str:
    return secrets.token_hex(16)


def _remote_on(node: Node, work: Callable[..., Any]) -> Any:
    make_remote: Any = ray.remote
    remote = make_remote(num_cpus=0, max_retries=0)(work)
    return remote.options(**Pin(BY_NODE_ID, node["NodeID"]).options())


def _prepare_there(
    node: Node, data_dir: str, new_cluster_id: str, broker_id: int
) -> DirectoryIdentity | str:
    try:
        prepared = _remote_on(node, _prepare_here).remote(data_dir, new_cluster_id, broker_id)
        identity: DirectoryIdentity | str = ray.get(prepared, timeout=INSPECT_TIMEOUT_S)
        return identity
    except RayError as error:
        return str(error).strip().splitlines()[0]


def _name(node: Node) -> str:
    return f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})"


def _names(reports: Sequence[DirectoryReport]) -> str:
    return ", ".join(sorted(f"node {_name(report.node)}" for report in reports))
