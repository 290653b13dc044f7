"""``./run hosts``: `ray up` with the project's ``cluster.yaml``, on hosts that this machine plays.

    ./run hosts [--keep DIR] [STEP ...]

Each host is a set of namespaces with an address, an sshd and a disk of its own. Programs write
transactions over the partitions of all hosts, by `oncelog.connect()` and by `ray job submit`, while
a cable is pulled, hosts are killed and come back, are slow, have a full disk, are drained and
upgraded, one joins, and the cluster goes down and up. One topic has one copy of each partition:
what is on a host that is away waits for it. Another has three: who writes to it goes on, and how
long it waited is measured. After each step everything committed is read and compared with what the
programs know, and all copies are in sync and equal. With STEPs only those are done, once the
cluster is up.

Exit status 0 if all held, 1 if not, 77 if this machine lacks something: a line says what.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from deadlines import wait_for
from hosts_cluster import HostsCluster, ledger
from network_hosts import Host, Network, missing
from steady_writer import NOBODY, SteadyWriter

STATUS_SKIPPED: Final = 77
SINGLE: Final = "numbers"
"""One copy of each partition."""

COPIED: Final = "copied"
"""As many copies as topics have without being told: three."""

MORE: Final = "more"
"""Like ``COPIED``, created when there are four brokers."""

COPIES: Final = 3
PARTITIONS: Final = 6
PARTITIONS_OF_MORE: Final = 8
AWAY_PAUSE_S: Final = 10.0
"""Nobody who writes to copies waits longer because a host is away, slow or full."""

DRAIN_PAUSE_S: Final = 1.0
REMOVED_S: Final = 1.0
"""No commit of a user later than this after the command has ended that removes him."""

USER: Final = "alice"
PASSWORD: Final = "for this trial only"
CLOCK_SHIFT_S: Final = 3_600
FIRST_NEW_ADDRESS: Final = 101
DELAY_MS: Final = 200
BURSTS: Final = 20
SMALL_DISK_BYTES: Final = 48 << 20

# The log's processes of a host are stopped for most of each second.
STOP_IN_BURSTS: Final = """
processes=$(pgrep -f '^ray::[A-Za-z]*Process')
for _ in $(seq "$1"); do
  kill -STOP $processes; sleep 0.8
  kill -CONT $processes; sleep 0.2
done
"""


class Trial:
    """One cluster, and the steps it goes through, in order."""

    def __init__(self, network: Network, names: list[str]) -> None:
        jobs = self.job_writes
        has_jobs = not names or jobs.__name__ in names
        self.cluster = HostsCluster(network, workers=2, has_dashboard=has_jobs)
        self.head = self.cluster.head
        self.steps: list[Callable[[], str]] = [
            self.comes_up,
            self.programs_write,
            jobs,
            self.users_are_told_apart,
            self.cable_is_pulled,
            self.worker_is_killed,
            self.worker_is_slow,
            self.host_joins,
            self.disk_is_full,
            self.disk_is_lost,
            self.worker_is_drained,
            self.workers_are_upgraded,
            self.head_is_killed,
            self.clock_is_wrong,
            self.wrong_disks_come,
            self.node_of_head_ends,
            self.goes_down_and_up,
            self.all_are_killed_and_move,
            self.head_is_lost,
        ]

    def comes_up(self) -> str:
        cluster = self.cluster
        cluster.up()
        cluster.oncelog("topics", "list")  # It serves when `ray up` returns.
        cluster.wait_until_all_serve()
        for topic, options in ((SINGLE, ("--replication-factor", "1")), (COPIED, ())):
            cluster.oncelog("topics", "create", topic, "--partitions", str(PARTITIONS), *options)
        places = {host.name: cluster.partitions_on(host, SINGLE) for host in cluster.hosts()}
        assert sorted(itertools.chain(*places.values())) == list(range(PARTITIONS)), places
        assert all(places.values()), places
        led = {one["leader"] for one in cluster.partitions(COPIED)}
        assert len(led) == COPIES, f"only brokers {led} lead"
        return f"brokers {[cluster.number_of(host) for host in cluster.hosts()]}"

    def programs_write(self) -> str:
        for host, topic in itertools.product(self.cluster.hosts(), (SINGLE, COPIED)):
            name, count = f"on-{host.name}", 20
            host.run(*self.cluster.writer(host, name, topic, range(PARTITIONS), count))
        return self._checked()

    def job_writes(self) -> str:
        writer = self.cluster.writer(self.head, "job", SINGLE, range(PARTITIONS), 20)
        submit = ("ray", "job", "submit", "--address=http://127.0.0.1:8265", "--", *writer)
        assert "succeeded" in self.head.run(*submit)
        return self._checked()

    def users_are_told_apart(self) -> str:
        """From here on rules count. A user writes to all hosts, until he is removed."""
        cluster, at = self.cluster, self.cluster.workers[0]
        for host in cluster.hosts():
            (host.home / "password").write_text(f"{PASSWORD}\n")
        file = str(cluster.head.home / "password")
        cluster.oncelog("acls", "on")
        cluster.oncelog("users", "add", USER, "--new-password-file", file)
        names = (f"--topic={COPIED}", f"--transactional-id={USER}-", "--prefix")
        cluster.oncelog("acls", "add", f"--allow=User:{USER}", "--producer", *names)
        his = {"ONCELOG_USER": USER, "ONCELOG_PASSWORD_FILE": str(at.home / "password")}
        first = self._steady(f"{USER}-1", at, his)
        other = cluster.writer(at, f"{USER}-2", SINGLE, range(PARTITIONS), 1)
        refused = at.run(*other, **his)
        assert f"there is no topic '{SINGLE}'" in refused, refused  # He may not even see it.
        said = self._went_on(first)
        second = self._steady(f"{USER}-3", at, his)
        cluster.oncelog("users", "remove", USER)
        removed = time.monotonic()
        second.ended()
        late_s = max(0.0, second.commits()[-1] - removed)
        assert late_s < REMOVED_S, f"committed {late_s:.1f} s after the removal"
        assert USER not in cluster.oncelog("users", "list")
        return f"{said}; no commit later than {late_s:.1f} s after the removal"

    def cable_is_pulled(self) -> str:
        cluster, away = self.cluster, self.cluster.workers[0]
        through = self._begin_writing("through-cable")
        steady = self._steady("steady-cable")
        away.pull_cable()
        cluster.wait_until_gone(away)
        self._write_beside(away, "beside-cable")
        steady.wait_for_more()
        away.plug_cable()
        return f"{self._back(through)}; {self._went_on(steady)}"

    def worker_is_killed(self) -> str:
        cluster, away = self.cluster, self.cluster.workers[1]
        through = self._begin_writing("through-kill")
        steady = self._steady("steady-kill")
        away.kill()
        cluster.wait_until_gone(away)
        self._write_beside(away, "beside-kill")
        steady.wait_for_more()
        away.start()
        return f"{self._back(through)}; {self._went_on(steady)}"

    def worker_is_slow(self) -> str:
        slow = self.cluster.workers[0]
        steady = self._steady("steady-slow")
        if slow.delay(DELAY_MS):
            how = f"all it sends {DELAY_MS} ms late"
            steady.wait_for_more(5 * BURSTS)
            slow.delay(0)
        else:
            how = "its processes stopped for 0.8 s of each second"
            slow.run("sh", "-c", STOP_IN_BURSTS, "sh", str(BURSTS))
        self.cluster.wait_until_all_serve()
        return f"{how}; {self._went_on(steady)}"

    def host_joins(self) -> str:
        cluster = self.cluster
        before = self._processes_of_log()
        new = cluster.add_worker(disk_bytes=SMALL_DISK_BYTES)
        cluster.up()
        cluster.wait_until_all_serve()
        assert before <= self._processes_of_log(), "a process of the log was started anew"
        cluster.oncelog("topics", "create", MORE, "--partitions", str(PARTITIONS_OF_MORE))
        assert cluster.partitions_on(new, MORE)
        new.run(*cluster.writer(new, "newcomer", MORE, range(PARTITIONS_OF_MORE), 10))
        return self._checked()

    def disk_is_full(self) -> str:
        """Others lead what the full host led, and what it follows goes on without it."""
        cluster, full = self.cluster, self.cluster.workers[2]
        number = cluster.number_of(full)
        others = [one for one in cluster.partitions(MORE) if one["leader"] != number]
        followed = [one["partition"] for one in others if number in one["isr"]]
        assert followed, others
        steady = SteadyWriter(
            cluster, self.head, "steady-full", MORE, [one["partition"] for one in others]
        )
        full.run("sh", "-c", "cat /dev/zero >/srv/filler", statuses=(1,))
        wait_for(
            lambda: all(
                number not in one["isr"]
                for one in cluster.partitions(MORE)
                if one["partition"] in followed
            ),
            f"the full disk of {full.name} to be out of sync",
        )
        steady.wait_for_more()
        waiting = self.head.begin(
            *cluster.writer(self.head, "onto-full", MORE, range(PARTITIONS_OF_MORE), 20)
        )
        wait_for(ledger(self.head, MORE, "onto-full").exists, "onto-full to begin")
        steady.wait_for_more()
        full.run("rm", "/srv/filler")
        assert waiting.wait(timeout=240) == 0, "who wrote to the full host failed"
        said = self._went_on(steady)
        cluster.wait_until_all_serve()
        return said

    def disk_is_lost(self) -> str:
        """A new machine at the old address has an empty disk; it is the same broker."""
        cluster, lost = self.cluster, self.cluster.workers[2]
        number = cluster.number_of(lost)
        steady = SteadyWriter(cluster, self.head, "steady-lost", MORE, range(PARTITIONS_OF_MORE))
        lost.kill()
        cluster.wait_until_gone(lost)
        shutil.rmtree(lost.disk / "oncelog")
        steady.wait_for_more()
        lost.start()
        cluster.wait_until_all_serve()
        assert cluster.number_of(lost) == number
        return self._went_on(steady)

    def worker_is_drained(self) -> str:
        cluster, drained = self.cluster, self.cluster.workers[1]
        number = str(cluster.number_of(drained))
        steady = self._steady("steady-drain")
        cluster.oncelog("brokers", "drain", number)
        wait_for(
            lambda: cluster.brokers()[drained.name].endswith("; drained"),
            f"{drained.name} to be drained",
        )
        for topic in self._topics():
            wait_for(
                lambda topic=topic: not cluster.partitions_on(drained, topic),
                f"{topic} to leave {drained.name}",
            )
        said = self._went_on(steady, pause_s=DRAIN_PAUSE_S)
        cluster.oncelog("brokers", "resume", number)
        return said

    def workers_are_upgraded(self) -> str:
        """The head has the new version from `ray up`; each worker gets it, and starts again."""
        cluster = self.cluster
        before = self._processes_of_log()
        version = cluster.next_version()
        cluster.up()
        assert cluster.version_on(self.head) == version
        assert before <= self._processes_of_log(), "a process of the log was started anew"
        steady = self._steady("steady-upgrade")
        for host in cluster.workers:
            cluster.install_on(host)
            host.run("ray", "stop")
            cluster.wait_until_gone(host)
            cluster.wait_until_all_serve()
            assert cluster.version_on(host) == version
            for topic in self._copied():
                cluster.wait_until_in_sync(topic, COPIES)
        return f"{version}; {self._went_on(steady)}"

    def head_is_killed(self) -> str:
        """Its Ray remembers all; nodes that have not ended meanwhile go on, with their programs."""
        cluster = self.cluster
        steady = SteadyWriter(
            cluster, cluster.workers[0], "steady-restart", COPIED, range(PARTITIONS)
        )
        self.head.kill()
        since = time.monotonic()
        self.head.start()
        cluster.up()
        up_s = time.monotonic() - since
        back = self._back(self._begin_writing("after-head"))
        went_on = "programs on workers had ended, with their nodes"
        if steady.is_running():
            went_on = self._went_on(steady, pause_s=math.inf)
        return f"`ray up` is done {up_s:.0f} s after the power failed; {back}; {went_on}"

    def node_of_head_ends(self) -> str:
        """`ray up` cannot start it beside what is left of the head, and says so."""
        self.head.run("sh", "-c", "kill -KILL $(pgrep -x raylet)")
        assert "but not its head: stop Ray here, then ray up" in self._why_no_up()
        self.head.run("ray", "stop")
        self.cluster.end_commands()
        self.cluster.up()
        return self._back(self._begin_writing("after-node"))

    def goes_down_and_up(self) -> str:
        cluster = self.cluster
        cluster.oncelog("stop")
        cluster.down()
        left = [host for host in cluster.hosts() if host is not self.head]
        assert not ray_processes(self.head), ray_processes(self.head)
        for host in left:
            wait_for(lambda host=host: not ray_processes(host), f"the end of {host.name}")
        cluster.up()
        return self._back(self._begin_writing("after-down"))

    def clock_is_wrong(self) -> str:
        """A broker's clock is an hour slow: nobody notices."""
        wrong = self.cluster.workers[0]
        steady = self._steady("steady-clock")
        for shift_s in (-CLOCK_SHIFT_S, 0):
            wrong.kill()
            wrong.set_clock(shift_s)
            wrong.start()
            self.cluster.wait_until_gone(wrong)
            self.cluster.wait_until_all_serve()
            now_s = float(wrong.run(sys.executable, "-c", "import time; print(time.time())"))
            assert abs(now_s - time.time() - shift_s) < CLOCK_SHIFT_S / 2, "its clock is right"
            for topic in self._copied():
                self.cluster.wait_until_in_sync(topic, COPIES)
            steady.wait_for_more()
        return f"{CLOCK_SHIFT_S} s slow; {self._went_on(steady)}"

    def wrong_disks_come(self) -> str:
        """The disk of another cluster, and a second host of one number, take no part."""
        cluster, wrong = self.cluster, self.cluster.workers[1]
        steady = self._steady("steady-wrong")
        identity = wrong.disk / "oncelog" / "log" / "meta.properties"
        right, own = identity.read_text(), cluster.status()["cluster_id"]
        wrong.kill()
        identity.write_text(right.replace(own, own[::-1]))
        wrong.start()
        self._wait_for_state(wrong, f"is that of cluster {own[::-1]}")
        wrong.kill()
        identity.write_text(right)
        wrong.start()
        cluster.wait_until_gone(wrong)
        cluster.wait_until_all_serve()
        steady.wait_for_more()
        double = cluster.add_worker()
        (double.disk / "oncelog" / "log").mkdir(parents=True)
        number = cluster.number_of(wrong)
        (double.disk / "oncelog" / "log" / "broker.id").write_text(f"{number}\n")
        cluster.up()
        self._wait_for_state(wrong, f"2 living nodes are labelled broker={number}")
        cluster.workers.remove(double)
        double.kill()
        cluster.wait_until_all_serve()
        return f"both are refused; {self._went_on(steady)}"

    def all_are_killed_and_move(self) -> str:
        """Nothing is left but the disks, and every host has another address."""
        cluster = self.cluster
        for host in cluster.hosts():
            host.kill()
        for place, host in enumerate(cluster.hosts()):
            host.move(FIRST_NEW_ADDRESS + place)
            host.start()
        cluster.up()
        return self._back(self._begin_writing("after-move"))

    def head_is_lost(self) -> str:
        """The machine of the head is gone, disk and all; another host becomes it."""
        cluster, lost = self.cluster, self.head
        cluster.cluster_id = cluster.status()["cluster_id"]
        number, other = cluster.number_of(lost), cluster.workers[0]
        steady = SteadyWriter(cluster, other, "steady-head", COPIED, range(PARTITIONS))
        lost.kill()
        died = time.monotonic()
        shutil.rmtree(lost.disk / "oncelog")
        for host in cluster.workers:
            wait_for(lambda host=host: not ray_processes(host), f"the end of {host.name}")
        ended_s = time.monotonic() - died
        steady.ended()
        went_on_s = max(0.0, steady.commits()[-1] - died)
        self.head = cluster.replace_head()
        since = time.monotonic()
        cluster.up()
        up_s = time.monotonic() - since
        # It had the only copies of some partitions; they count on its disk until they are deleted.
        self._wait_for_state(self.head, SINGLE, number=number)
        cluster.oncelog("topics", "delete", SINGLE)
        cluster.wait_until_all_serve()
        all_s = time.monotonic() - since
        assert cluster.number_of(self.head) == number
        again = SteadyWriter(cluster, other, "steady-again", COPIED, range(PARTITIONS))
        said = self._went_on(again, pause_s=math.inf)
        return (
            f"commits for {went_on_s:.1f} s more, workers end in {ended_s:.0f} s, `ray up` takes "
            f"{up_s:.0f} s, all serve after {all_s:.0f} s; {said}"
        )

    # --- parts of steps -----------------------------------------------------------------------

    def _wait_for_state(self, host: Host, text: str, *, number: int = 0) -> None:
        """Until the status says that of a host's broker."""
        wanted = number or self.cluster.number_of(host)
        wait_for(
            lambda: any(
                one["broker_id"] == wanted and text in one["state"]
                for one in self.cluster.status().get("brokers", [])
            ),
            f"{text!r} as the state of broker {wanted}",
        )

    def _why_no_up(self) -> str:
        """What `ray up` says that fails."""
        try:
            self.cluster.up()
        except OSError as error:
            return str(error)
        raise AssertionError("`ray up` did not fail")

    def _begin_writing(self, name: str) -> subprocess.Popen[bytes]:
        """A program that writes to all partitions, once it has committed something."""
        begun = self.head.begin(
            *self.cluster.writer(self.head, name, SINGLE, range(PARTITIONS), 200)
        )
        path = ledger(self.head, SINGLE, name)
        wait_for(lambda: path.exists() and "committed" in path.read_text(), f"{name} to commit")
        return begun

    def _steady(
        self, name: str, at: Host | None = None, variables: Mapping[str, str] = NOBODY
    ) -> SteadyWriter:
        cluster, chosen = self.cluster, at or self.head
        return SteadyWriter(cluster, chosen, name, COPIED, range(PARTITIONS), variables)

    def _went_on(self, steady: SteadyWriter, *, pause_s: float = AWAY_PAUSE_S) -> str:
        """It did so without an error and a long pause, and all is there, on all copies."""
        written = steady.stop()
        return f"{self._checked()}; {written.demand(pause_s=pause_s)}"

    def _write_beside(self, away: Host, name: str) -> None:
        """What lies on other hosts than ``away`` is written to from one of them."""
        cluster = self.cluster
        (other,) = (host for host in cluster.workers[:2] if host is not away)
        here = set(range(PARTITIONS)) - set(cluster.partitions_on(away, SINGLE))
        other.run(*cluster.writer(other, name, SINGLE, here, 10))
        text = ledger(other, SINGLE, name).read_text()
        assert text.count(" committed ") == 8, text

    def _back(self, through: subprocess.Popen[bytes]) -> str:
        """All serves again, and the program that wrote meanwhile has come to its end."""
        since = time.monotonic()
        self.cluster.wait_until_all_serve()
        served_s = time.monotonic() - since
        assert through.wait(timeout=240) == 0, "the program that wrote meanwhile failed"
        return f"all serve {served_s:.0f} s later"

    def _checked(self) -> str:
        """All that is committed is there, for a reader on either host, and on every copy."""
        cluster = self.cluster
        for topic in self._copied():
            cluster.wait_until_in_sync(topic, COPIES)
            cluster.wait_until_equal(topic)
        counts = {cluster.check(host, *self._topics()) for host in cluster.hosts()[:2]}
        assert len(counts) == 1, counts
        return f"{counts.pop()} records, none lost or doubled"

    def _copied(self) -> list[str]:
        return [topic for topic in self._topics() if topic != SINGLE]

    def _topics(self) -> list[str]:
        return [
            topic["name"] for topic in json.loads(self.cluster.oncelog("topics", "list", "--json"))
        ]

    def _processes_of_log(self) -> set[tuple[str, int]]:
        actors = self.cluster.status()["actors"]
        return {(actor["name"], actor["process_id"]) for actor in actors}


def ray_processes(host: Host) -> list[str]:
    """What runs of Ray and the log on a host, but for agents that still look for a lost head."""
    marks = ("raylet_socket_name", "gcs_server", "log_monitor.py", "Process")
    return [line for line in host.processes() if any(mark in line for mark in marks)]


def chosen(steps: list[Callable[[], str]], names: list[str]) -> list[Callable[[], str]]:
    """The first step and those with a name; all if there are no names."""
    known = {step.__name__ for step in steps}
    assert known.issuperset(names), f"steps are {sorted(known)}"
    return [step for step in steps if not names or step is steps[0] or step.__name__ in names]


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run hosts", allow_abbrev=False)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the hosts' files there")
    parser.add_argument("steps", nargs="*", metavar="STEP", help="only these, such as disk_is_full")
    args = parser.parse_args()
    reason = missing()
    if reason:
        print(f"skipped: {reason}")
        return STATUS_SKIPPED
    if args.keep is not None:
        if args.keep.exists():
            parser.error(f"--keep {args.keep}: there is something already")
        args.keep.mkdir(parents=True)
    root = args.keep.absolute() if args.keep else Path(tempfile.mkdtemp(prefix="oncelog-hosts-"))
    began = time.monotonic()
    try:
        with Network(root) as network:
            for step in chosen(Trial(network, args.steps).steps, args.steps):
                since = time.monotonic()
                said = step()
                name = step.__name__.replace("_", " ")
                print(f"{time.monotonic() - since:5.0f} s  {name}: {said}", flush=True)
    except Exception:
        traceback.print_exc()
        print(f"FAILED after {time.monotonic() - began:.0f} s; the hosts' files are in {root}")
        return 1
    if args.keep is None:
        shutil.rmtree(root)
    print(f"HOSTS: all held, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
