"""How often a worker's process has died over the same input, kept where the next one finds it.

A function may end its process: a crash in native code, ``os.abort``, too much memory. Ray starts
the worker again, which meets the same input. So each process, before it applies the function to a
partition for the first time, commits the group's position once more, unmoved, with a metadata
string that counts the attempts of this job. The next commit of output replaces it. It is a
transaction like those: a late copy of a plain commit would take the group back to that position.

Costs one commit per process and assignment, nothing per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from msgspec import structs

from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.storage.model import TopicPartition

_WORD: Final = "attempt"


class Positions(Protocol):
    """The part of a consumer used here."""

    def committed_with_metadata(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """The group's committed position; waits for open transactions."""
        ...


class ProcessDeaths:
    """The attempts of one worker of the job ``job_id``, in one process."""

    def __init__(self, job_id: str, deaths_max: int) -> None:
        self._job_id = job_id
        self._deaths_max = deaths_max
        self._noted: set[TopicPartition] = set()

    def note(
        self,
        consumer: Positions,
        first_offsets: Mapping[TopicPartition, int],
        commit: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], None],
    ) -> str:
        """Note an attempt at each partition; why there must not be another, or "".

        ``first_offsets`` are those of the input, ``commit`` commits positions durably. Raises what
        both raise; then the attempt counts as not made.
        """
        marks: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, first_offset in first_offsets.items():
            if partition in self._noted:
                continue
            found = consumer.committed_with_metadata(partition)
            deaths = 0 if found is None else self._deaths(found.metadata)
            offset = first_offset if found is None else found.offset
            if deaths >= self._deaths_max:
                return (
                    f"{deaths} processes in a row died while the function worked on {partition} "
                    f"from offset {offset} on"
                )
            position = found or OffsetAndMetadata(offset=first_offset)
            metadata = f"{self._job_id} {_WORD} {deaths + 1}"
            marks[partition] = structs.replace(position, metadata=metadata)
        if marks:
            commit(marks)
            self._noted.update(marks)
        return ""

    def _deaths(self, metadata: str) -> int:
        words = metadata.split(" ")
        if len(words) == 3 and words[:2] == [self._job_id, _WORD] and words[2].isdecimal():
            return int(words[2])
        return 0
