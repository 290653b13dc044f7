"""The leader of one partition, which serves clients and coordinators; a follower serves fetches.

No work is done per record: a leader reads only a batch's 61-byte header. Compiled calls check its
CRC, and that uncompressed records can be decoded.
Only ``topic_rules`` decodes records, if it must.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from msgspec import structs

from oncelog.actors.interfaces import Clock
from oncelog.actors.process.background import wait_until_done
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.partition import (
    NO_BROKER,
    AbortHangingReply,
    AbortHangingRequest,
    ConfigureReply,
    ConfigureRequest,
    DeleteRecordsReply,
    DeleteRecordsRequest,
    DescribeProducersReply,
    DescribeProducersRequest,
    FetchReply,
    FetchRequest,
    ListOffsetsReply,
    ListOffsetsRequest,
    MarkerResult,
    ProduceReply,
    ProduceRequest,
    TxnMarker,
    WriteTxnMarkersReply,
    WriteTxnMarkersRequest,
)
from oncelog.actors.replica.replica import Replica
from oncelog.actors.replica.replica_log import AppendOutcome
from oncelog.actors.replica.topic_rules import check_topic_rules
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError, CorruptRecordError
from oncelog.storage.log.partition import LogSlice
from oncelog.storage.model import (
    DUPLICATE_WINDOW_BATCHES,
    EARLIEST_TIMESTAMP,
    INT64_MAX,
    INTERNAL_TOPICS,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    MESSAGE_LIMIT_BYTES,
    NO_TIMESTAMP,
    AbortedTransaction,
    AppendOrigin,
    IsolationLevel,
    TopicPartition,
)
from oncelog.storage.records.batch import BatchHeader, parse_header, stamp_log_append_time
from oncelog.storage.records.client_batch import check_client_batch

FILE_PART_MIN_BYTES: Final = 65_536
"""So many records and more are left in their file for who reads it; fewer are sooner sent."""

ACKS: Final = (-1, 0, 1)
TO_HIGH_WATERMARK: Final = -1

FETCH_WAIT_MAX_MS: Final = 30_000
"""For how long a fetch waits, whatever it asks for: then it is answered with what there is.

It goes on when its connection is lost, and takes up one of the actor's requests in progress.
"""


class PartitionLeader:
    """Serves produce, fetch, offsets and markers of one replica; while it follows, fetches only.

    ``on_log_start_raised`` is called after records were deleted on request.
    """

    def __init__(
        self,
        *,
        replica: Replica,
        clock: Clock,
        on_log_start_raised: Callable[[], None] = lambda: None,
    ) -> None:
        self.replica = replica
        self._clock = clock
        self._early: defaultdict[int, dict[asyncio.Future[None], None]] = defaultdict(dict)
        """Producer id → waiting batches; dicts, so that they are woken in order of arrival."""
        self._on_log_start_raised = on_log_start_raised

    # --- produce --------------------------------------------------------------------------

    async def produce(self, request: ProduceRequest) -> ProduceReply:
        """Append one batch. With acks -1 it is durable when this answers ``NONE``.

        A retry of a batch that is in the log gets the original offset.
        """
        replica = self.replica
        error = self._check(request.topic_partition, request.leader_epoch)
        if error is ErrorCode.NONE and request.acks not in ACKS:
            return request.failed(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}: give -1, 0 or 1"
            )
        if error is ErrorCode.NONE and request.topic_partition.topic in INTERNAL_TOPICS:
            error = ErrorCode.INVALID_TOPIC_EXCEPTION
        if error is not ErrorCode.NONE:
            return request.failed(error, replica.failure or "")
        header = check_client_batch(
            request.batch, message_max_bytes=replica.topic.max_message_bytes
        )
        if isinstance(header, ErrorCode):
            return request.failed(header)
        if header.size_bytes > replica.topic.segment_bytes:
            return request.failed(ErrorCode.RECORD_LIST_TOO_LARGE)
        check = check_topic_rules(request.batch, header, replica.topic, self._clock.now_ms())
        if check.error is not ErrorCode.NONE:
            return ProduceReply(
                error=check.error, detail=check.detail, refused_records=check.records
            )
        outcome = await self._append(request, header)
        if outcome.error is not ErrorCode.NONE:
            return request.failed(outcome.error)
        if request.acks == -1:
            error = await replica.committed(outcome.next_offset)
        return ProduceReply(
            error=error,
            base_offset=outcome.base_offset,
            log_append_time_ms=outcome.log_append_time_ms,
            log_start_offset=replica.machine.log_start_offset,
            is_ticket_old=outcome.is_ticket_old,
        )

    async def _append(self, request: ProduceRequest, header: BatchHeader) -> AppendOutcome:
        """Decide and write in one turn; a batch that overtook its predecessors waits for them."""
        replica = self.replica
        deadline_ms = loop_ms() + replica.config.cluster.out_of_order_wait_ms
        stamps_time = replica.topic.message_timestamp_type == "LogAppendTime"
        while True:
            now_ms = self._clock.now_ms()
            error = replica.check_append() if request.acks == -1 else replica.availability()
            if error is not ErrorCode.NONE:
                return AppendOutcome(error=error)
            verdict = replica.machine.decide_append(
                header,
                origin=AppendOrigin.CLIENT,
                transactional_id=request.transactional_id,
                ticket=request.ticket,
                batch=request.batch,
                now_ms=now_ms,
            )
            if verdict.duplicate_base_offset is not None:
                return AppendOutcome(
                    error=ErrorCode.NONE,
                    base_offset=verdict.duplicate_base_offset,
                    next_offset=verdict.duplicate_next_offset,
                    log_append_time_ms=(
                        verdict.duplicate_timestamp_ms if stamps_time else NO_TIMESTAMP
                    ),
                )
            if not verdict.is_early or not await self._predecessor(header, deadline_ms - loop_ms()):
                break
        if verdict.needs_keys:
            replica.events.refresh_keys_soon()
        if verdict.error is not ErrorCode.NONE:
            return AppendOutcome(error=verdict.error)
        batch = request.batch
        if stamps_time:
            batch = stamped = bytearray(batch)
            stamp_log_append_time(stamped, now_ms)
            header = parse_header(batch)
        outcome = replica.write(batch, header, None, now_ms=now_ms)
        if stamps_time:
            outcome = outcome._replace(log_append_time_ms=now_ms)
        if verdict.is_ticket_old:
            outcome = outcome._replace(is_ticket_old=True)
        for waiter in self._early.pop(header.producer_id, ()):
            if not waiter.done():
                waiter.set_result(None)
        return outcome

    async def _predecessor(self, header: BatchHeader, timeout_ms: int) -> bool:
        """Wait for another batch of the producer; false after a timeout or if too many wait."""
        waiting = self._early[header.producer_id]
        if timeout_ms <= 0 or len(waiting) >= DUPLICATE_WINDOW_BATCHES:
            if not waiting:
                del self._early[header.producer_id]
            return False
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting[waiter] = None
        try:
            await wait_until_done(waiter, timeout_ms / 1000)
        finally:
            # Also if the caller is cancelled: its slot must be freed.
            waiting.pop(waiter, None)
            if not waiting and self._early.get(header.producer_id) is waiting:
                del self._early[header.producer_id]
        return True

    # --- fetch ----------------------------------------------------------------------------

    async def fetch(self, request: FetchRequest) -> FetchReply:
        """Return batches from ``fetch_offset`` on, once there are enough or the time is over.

        A leader may name a follower in the consumer's rack instead, and a follower answers those
        that were sent to it, up to the high watermark or last stable offset that it knows.
        """
        replica = self.replica
        deadline_ms = loop_ms() + min(request.max_wait_ms, FETCH_WAIT_MAX_MS)
        while True:
            error = self._check_fetch(request)
            if error is not ErrorCode.NONE:
                return self._bounds(error)
            nearer = replica.preferred_read_replica(request.client_rack, request.fetch_offset)
            if nearer != NO_BROKER:
                return structs.replace(self._bounds(ErrorCode.NONE), preferred_read_replica=nearer)
            remaining_ms = deadline_ms - loop_ms()
            try:
                found = self._read(request)
            except CorruptRecordError as damage:
                replica.damage.record(damage)
                return structs.replace(
                    self._bounds(ErrorCode.CORRUPT_MESSAGE),
                    detail=str(damage),
                    resume_offset=damage.next_offset,
                )
            except CorruptDataError as damage:
                return request.failed(ErrorCode.CORRUPT_MESSAGE, str(damage))
            except OSError as refusal:
                return request.failed(ErrorCode.KAFKA_STORAGE_ERROR, str(refusal))
            if found.size_bytes >= request.min_bytes or remaining_ms <= 0:
                return self._fetched(request, found)
            await replica.progress(remaining_ms)

    def _check_fetch(self, request: FetchRequest) -> ErrorCode:
        """Whether this replica answers: it leads, or the leader has sent the consumer here.

        Nothing is read while a follower cuts its log: log and machine differ meanwhile.
        """
        replica = self.replica
        if not request.from_follower:
            error = self._check(request.topic_partition, request.leader_epoch)
        elif request.topic_partition != replica.topic_partition:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            error = replica.upkeep_error()
            if error is ErrorCode.NONE:
                error = replica.machine.check_reader(request.leader_epoch)
        if error is ErrorCode.NONE and request.topic_id not in ("", replica.leadership.topic_id):
            error = ErrorCode.UNKNOWN_TOPIC_ID
        return (
            error
            if error is not ErrorCode.NONE
            else replica.machine.check_fetch(request.fetch_offset)
        )

    def _read(self, request: FetchRequest) -> LogSlice:
        bound = self.replica.machine.fetch_bound(request.isolation_level)
        if request.fetch_offset >= bound:
            return LogSlice(records=b"", next_offset=request.fetch_offset)
        return self.replica.log.fetch(
            request.fetch_offset,
            max_bytes=min(request.max_bytes, MESSAGE_LIMIT_BYTES),
            upper_offset=bound,
            is_checked=request.is_checked,
            part_min_bytes=(
                FILE_PART_MIN_BYTES
                if request.reads_files_of == self.replica.broker_id
                else INT64_MAX
            ),
        )

    def _fetched(self, request: FetchRequest, found: LogSlice) -> FetchReply:
        counters = self.replica.counters
        counters.fetched_bytes += found.size_bytes
        counters.fetched_records += found.next_offset - request.fetch_offset
        counters.follower_fetches += self.replica.is_following
        aborted: tuple[AbortedTransaction, ...] | None = None
        if request.isolation_level is IsolationLevel.READ_COMMITTED:
            aborted = ()
            if found.size_bytes:
                aborted = self.replica.log.aborted_transactions(
                    request.fetch_offset, found.next_offset
                )
        reply = structs.replace(
            self._bounds(ErrorCode.NONE), aborted_transactions=aborted, records=found.records
        )
        if found.file_part is not None:
            reply = structs.replace(reply, file_part=found.file_part, told_ms=loop_ms())
        return reply

    def _bounds(self, error: ErrorCode) -> FetchReply:
        machine = self.replica.machine
        return FetchReply(
            error=error,
            high_watermark=machine.high_watermark,
            last_stable_offset=machine.last_stable_offset,
            log_start_offset=machine.log_start_offset,
        )

    # --- life-cycle -----------------------------------------------------------------------

    async def delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsReply:
        """Raise the log start, durably, on all in-sync replicas; the files are removed later."""
        replica = self.replica
        error = self._check(request.topic_partition, request.leader_epoch)
        if error is not ErrorCode.NONE:
            return request.failed(error, replica.failure or "")
        if not replica.topic.is_deleted:
            return request.failed(
                ErrorCode.POLICY_VIOLATION,
                f"cleanup_policy={replica.topic.cleanup_policy!r} keeps the last value of each key",
            )
        high_watermark = replica.machine.high_watermark
        offset = high_watermark if request.offset == TO_HIGH_WATERMARK else request.offset
        if not 0 <= offset <= high_watermark:
            return request.failed(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset={request.offset} is beyond the high watermark: give 0 to {high_watermark}",
            )
        error = await replica.raise_log_start(offset)
        if error is not ErrorCode.NONE:
            return request.failed(error, replica.failure or "")
        if replica.replicator is not None and not await replica.replicator.have_log_start(offset):
            # The next leader may not know the new log start.
            return request.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._on_log_start_raised()
        return DeleteRecordsReply(log_start_offset=replica.machine.log_start_offset)

    async def configure(self, request: ConfigureRequest) -> ConfigureReply:
        """Use new settings of the topic from now on, as a leader or as a follower."""
        replica = self.replica
        error = ErrorCode.NONE if replica.is_following else replica.availability()
        is_ours = request.topic_partition == replica.topic_partition
        if error is ErrorCode.NONE and not (
            is_ours and request.topic_id == replica.leadership.topic_id
        ):
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if error is not ErrorCode.NONE:
            return request.failed(error)
        replica.configure(request.settings, request.settings_version)
        return ConfigureReply()

    # --- offsets, markers, producers ------------------------------------------------------

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsReply:
        """Return the offset for a timestamp, or the earliest, latest or max-timestamp one."""
        error = self._check(request.topic_partition, request.leader_epoch)
        if error is not ErrorCode.NONE:
            return request.failed(error)
        machine = self.replica.machine
        bound = machine.fetch_bound(request.isolation_level)
        if request.timestamp_ms == LATEST_TIMESTAMP:
            error = machine.check_latest()
            if error is not ErrorCode.NONE:
                return request.failed(error)
            return ListOffsetsReply(offset=bound, timestamp_ms=NO_TIMESTAMP)
        if request.timestamp_ms == EARLIEST_TIMESTAMP:
            return ListOffsetsReply(offset=machine.log_start_offset, timestamp_ms=NO_TIMESTAMP)
        if request.timestamp_ms < 0 and request.timestamp_ms != MAX_TIMESTAMP:
            return request.failed(
                ErrorCode.INVALID_REQUEST,
                f"timestamp_ms={request.timestamp_ms}: give -3, -2, -1 or a time from 0 on",
            )
        try:
            found = self._find_time(request.timestamp_ms, bound)
        except CorruptDataError as damage:
            return request.failed(ErrorCode.CORRUPT_MESSAGE, str(damage))
        except OSError as refusal:
            return request.failed(ErrorCode.KAFKA_STORAGE_ERROR, str(refusal))
        if found is None:
            # Right after a failover the record may exist and not be readable yet.
            error = machine.check_latest()
            return ListOffsetsReply() if error is ErrorCode.NONE else request.failed(error)
        return ListOffsetsReply(offset=found[0], timestamp_ms=found[1])

    def _find_time(self, timestamp_ms: int, bound: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the record, below ``bound`` (exclusive); reads the log."""
        log = self.replica.log
        if timestamp_ms != MAX_TIMESTAMP:
            return log.offset_for_timestamp(timestamp_ms, bound)
        found = log.max_timestamp()
        return found if found is not None and found[0] < bound else None

    async def write_txn_markers(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersReply:
        """Write markers; a result is ``NONE`` once its marker is committed."""
        now_ms = self._clock.now_ms()
        appended: list[tuple[TxnMarker, TopicPartition, AppendOutcome]] = []
        for marker in request.markers:
            for tp in marker.partitions:
                if tp == self.replica.topic_partition:
                    outcome = self.replica.append_marker(marker, request.coordinator_epoch, now_ms)
                else:
                    outcome = AppendOutcome(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
                appended.append((marker, tp, outcome))
        results = []
        for marker, tp, outcome in appended:
            error = outcome.error
            if error is ErrorCode.NONE:
                error = await self.replica.committed(outcome.next_offset)
            results.append(
                MarkerResult(producer_id=marker.producer_id, topic_partition=tp, error=error)
            )
        return WriteTxnMarkersReply(results=tuple(results))

    async def describe_producers(self, request: DescribeProducersRequest) -> DescribeProducersReply:
        """Describe the producers with state at this leader."""
        error = self._check(request.topic_partition, -1)
        if error is not ErrorCode.NONE:
            return request.failed(error)
        return DescribeProducersReply(
            producers=self.replica.machine.describe_producers(request.producer_ids)
        )

    async def abort_hanging(self, request: AbortHangingRequest) -> AbortHangingReply:
        """Abort the transaction that an operator names, if just that is open."""
        error = self._check(request.topic_partition, -1)
        if error is not ErrorCode.NONE:
            return request.failed(error)
        markers = self.replica.machine.markers_for(request)
        if markers is None:
            return request.failed(ErrorCode.INVALID_TXN_STATE)
        # No wait since the look: nothing else can have been opened.
        (result,) = (await self.write_txn_markers(markers)).results
        return AbortHangingReply(error=result.error)

    def _check(self, topic_partition: TopicPartition, leader_epoch: int) -> ErrorCode:
        if topic_partition != self.replica.topic_partition:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        error = self.replica.availability()
        if error is not ErrorCode.NONE:
            return error
        return self.replica.machine.check_leader(leader_epoch)
