"""Run as a program: serve a table target behind the door that the options describe. Prints the port.

Options: those of the door, and ``--host``. After its start it prints whether its environment still holds keys.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os

from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.service.door import add_door_options, build_door
from draftwire.cloud_verifier.service.keys import KEYS_VARIABLE
from draftwire.cloud_verifier.service.server import VerifierServer
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.protocol.messages import Limits


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    add_door_options(parser)
    parsed = parser.parse_args()
    logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(message)s")
    door = build_door(parsed)
    target = TableTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    limits = Limits(max_context=4096, max_streams=8, max_message_bytes=65536, max_draft_tokens=64, max_backlog=64)
    engine = Engine(target, limits=limits, observer=door.guardrails.observer, speculation=door.guardrails.decide)
    engine.start()
    server = VerifierServer(engine, target, limits=limits, doorkeeper=door.doorkeeper)

    def ready(port: int) -> None:
        print(port, KEYS_VARIABLE in os.environ, flush=True)

    asyncio.run(server.serve(parsed.host, 0, ready=ready, tls=door.tls, reload=door.on_hangup))


if __name__ == "__main__":
    main()
