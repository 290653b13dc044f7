"""``oncelog broker-id``: which broker a host is, chosen once and kept in its data directory.

The number has to outlast every start of Ray, and no two hosts may have the same. So it is what the
data directory says; only a host without one gets a number, from its own address: that is unlike any
other host's, whatever the order in which hosts come, go and are listed.
"""

from __future__ import annotations

import argparse
import ipaddress
import socket
from pathlib import Path
from typing import Final

from oncelog.actors.pin import LOCAL_BROKER_ID
from oncelog.actors.replica.data_directory import read_identity
from oncelog.api.cli.terminal import CliError, say
from oncelog.storage.disk.file_system import FileSystem, RealFileSystem
from oncelog.storage.exceptions import CorruptDataError

NUMBER_FILE: Final = "broker.id"
"""Of the data directory: the number of a broker that has not joined a cluster yet."""

PRIVATE_NETWORKS: Final = (
    ipaddress.IPv4Network("192.168.0.0/16"),
    ipaddress.IPv4Network("172.16.0.0/12"),
)
"""Hosts of these are numbered from the network's beginning; all others from that of their /8."""

FIRST_NUMBER: Final = LOCAL_BROKER_ID + 1
_ANY_PORT: Final = 9


def broker_id(args: argparse.Namespace) -> int:
    """Print the number of this host's broker."""
    directory = Path(args.directory).expanduser().absolute()
    try:
        number = number_of(RealFileSystem(), directory, args.head)
    except (OSError, CorruptDataError) as error:
        raise CliError(
            f"cannot tell which broker has its data in {directory} ({error})",
            "mend the directory first: another number would be another broker",
        ) from error
    say(str(number))
    return 0


def number_of(filesystem: FileSystem, directory: Path, head: str | None) -> int:
    """The number that ``directory`` has or, durably, gets; the host ``head`` gets 1."""
    kept = _kept(filesystem, directory)
    if kept is None:
        if head is None:
            raise CliError(
                f"{directory} has no broker's number yet", "give --head HOST to have one chosen"
            )
        own, first = addresses(head)
        kept = LOCAL_BROKER_ID if own == first else derived(own, first, directory)
        filesystem.make_directory(directory)
        filesystem.write_atomically(directory / NUMBER_FILE, b"%d\n" % kept)
    return kept


def derived(own: str, first: str, directory: Path) -> int:
    """The number of the host with the address ``own``: unlike that of any other in its network."""
    try:
        address, head = ipaddress.IPv4Address(own), ipaddress.IPv4Address(first)
    except ipaddress.AddressValueError:
        raise _unclear(own, first, directory) from None
    whole = ipaddress.IPv4Network((first, 8), strict=False)
    network = next((private for private in PRIVATE_NETWORKS if head in private), whole)
    if address not in network:
        raise _unclear(own, first, directory)
    return FIRST_NUMBER + int(address) - int(network.network_address)


def addresses(head: str) -> tuple[str, str]:
    """Our address on the way to the host ``head``, and the address of that."""
    try:
        found = socket.getaddrinfo(head, _ANY_PORT, type=socket.SOCK_DGRAM)
        family, _, _, _, target = found[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # Sends nothing: it only chooses the way.
            return str(probe.getsockname()[0]), str(target[0])
    except OSError as error:
        raise CliError(
            f"this host finds no way to the head {head!r} ({error.strerror or error})",
            "check the name, and the network",
        ) from error


def _kept(filesystem: FileSystem, directory: Path) -> int | None:
    identity = read_identity(filesystem, directory)
    if identity is not None:
        return identity.broker_id
    path = directory / NUMBER_FILE
    try:
        text = filesystem.read_whole(path).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    if not text.isdecimal() or int(text) < LOCAL_BROKER_ID:
        raise CliError(
            f"{path} holds {text!r}", f"write a number from {LOCAL_BROKER_ID} on, or remove it"
        )
    return int(text)


def _unclear(own: str, first: str, directory: Path) -> CliError:
    return CliError(
        f"no number follows from the address {own}, as it is in another network than the head's "
        f"({first}) or not of IPv4",
        f"write one that no other host has to {directory / NUMBER_FILE}",
    )
