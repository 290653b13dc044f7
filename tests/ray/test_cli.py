"""The command line against a real cluster, as a user types it; one cluster for the whole file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

import pytest
from deadlines import DEADLINE_S

from oncelog.actors.rpc.listener_directory import LISTENER_FILE, read_named
from oncelog.api.cli import cluster as cli_cluster
from oncelog.api.session import cluster_connection

pytestmark = pytest.mark.ray

FOREIGN_CONTROLLER = """
import sys
import oncelog
cluster = oncelog.connect(sys.argv[1])
cluster.shutdown()
import ray
class Other:
    def hello(self):
        return "hello"
options = {"name": "controller", "namespace": "oncelog", "lifetime": "detached"}
other = ray.remote(num_cpus=0)(Other).options(**options).remote()
print(ray.get(other.hello.remote()), flush=True)
sys.stdin.read()
ray.kill(other)
"""

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@dataclass
class Done:
    """How one command ended."""

    status: int
    out: str
    err: str


@dataclass
class CommandLine:
    """``oncelog`` in a shell where nothing is set, with its data directory."""

    data_dir: str
    environment: dict[str, str] = field(default_factory=dict)

    def run(
        self, *arguments: str, data_dir: str | None = None, lines: str = "", program: str = ""
    ) -> Done:
        """Run one command on the data directory; by a ``program`` in place of the usual one."""
        place = ["--data-dir", data_dir or self.data_dir]
        python = ["-c", program] if program else ["-m", "oncelog.api.cli.main"]
        done = subprocess.run(
            [sys.executable, *python, *arguments, *place],
            input=lines,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
            env=self.environment,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one command, to be watched while it works; it waits for lines."""
        return subprocess.Popen(
            [sys.executable, "-m", "oncelog.api.cli.main", *arguments, "--data-dir", self.data_dir],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )

    def word(self) -> cluster_connection.Discovery:
        """Where the cluster runs."""
        word = cluster_connection.read_discovery(cli_cluster.Path(self.data_dir))
        assert word is not None
        return word


@pytest.fixture(scope="module")
def oncelog(tmp_path_factory):
    """A cluster that ``oncelog start`` has started, and the commands to use it."""
    root = tmp_path_factory.mktemp("cli")
    unset = {"RAY_ADDRESS", "ONCELOG_DEBUG"}
    environment = {name: text for name, text in os.environ.items() if name not in unset}
    shell = CommandLine(str(root / "data"), environment)
    started = shell.run("start", "--num-cpus", "2")
    assert (started.status, started.err) == (0, "")
    process_id = shell.word().process_id
    yield shell
    if cli_cluster.is_head(process_id):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGTERM)
        if not cli_cluster.wait_until_gone(process_id, 30_000):
            os.kill(process_id, signal.SIGKILL)


def test_a_started_cluster_serves_with_every_actor(oncelog):
    done = oncelog.run("status", "--json")
    assert (done.status, done.err) == (0, "")
    seen = json.loads(done.out)
    assert seen["serving"] is True
    assert seen["data_dirs"] == [oncelog.data_dir]
    assert seen["address"] == oncelog.word().address
    processes = {
        actor["name"].partition(" in ")[0]: actor["process_id"] for actor in seen["actors"]
    }
    assert processes.keys() == {
        "controller",
        "group:0@1",
        "group:1@1",
        "transaction:0@1",
        "transaction:1@1",
    }
    # The controller is alone; how many of the others share depends on the machine.
    assert 2 <= len(set(processes.values())) <= 5


def test_a_second_start_finds_the_first(oncelog):
    done = oncelog.run("start")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"runs already, process {oncelog.word().process_id}\n")


def test_lines_go_in_as_one_transaction_and_come_out_once_per_group(oncelog):
    created = oncelog.run("topics", "create", "lines", "--partitions", "2")
    assert (created.status, created.err) == (0, "")
    arguments = ("--transactional-id", "loader", "--key-separator", ":")
    produced = oncelog.run("produce", "lines", *arguments, lines="a:1\nb:2\nc:3\n")
    assert (produced.status, produced.err) == (0, "")
    assert produced.out.startswith("3 records to lines, in one transaction\n")
    group = ("consume", "lines", "--group", "readers", "--from-beginning")
    first = oncelog.run(*group, "--json", "--max-records", "3", "--timeout-ms", "30000")
    assert (first.status, first.err) == (0, "")
    records = [json.loads(line) for line in first.out.splitlines()]
    assert sorted((record["key"], record["value"]) for record in records) == [
        ("a", "1"),
        ("b", "2"),
        ("c", "3"),
    ]
    again = oncelog.run(*group, "--timeout-ms", "500")
    assert again == Done(0, "", "")


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_consume_that_a_signal_ends_has_committed_and_left_its_group(oncelog, number, status):
    oncelog.run("topics", "create", "signals", "--if-not-exists")
    oncelog.run("produce", "signals", lines="x\n")
    group = f"ended-by-{number}"
    arguments = ("signals", "--group", group, "--from-beginning")
    program = oncelog.start("consume", *arguments)
    assert program.stdout.readline() == b"x\n"
    program.send_signal(number)
    _, err = program.communicate(timeout=DEADLINE_S)
    assert (program.returncode, err) == (status, b"")
    seen = json.loads(oncelog.run("groups", "describe", group, "--json").out)
    assert (seen["state"], seen["members"]) == ("Empty", [])
    # Whatever it had time to print is behind the position.
    again = oncelog.run("consume", *arguments, "--timeout-ms", "500")
    assert again == Done(0, "", "")


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_produce_that_a_signal_ends_tells_what_it_has_sent(oncelog, number, status):
    oncelog.run("topics", "create", "sent", "--if-not-exists")
    reader = oncelog.start("consume", "sent", "--group", f"of-{number}", "--from-beginning")
    program = oncelog.start("produce", "sent")
    program.stdin.write(f"{number}\n".encode())
    program.stdin.flush()
    while reader.stdout.readline() != f"{number}\n".encode():
        pass
    program.send_signal(number)
    out, err = program.communicate(timeout=DEADLINE_S)
    assert program.returncode == status
    assert err in {b"oncelog: interrupted\n", b"oncelog: terminated\n"}
    assert out.startswith(b"1 record to sent\n")
    reader.send_signal(number)
    assert reader.communicate(timeout=DEADLINE_S)[1] == b""


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "list"),
        ("topics", "describe", "signals", "--json"),
        ("status",),
        ("groups", "list"),
        ("consume", "signals"),
        ("consume", "signals", "--from-beginning", "--json"),
    ],
)
def test_output_that_nobody_reads_is_no_error_message(oncelog, arguments):
    program = oncelog.start(*arguments)
    program.stdout.close()
    program.stdin.close()
    assert program.stderr.read() == b""
    program.stderr.close()
    assert program.wait(timeout=DEADLINE_S) == 141


def test_what_is_consumed_as_json_is_produced_again(oncelog, tmp_path):
    """With markers of transactions, which have offsets too, where reading ends."""
    for name in ("copied", "copies"):
        assert oncelog.run("topics", "create", name, "--partitions", "2").status == 0
    (tmp_path / "picture").write_bytes(b"\xff\n\x00")
    place = ("--partition", "1", "--header", "from=a", "--header", "to=b=c")
    sent = [
        oncelog.run(
            "produce", "copied", *place, "--key", "k", "--compression", "zstd", lines="ü\n"
        ),
        oncelog.run("produce", "copied", "--whole-file", str(tmp_path / "picture")),
        oncelog.run("produce", "copied", "--null-value", "--transactional-id", "t", lines="\n"),
    ]
    assert [(done.status, done.err) for done in sent] == [(0, "")] * 3
    read = ("--from-beginning", "--exit-at-end")
    lines = oncelog.run("consume", "copied", "-o", "json", *read).out
    (tmp_path / "lines").write_text(lines)
    again = oncelog.run("produce", "copies", "--format", "jsonl", str(tmp_path / "lines"))
    assert (again.status, again.err) == (0, "")

    def records(name, text):
        found = [json.loads(line) for line in text.splitlines()]
        assert {record.pop("topic") for record in found} == {name}
        return sorted(
            ([*record.values()] for record in found if record.pop("offset") >= 0), key=str
        )

    expected = records("copied", lines)
    assert {json.dumps(record[2:], ensure_ascii=False) for record in expected} == {
        '["k", "ü", [["from", "a"], ["to", "b=c"]]]',
        '[null, {"base64": "/woA"}, []]',
        "[null, null, []]",
    }
    both = oncelog.run("consume", "copies", "copied", "-o", "json", *read, "--count", "6").out
    copies = [line for line in both.splitlines() if json.loads(line)["topic"] == "copies"]
    assert records("copies", "\n".join(copies)) == expected
    last = ("consume", "copied", "--partition", "1", "--offset", "0", "--exit-at-end")
    done = oncelog.run(*last, "--count", "1", "--format", "%p %o %k=%s %h\\n")
    assert done == Done(0, "1 0 k=ü from=a,to=b=c\n", "")


def test_top_shows_what_status_and_groups_show(oncelog):
    oncelog.run("produce", "copied", lines="x\n")
    done = oncelog.run("top", "--once", "--interval-ms", "100", "--rows", "50")
    assert (done.status, done.err) == (0, "")
    assert ": serving\n" in done.out
    assert "\ncopied " in done.out
    assert "\nreaders " in done.out


def test_names_of_the_cluster_are_completed(oncelog):
    """However long the machine takes; a shell waits for a second."""
    oncelog.run("topics", "create", "completed")
    code = (
        "from oncelog.api.cli import arguments, main as cli\n"
        f"arguments.COMPLETION_TIMEOUT_S = {DEADLINE_S}\n"
        "cli.main()\n"
    )
    words = f"oncelog consume --data-dir {oncelog.data_dir} compl"
    typed = {"_ONCELOG_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "4"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**oncelog.environment, **typed},
    )
    assert (done.stdout, done.stderr) == ("plain,completed\n", "")


def test_an_unknown_topic_is_one_line(oncelog):
    done = oncelog.run("produce", "nowhere", lines="x\n")
    assert done == Done(
        1,
        "",
        "oncelog: there is no topic 'nowhere' — create it with `oncelog topics create nowhere`\n",
    )


def test_a_start_with_another_directory_on_the_same_ray_is_one_line(oncelog, tmp_path):
    address = oncelog.word().address
    done = oncelog.run("start", "--address", address, data_dir=str(tmp_path))
    assert (done.status, done.out) == (1, "")
    assert done.err.count("\n") == 1
    assert oncelog.data_dir in done.err
    assert " — use the same directory" in done.err


# --- without Ray ------------------------------------------------------------------------------

WITHOUT_RAY = """
import sys
sys.modules["ray"] = None
from oncelog.api.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""A command in whose process Ray cannot be imported."""


def test_commands_ask_a_running_cluster_without_ray(oncelog, tmp_path):
    created = oncelog.run("topics", "create", "direct", program=WITHOUT_RAY)
    assert created == Done(0, "created direct, partitions 0 to 0\n", "")
    sent = oncelog.run(
        "produce", "direct", "--transactional-id", "d", lines="x\n", program=WITHOUT_RAY
    )
    assert (sent.status, sent.err) == (0, "")
    read = ("consume", "direct", "--group", "g", "--from-beginning", "--max-records", "1")
    assert oncelog.run(*read, program=WITHOUT_RAY) == Done(0, "x\n", "")
    for listing, shown in (
        (("topics", "list"), "direct"),
        (("groups", "list"), "g"),
        (("transactions", "list"), "d"),
        (("status",), "serving"),
    ):
        done = oncelog.run(*listing, program=WITHOUT_RAY)
        assert (done.status, done.err) == (0, "")
        assert shown in done.out

    password = tmp_path / "password"
    password.write_text("of alice alone")
    alice = ("--user", "alice", "--password-file", str(password))
    made = oncelog.run("users", "add", "alice", "--new-password-file", str(password))
    assert (made.status, made.err) == (0, "")
    assert oncelog.run("topics", "list", *alice, program=WITHOUT_RAY).status == 0
    password.write_text("a guess")
    refused = oncelog.run("topics", "list", *alice, program=WITHOUT_RAY)
    assert (refused.status, refused.out) == (1, "")
    assert "no such user with that password" in refused.err
    assert refused.err.count("\n") == 1


def test_a_stale_listener_is_passed_over_for_ray_and_a_new_life_is_named_anew(oncelog, tmp_path):
    here = cli_cluster.Path(oncelog.data_dir)
    named = read_named(here)
    assert named is not None
    for name in (cluster_connection.DISCOVERY_FILE, LISTENER_FILE):
        shutil.copy(here / name, tmp_path / name)
    topics = oncelog.run("topics", "list")
    stale = str(tmp_path)
    assert oncelog.run("topics", "list", data_dir=stale, program=WITHOUT_RAY) == topics

    other = dataclasses.replace(named, cluster_id="0" * 32)
    (tmp_path / LISTENER_FILE).write_bytes(other.to_bytes())
    assert oncelog.run("topics", "list", data_dir=stale, program=WITHOUT_RAY).status == 1
    assert oncelog.run("topics", "list", data_dir=stale) == topics

    # The copy names the life that ends here; the directory soon names the next one.
    shutil.copy(here / LISTENER_FILE, tmp_path / LISTENER_FILE)
    os.kill(named.process.process_id, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE_S
    while read_named(here) == named and time.monotonic() < deadline:
        assert oncelog.run("topics", "list", data_dir=stale) == topics
    assert oncelog.run("topics", "list", program=WITHOUT_RAY) == topics


def test_an_actor_name_that_another_program_has_is_one_line(oncelog):
    """The log of the cluster is stopped for it, then started again on the Ray that goes on."""
    word = oncelog.word()
    foreign = subprocess.Popen(
        [sys.executable, "-c", FOREIGN_CONTROLLER, word.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=oncelog.environment,
    )
    assert foreign.stdout.readline() == "hello\n"
    refused = [oncelog.run(command, "--address", word.address) for command in ("start", "status")]
    foreign.communicate()
    assert [done.status for done in refused] == [1, 3]
    for done in refused:
        assert done.out == ""
        assert done.err == (
            "oncelog: the actor 'controller' in Ray namespace 'oncelog' is not oncelog's (it has "
            "no method 'metadata') — stop it, or use another Ray cluster\n"
        )
    done = oncelog.run("start", "--address", word.address)
    assert (done.status, done.err) == (0, "")
    cluster_connection.write_discovery(cli_cluster.Path(oncelog.data_dir), word)


def test_stop_leaves_the_data_and_nothing_that_runs(oncelog):
    word = oncelog.word()
    done = oncelog.run("stop")
    assert done == Done(0, "stopped\n", "")
    assert cli_cluster.wait_until_gone(word.process_id, 0)
    assert (cli_cluster.Path(oncelog.data_dir) / "lines-0").is_dir()
    gone = oncelog.run("status")
    assert (gone.status, gone.out) == (3, "")
    assert gone.err.startswith("oncelog: no cluster runs on the data directory")
