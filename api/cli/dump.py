"""``oncelog dump``: what is in the files of a log, and whether they are consistent.

It reads and never writes, needs no cluster and no lock, and may be used on the directory of a
running actor. It takes a data directory, the directory of one partition, or one file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from oncelog.actors.protocol.partition.machine import PartitionMachine
from oncelog.api.cli.dump_records import record_fields
from oncelog.api.cli.output import STATUS_ERROR, CliError, say
from oncelog.api.session.connection import DISCOVERY_FILE
from oncelog.storage.disk.file_system import ReadOnlyFileSystem
from oncelog.storage.dump.checks import Finding
from oncelog.storage.dump.contents import (
    FileKind,
    LogEnd,
    Row,
    batch_row,
    is_partition_directory,
    kind_of,
    leftover_kind_of,
    records_of,
    rows_of,
    scan_log,
)
from oncelog.storage.dump.verify import verify_directory
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import ProducerSnapshotEntry, TopicPartition
from oncelog.storage.records.batch import BatchHeader
from oncelog.storage.records.control import ControlRecord
from oncelog.storage.segments.aborted_index import AbortedIndexEntry
from oncelog.storage.segments.inspection import TailDefect

VERIFY_ATTEMPTS_MAX: Final = 10
"""How often a partition is read again because its segments were replaced during a check."""

_SEGMENT_FILES: Final = frozenset(
    {FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX}
)

TEXT_LENGTH_MAX: Final = 120
"""Characters of one value that are shown to people; programs get all of it."""


def dump(args: argparse.Namespace) -> int:
    """Print the files, or with ``--verify`` what is wrong; 1 if anything is."""
    path = Path(args.path)
    filesystem = ReadOnlyFileSystem()
    if not path.exists():
        raise CliError(f"there is no {str(path)!r}", "give a data directory, a partition or a file")
    printer = _Printer(filesystem, is_json=args.json, is_deep=args.deep)
    try:
        if args.verify:
            return printer.verify(path)
        for file in files_of(filesystem, path):
            printer.dump_file(file)
    except BrokenPipeError:
        raise  # Of the output: files have none.
    except OSError as error:
        raise CliError(
            f"{error.filename or path}: {error.strerror}", "give a path that can be read"
        ) from error
    return STATUS_ERROR if printer.problem_count else 0


def files_of(filesystem: ReadOnlyFileSystem, path: Path) -> Iterator[Path]:
    """The files of the log at or below ``path``, partition by partition, in order of names."""
    if not path.is_dir():
        if not _is_known(path.name):
            raise CliError(
                f"{path.name!r} is no file of a log",
                "give one whose name a partition directory has, or the directory",
            )
        yield path
        return
    found = False
    for directory in [path, *directories_of(filesystem, path)]:
        for name in filesystem.list_directory(directory):
            if _is_known(name) and not (directory / name).is_dir():
                found = True
                yield directory / name
    if not found:
        raise _no_log(path)


def directories_of(filesystem: ReadOnlyFileSystem, path: Path) -> list[Path]:
    """The partition directories below a data directory."""
    return [
        path / name
        for name in filesystem.list_directory(path)
        if (path / name).is_dir() and is_partition_directory(filesystem, path / name)
    ]


def _is_known(name: str) -> bool:
    return name == DISCOVERY_FILE or _kind_of(name) is not None


def _kind_of(name: str) -> FileKind | None:
    return kind_of(name) or leftover_kind_of(name)


def _no_log(path: Path) -> CliError:
    return CliError(f"no log is in {str(path)!r}", "give a data directory or one of a partition")


class _Printer:
    """Writes rows and findings, for people or as one JSON object per line."""

    def __init__(self, filesystem: ReadOnlyFileSystem, *, is_json: bool, is_deep: bool) -> None:
        self._filesystem = filesystem
        self._is_json = is_json
        self._is_deep = is_deep
        self.problem_count = 0

    # Dumping

    def dump_file(self, path: Path) -> None:
        """Print one file; damage in it is printed where it is met."""
        kind = _kind_of(path.name)
        if not self._is_json:
            say(f"{path} ({kind.value if kind else 'cluster'})")
        try:
            if kind is FileKind.LOG:
                self._dump_log(path)
            elif kind is None:
                self._row(path, json.loads(self._filesystem.read_whole(path)))
            else:
                for row in rows_of(self._filesystem, path):
                    self._row(path, row)
        except (CorruptDataError, ValueError) as error:
            self._damage(path, str(error).removeprefix(f"{path} "))
        except FileNotFoundError:
            self._damage(path, "it was removed meanwhile", is_problem=False)

    def _dump_log(self, path: Path) -> None:
        topic = path.absolute().parent.name.rpartition("-")[0]
        for found in scan_log(self._filesystem, path):
            if isinstance(found, LogEnd):
                if found.defect is not TailDefect.NONE:
                    # Whether it is loss depends on the checkpoint: ``--verify`` looks at that.
                    text = f"at byte {found.position}: {found.defect.value}"
                    self._damage(path, f"{text}; {found.unread_bytes} bytes", is_problem=False)
                return
            self._row(path, batch_row(found))
            if not found.is_intact:
                self._damage(path, f"at byte {found.position}: {TailDefect.BAD_CRC.value}")
            elif self._is_deep:
                try:
                    for record in records_of(found):
                        self._row(path, record_fields(topic, record), indent="  ")
                except CorruptDataError as error:
                    self._damage(path, f"at byte {found.position}: {error}")

    def _row(self, path: Path, row: Row, indent: str = "") -> None:
        if self._is_json:
            say(json.dumps({"file": str(path), **row}))
        else:
            say(f"{indent}  " + " ".join(f"{name}={_shown(value)}" for name, value in row.items()))

    def _damage(self, path: Path, text: str, *, is_problem: bool = True) -> None:
        self.problem_count += is_problem
        word = "problem" if is_problem else "note"
        if self._is_json:
            say(json.dumps({"file": str(path), word: text}))
        else:
            say(f"  {word}: {text}")

    # Verifying

    def verify(self, path: Path) -> int:
        """Print every inconsistency; of one file, those that concern it."""
        directory = path if path.is_dir() else path.parent
        if is_partition_directory(self._filesystem, directory):
            directories = [directory]
        else:
            directories = directories_of(self._filesystem, directory)
        if not directories:
            raise _no_log(path)
        for each in directories:
            for finding in self._findings(each):
                if path.is_dir() or finding.path == path:
                    self._finding(finding)
        if not self._is_json:
            count = self.problem_count
            say(f"{path}: {f'{count} problems' if count != 1 else '1 problem'}")
        return STATUS_ERROR if self.problem_count else 0

    def _findings(self, directory: Path) -> Sequence[Finding]:
        """The inconsistencies of one partition.

        Compaction may swap the files of a segment, one by one, while they are read: findings then
        mean nothing, and everything is read again.
        """
        for _ in range(VERIFY_ATTEMPTS_MAX):
            before = self._sealed_files(directory)
            findings = list(
                verify_directory(
                    self._filesystem, directory, MachineReplay(directory), is_deep=self._is_deep
                )
            )
            after = self._sealed_files(directory)
            is_changed = any(after.get(name) != found for name, found in before.items())
            if not is_changed or not any(finding.is_problem for finding in findings):
                return findings
        reason = (
            f"its segments were replaced during each of {VERIFY_ATTEMPTS_MAX} attempts to look at "
            "them: try again when compaction has less to do"
        )
        return [Finding(path=directory, position=0, reason=reason, is_problem=False)]

    def _sealed_files(self, directory: Path) -> dict[str, tuple[int, int]]:
        """The files of all segments but the active one, and which files these are."""
        names = [
            name
            for name in self._filesystem.list_directory(directory)
            if kind_of(name) in _SEGMENT_FILES
        ]
        active = max(names, default="").partition(".")[0]
        found = {}
        for name in names:
            if not name.startswith(active):
                with contextlib.suppress(FileNotFoundError):
                    found[name] = self._filesystem.identity(directory / name)
        return found

    def _finding(self, finding: Finding) -> None:
        self.problem_count += finding.is_problem
        word = "problem" if finding.is_problem else "note"
        if self._is_json:
            place = {"file": str(finding.path), "position": finding.position}
            say(json.dumps({**place, word: finding.reason}))
        else:
            say(f"{word}: {finding.path} at byte {finding.position}: {finding.reason}")


class MachineReplay:
    """The partition's own machine, fed from files: the rules a verification replays by."""

    def __init__(self, directory: Path) -> None:
        topic, _, number = directory.absolute().name.rpartition("-")
        partition = int(number) if number.isdecimal() else 0
        self._machine = PartitionMachine(TopicPartition(topic, partition))

    def begin(self, offset: int, entries: Sequence[ProducerSnapshotEntry]) -> None:
        """Start at ``offset`` with the state before it."""
        self._machine.load(offset, offset, entries)

    def apply(self, header: BatchHeader, control: ControlRecord | None) -> AbortedIndexEntry | None:
        """Follow a batch; the entry of the transaction that it aborts."""
        completed = self._machine.apply(header, control)
        # There are no readers here, so completed transactions need not wait for replication.
        self._machine.advance_high_watermark(self._machine.log_end_offset)
        if completed is None or not completed.is_aborted:
            return None
        return AbortedIndexEntry(
            producer_id=completed.producer_id,
            first_offset=completed.first_offset,
            last_offset=completed.last_offset,
            last_stable_offset=completed.last_stable_offset,
        )

    def snapshot(self) -> list[ProducerSnapshotEntry]:
        """The state after the last batch."""
        return self._machine.snapshot()


def _shown(value: Any) -> str:
    """A value for people: texts in quotes where they would be misread, long ones cut."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and (not text.isprintable() or " " in text or not text):
        text = json.dumps(text, ensure_ascii=False)
    return text if len(text) <= TEXT_LENGTH_MAX else f"{text[:TEXT_LENGTH_MAX]}…"
