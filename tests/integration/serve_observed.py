"""Run as a program: serve a table target with all that operators see, until SIGTERM. Prints the port.

Arguments: those of ``draftwire-verifier`` for logs, metrics and traces; ``--file-bytes N`` lets no file grow beyond N,
``--step-seconds S`` makes steps take as long as a model's.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Sequence

import numpy as np
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.operations.logs import logging_as_asked
from draftwire.cloud_verifier.operations.operations import build_operations
from draftwire.cloud_verifier.operations.options import add_log_options, add_operations_options
from draftwire.cloud_verifier.service.server import VerifierServer
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Block
from draftwire.protocol.messages import Limits
from numpy.typing import NDArray

LIMITS = Limits(max_context=4096, max_streams=8, max_message_bytes=65536, max_draft_tokens=64, max_backlog=64)


class SlowTarget(TableTarget):
    """A step takes a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__(vocabulary_size=24, seed=5, eos_bias=-1e4)
        self._seconds = seconds

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        time.sleep(self._seconds)
        return super().step(blocks)


def main() -> int:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--file-bytes", type=int)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    add_log_options(parser)
    add_operations_options(parser)
    parsed = parser.parse_args()
    if parsed.file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (parsed.file_bytes, resource.RLIM_INFINITY))
    target = SlowTarget(parsed.step_seconds)
    with logging_as_asked(parsed) as log:
        operations = build_operations(parsed, target.info, log=log)
        engine = Engine(target, limits=LIMITS, observer=operations.observer)
        engine.start()
        operations.watch(engine)
        server = VerifierServer(engine, target, limits=LIMITS, routes=operations.routes)
        try:
            asyncio.run(server.serve("127.0.0.1", 0, ready=lambda port: print(port, flush=True)))
        finally:
            engine.stop()
            operations.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
