"""Links between nodes of this machine that can be cut: a network namespace for each, and a bridge.

This process must be in a network namespace of its own (``unshare -n``): it is that of Ray's head,
and the nodes are plugged into a bridge there. A cut drops packets silently, as a bad switch does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Collection
from typing import Final

OWN: Final = 100
"""The number of the head; those of the others are below."""

BRIDGE: Final = "bridge"
NOBODY: Final = "02:00:00:00:00:99"
"""A hardware address that no node has."""

HAS_OWN_NETWORK: Final = "FAULTS_HAVE_OWN_NETWORK"


def enter_own_network(*command: str) -> None:
    """Replace this process by ``command`` with a network and mounts of its own, unless it has."""
    if HAS_OWN_NETWORK not in os.environ:
        os.environ[HAS_OWN_NETWORK] = "1"
        sys.stdout.flush()
        os.execvp("unshare", ["unshare", "-n", "-m", *command])


def can_link() -> bool:
    """Whether this machine lets us make such networks."""
    make = "ip link add cable0 type veth peer name cable1 && ip link add bridge type bridge"
    with contextlib.suppress(OSError):
        command = ["unshare", "-n", "-m", "sh", "-c", make]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


class Links:
    """The network of nodes, by number; ``close`` ends what holds it."""

    def __init__(self, others: Collection[int]) -> None:
        self._holders: dict[int, subprocess.Popen[bytes]] = {}
        self._ip(OWN, "link", "set", "lo", "up")
        self._ip(OWN, "link", "add", BRIDGE, "type", "bridge")
        self._ip(OWN, "addr", "add", f"{address_of(OWN)}/24", "dev", BRIDGE)
        self._ip(OWN, "link", "set", BRIDGE, "up")
        # Ray finds its own address by a way to the world outside.
        self._ip(OWN, "route", "add", "default", "dev", BRIDGE)
        for number in others:
            self._plug_in(number)

    def _plug_in(self, number: int) -> None:
        script = "echo there && exec cat"
        holder = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._holders[number] = holder
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"there\n"
        cable = f"cable{number}"
        peer = ("peer", "name", "eth0", "netns", str(holder.pid))
        self._ip(OWN, "link", "add", cable, "type", "veth", *peer)
        self._ip(OWN, "link", "set", cable, "master", BRIDGE, "up")
        self._ip(number, "link", "set", "lo", "up")
        self._ip(number, "addr", "add", f"{address_of(number)}/24", "dev", "eth0")
        self._ip(number, "link", "set", "eth0", "up")
        self._ip(number, "route", "add", "default", "via", address_of(OWN))

    def inside(self, number: int) -> list[str]:
        """What runs a command, which follows, in the network of a node."""
        if number == OWN:
            return []
        return ["nsenter", f"--net=/proc/{self._holders[number].pid}/ns/net"]

    def cut(self, sender: int, receiver: int) -> None:
        """Let nothing pass from one node to another; the other way all goes on."""
        permanent = ("lladdr", NOBODY, "dev", _device(sender), "nud", "permanent")
        self._ip(sender, "neigh", "replace", address_of(receiver), *permanent)

    def join(self, sender: int, receiver: int) -> None:
        """Undo ``cut``."""
        self._ip(sender, "neigh", "del", address_of(receiver), "dev", _device(sender))

    def close(self) -> None:
        """End what holds the networks."""
        for holder in self._holders.values():
            holder.kill()
            holder.wait()

    def _ip(self, number: int, *arguments: str) -> None:
        command = [*self.inside(number), "ip", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"node {number}: {' '.join(command)}: {done.stderr.strip()}")


def address_of(number: int) -> str:
    """The address of a node."""
    return f"10.77.0.{number}"


def _device(number: int) -> str:
    return BRIDGE if number == OWN else "eth0"
