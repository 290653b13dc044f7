"""One client process of a campaign: ``python -m faults.clients --kind KIND --name NAME ...``."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
from typing import Final

from faults.client import Client
from faults.kafka_door import KafkaMember, KafkaReader, KafkaSender, KafkaTransactor
from faults.plain_clients import Reader, Sender
from faults.transactors import Copier, Hijacker, Transactor

KINDS: Final[dict[str, type[Client]]] = {
    "transactor": Transactor,
    "hijacker": Hijacker,
    "copier": Copier,
    "sender": Sender,
    "reader": Reader,
    "kafka-transactor": KafkaTransactor,
    "kafka-sender": KafkaSender,
    "kafka-member": KafkaMember,
    "kafka-reader": KafkaReader,
}


def main() -> int:
    """Be the client that the arguments describe, until the campaign ends."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--kind", choices=sorted(KINDS), required=True)
    for name in ("name", "address", "history", "seed", "until", "notices"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--partitions", type=int, required=True, help="of the topic written to")
    parser.add_argument("--copies", type=int, required=True, help="partitions of the copies")
    parser.add_argument("--bootstrap", default="", help="where clients of Kafka connect to")
    parser.add_argument("--victims", default="", help="names of clients whose id is taken over")
    parser.add_argument("--isolation", default="read_committed")
    parser.add_argument("--static", action="store_true", help="a static member of its group")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.WARNING)
    faulthandler.register(signal.SIGUSR1)
    KINDS[arguments.kind](arguments).run()
    return 0


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stderr.flush()
    # Ray's own farewell may wait for a process that the nemesis has just stopped.
    os._exit(code)
