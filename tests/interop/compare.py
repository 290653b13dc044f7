"""Our files under Kafka's own code: its dump tool, its recovery, and files that it wrote.

    ./run interop [--rewrite]

Downloads Kafka's jars with Maven into a cache directory, once. Then: (1) our sample directories go
through ``DumpLogSegments`` in all its modes, and a line that is no plain answer fails the run;
(2) Kafka's recovery reads copies of them as after a crash, and must cut nothing, write the same
indexes byte for byte, and come to the same producers; (3) what it wrote and printed itself is
compared with ``tests/golden/kafka``, which ``--rewrite`` makes anew for review.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

import sample_logs  # noqa: E402
from kafka_jars import KAFKA_VERSION, fetch_jars  # noqa: E402

from oncelog.storage.log.producer_snapshot import decode_snapshot  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "kafka"
TOOL = "org.apache.kafka.tools.DumpLogSegments"
JAVA_TIMEOUT_S = 120
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
DECODERS = {
    "__transaction_state-0": ["--transaction-log-decoder"],
    "__consumer_offsets-0": ["--offsets-decoder"],
    "__cluster_metadata-0": [],
}
PLAIN = re.compile(
    r"Dumping .*|Log starting offset: \d+|\| offset: \d+ .*|offset: \d+ position: \d+"
    r"|timestamp: \d+ offset: \d+|version: 0 producerId: .*|producerId: .*|.* is empty\."
    r"|.* passed sanity check\.|baseOffset: .* isvalid: true|"
)
"""Every line that the tool prints about files it has nothing to say against."""


FIRST_OFFSET = re.compile(
    r"Non-consecutive offsets in .*/(\d{20})\.log\n *-1 is followed by (\d+)\n"
)
"""Since Kafka 4.4 it says so of each segment that does not begin at offset 0, Kafka's own too."""


class InteropError(Exception):
    """Kafka and we do not agree."""


def main() -> int:
    """Run all comparisons; the exit status."""
    parser = argparse.ArgumentParser(prog="./run interop", description=__doc__)
    parser.add_argument("--rewrite", action="store_true", help="make the golden files anew")
    args = parser.parse_args()
    jars = fetch_jars()
    with tempfile.TemporaryDirectory() as work:
        kafka = Kafka(jars, Path(work))
        try:
            ours = compare_ours(kafka)
            compare_golden(kafka, ours, rewrite=args.rewrite)
        except InteropError as error:
            say(f"interop: {error}")
            return 1
    say(f"interop: Kafka {KAFKA_VERSION} and oncelog agree")
    return 0


def say(text: str) -> None:
    """Print one line now."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Kafka:
    """Kafka's classes, each call a process of its own."""

    def __init__(self, jars: Path, work: Path) -> None:
        self.jars = jars
        self.work = work

    def java(self, *words: object) -> list[str]:
        """What a program prints, without the complaint that nobody configured its logging."""
        done = subprocess.run(
            ["java", "-Xmx256m", "-cp", f"{self.jars}/*", *map(str, words)],
            cwd=self.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=JAVA_TIMEOUT_S,
        )
        lines = [line.rstrip() for line in done.stdout.splitlines() if "SLF4J" not in line]
        if done.returncode:
            raise InteropError("\n".join([f"{words[0]} failed", *lines]))
        return lines

    def dump(self, directory: Path, suffix: str, *options: str) -> list[str]:
        """What the dump tool prints of all files with a suffix; it must not complain."""
        files = sorted(directory.glob(f"*{suffix}"))
        if not files:
            return []
        names = ",".join(str(path.relative_to(self.work)) for path in files)
        text = "\n".join([*self.java(TOOL, *options, "--files", names), ""])
        lines = FIRST_OFFSET.sub(_without_first_offset, text).splitlines()
        complaints = [line for line in lines if not PLAIN.fullmatch(line)]
        if complaints:
            raise InteropError("\n".join([f"{TOOL} {' '.join(options)} {names}:", *complaints]))
        return lines

    def dump_all(self, directory: Path) -> list[str]:
        """Everything it prints of a directory, in all modes that apply."""
        # Undecoded values are printed as they are, line ends included.
        values = DECODERS.get(directory.name, ["--print-data-log"])
        lines = self.dump(directory, ".log", "--deep-iteration", *values)
        for suffix in (*INDEX_SUFFIXES, ".snapshot"):
            lines += self.dump(directory, suffix)
        self.dump(directory, ".index", "--verify-index-only")
        for suffix in (".index", ".timeindex"):
            self.dump(directory, suffix, "--index-sanity-check")
        return lines

    def side(self, *words: object) -> list[str]:
        """Run our program of its classes."""
        return self.java(ROOT / "tests" / "interop" / "KafkaSide.java", *words)


def _without_first_offset(found: re.Match[str]) -> str:
    return "" if int(found[1]) == int(found[2]) else found[0]


def compare_ours(kafka: Kafka) -> dict[str, list[str]]:
    """Comparisons 1 and 2; what the tool printed by directory."""
    data_dir = kafka.work / "ours"
    printed = {}
    for write in (
        sample_logs.write_data_log,
        sample_logs.write_transaction_log,
        sample_logs.write_offsets_log,
        sample_logs.write_metadata_log,
    ):
        directory = write(data_dir)
        printed[directory.name] = kafka.dump_all(directory)
        copy = Path(shutil.copytree(directory, kafka.work / "recovered" / directory.name))
        for suffix in INDEX_SUFFIXES:
            for path in copy.glob(f"*{suffix}"):
                path.unlink()
        for line in kafka.side("recover", copy):
            if " cut " in line and not line.endswith(" cut 0"):
                raise InteropError(f"Kafka's recovery: {line}")
        compare_recovered(directory, copy)
        say(f"interop: {directory.name} is accepted")
    return printed


def compare_recovered(directory: Path, copy: Path) -> None:
    """Indexes byte for byte; producers in any order."""
    for suffix in INDEX_SUFFIXES:
        for path in [*directory.glob(f"*{suffix}"), *copy.glob(f"*{suffix}")]:
            pair = [where / path.name for where in (directory, copy)]
            data = [each.read_bytes() if each.exists() else b"" for each in pair]
            if data[0] != data[1]:
                raise InteropError(f"{path.name} of {directory.name} is not what Kafka makes of it")
    for path in copy.glob("*.kafka-snapshot"):
        theirs = decode_snapshot(path.read_bytes())
        ours = decode_snapshot((directory / path.name).with_suffix(".snapshot").read_bytes())
        if {entry.producer_id: entry for entry in ours} != {
            entry.producer_id: entry for entry in theirs
        }:
            raise InteropError(f"{path.stem} of {directory.name}: {ours}, Kafka says {theirs}")


def compare_golden(kafka: Kafka, ours: dict[str, list[str]], *, rewrite: bool) -> None:
    """Comparison 3: what Kafka writes, and what it prints of that and of our internal logs."""
    made = kafka.work / "golden"
    kafka.side("write", made)
    for directory in sorted(made.iterdir()):
        # Named from where the tool ran, so that the text is the same on every machine.
        shutil.copytree(directory, kafka.work / directory.name)
        lines = kafka.dump_all(kafka.work / directory.name)
        (made / f"{directory.name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in ("__transaction_state-0", "__consumer_offsets-0"):
        lines = [line.replace("ours/", "") for line in ours[name]]
        (made / f"ours-{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if rewrite:
        shutil.rmtree(GOLDEN, ignore_errors=True)
        shutil.copytree(made, GOLDEN)
        say(f"interop: {GOLDEN.relative_to(ROOT)} is new; review it")
        return
    for path in sorted(made.rglob("*")):
        known = GOLDEN / path.relative_to(made)
        if path.is_file() and (not known.exists() or known.read_bytes() != path.read_bytes()):
            raise InteropError(f"{known.relative_to(ROOT)} is not what Kafka writes now")


if __name__ == "__main__":
    sys.exit(main())
