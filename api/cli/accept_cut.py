"""``oncelog accept-cut``: an operator gives up the end of a log that recovery refuses to cut."""

from __future__ import annotations

import argparse
from pathlib import Path

from oncelog.api.cli.output import CliError, say
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.dump.contents import is_partition_directory
from oncelog.storage.log.side_files import accept_cut as write_accepted_cut


def accept_cut(args: argparse.Namespace) -> int:
    """Record the operator's decision beside the log; the next start of the replica acts on it."""
    directory = Path(args.directory)
    filesystem = RealFileSystem()
    if not is_partition_directory(filesystem, directory):
        raise CliError(
            f"{args.directory!r} is not the directory of a partition",
            "give the directory and the offset that the refusal names",
        )
    try:
        write_accepted_cut(filesystem, directory, args.offset)
    except OSError as error:
        raise CliError(f"cannot write in {directory}: {error}", "mend the disk first") from error
    say(
        f"The next start of this replica cuts its log at offset {args.offset}, if that is where it "
        f"is refused. End its process (`oncelog status` has the number) or start the cluster."
    )
    return 0
