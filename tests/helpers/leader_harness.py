"""A partition leader on a real directory: its clock the test moves, its thread syncs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from replicas import FLIGHTS, TOPIC_ID, RecordedEvents, replica_of
from virtual_time import ManualClock

from oncelog.actors.config import ClusterConfig
from oncelog.actors.process.background import ThreadBackground
from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.messages.partition import FetchRequest, ProduceReply, ProduceRequest
from oncelog.actors.protocol.tickets import ClusterKeys, issue_plain_ticket, issue_ticket
from oncelog.actors.replica.opening import ExpectedLog
from oncelog.actors.replica.partition_leader import PartitionLeader
from oncelog.actors.replica.replica import Replica
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.model import IsolationLevel
from oncelog.storage.records.batch import parse_header
from oncelog.storage.records.codec import encode_records

KEY = b"key" * 10


class LeaderHarness:
    """One partition leader, and short ways to use it."""

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.further: tuple[Path, ...] = ()
        """The broker's other data directories; with them it needs a ``cluster_id``."""
        self.cluster_id = ""
        self.settings = settings or {}
        self.topic_id = TOPIC_ID
        self.led_topics: set[str] = set()
        self.next_epoch: Callable[[int], int] = lambda last_epoch: last_epoch + 1
        self.clock = ManualClock()
        self.background: Any = ThreadBackground()
        self.filesystem: Any = RealFileSystem()
        self.tp = FLIGHTS
        self.cluster = ClusterConfig(out_of_order_wait_ms=200)
        self.events = RecordedEvents()
        self.leader: PartitionLeader

    @property
    def replica(self) -> Replica:
        return self.leader.replica

    async def log_source(self) -> ExpectedLog:
        return ExpectedLog(topic_id=self.topic_id, is_in_sync=self.topic_id in self.led_topics)

    async def epoch_source(self, last_epoch: int) -> BecomeLeaderReply:
        self.led_topics.add(self.topic_id)
        return BecomeLeaderReply(
            leader_epoch=self.next_epoch(last_epoch),
            topic_id=self.topic_id,
            keys=ClusterKeys(current=KEY),
            settings=tuple(self.settings.items()),
        )

    async def start(self) -> PartitionLeader:
        replica = replica_of(
            self.tp,
            ",".join(map(str, (self.directory, *self.further))),
            self.epoch_source,
            environment={
                "filesystem": self.filesystem,
                "clock": self.clock,
                "background": self.background,
                "events": self.events,
                "log_source": self.log_source,
            },
            cluster=self.cluster,
            cluster_id=self.cluster_id,
        )
        self.leader = PartitionLeader(replica=replica, clock=self.clock)
        await replica.start()
        return self.leader

    def batch(self, *values: bytes, pid: int = -1, epoch: int = -1, seq: int = -1) -> bytes:
        records = [(b"k", value, self.clock.now_ms(), ()) for value in values]
        return bytes(
            encode_records(
                records,
                producer_id=pid,
                producer_epoch=epoch,
                base_sequence=seq,
                is_transactional=False,
            )
        )

    def txn_batch(self, *values: bytes, pid: int, epoch: int, seq: int) -> bytes:
        records = [(b"k", value, self.clock.now_ms(), ()) for value in values]
        return bytes(
            encode_records(
                records,
                producer_id=pid,
                producer_epoch=epoch,
                base_sequence=seq,
                is_transactional=True,
            )
        )

    def ticket(self, *, pid: int, epoch: int) -> bytes:
        return issue_ticket(
            cluster_key=KEY,
            producer_id=pid,
            producer_epoch=epoch,
            transactional_id="t",
            topic_id=TOPIC_ID,
            partition=0,
            issued_ms=self.clock.now_ms(),
            transaction_timeout_ms=60_000,
        )

    def plain_ticket(self, *, pid: int) -> bytes:
        return issue_plain_ticket(cluster_key=KEY, producer_id=pid, issued_ms=0)

    async def produce(self, batch: bytes, **fields: Any) -> ProduceReply:
        """Produce one batch; a plain one as the owner of its producer id, unless told otherwise."""
        header = parse_header(batch)
        if header.is_plain and header.producer_id >= 0:
            fields = {"ticket": self.plain_ticket(pid=header.producer_id), **fields}
        return await self.leader.produce(
            ProduceRequest(topic_partition=self.tp, batch=batch, **fields)
        )

    def fetch_request(self, offset: int = 0, *, is_committed: bool = True, **fields: Any) -> Any:
        level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        return FetchRequest(
            **{
                "topic_partition": self.tp,
                "fetch_offset": offset,
                "isolation_level": level,
                "max_wait_ms": 0,
                **fields,
            }
        )
