"""Run as a program: serve a table target whose steps take a while, until killed. Prints the port."""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections.abc import Sequence

import numpy as np
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.service.server import VerifierServer
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Block
from draftwire.protocol.messages import Limits
from numpy.typing import NDArray


class SlowTarget(TableTarget):
    """A step takes ``seconds``."""

    seconds = 0.005

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        time.sleep(self.seconds)
        return super().step(blocks)


class StuckTarget(TableTarget):
    """A step never ends, and says so."""

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        print("stuck", flush=True)
        threading.Event().wait()
        return super().step(blocks)


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int, nargs="?", default=0)
    parser.add_argument("--stuck", action="store_true", help="steps never end")
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--waiting", type=int, default=64)
    parsed = parser.parse_args()
    SlowTarget.seconds = parsed.step_ms / 1000
    target = (StuckTarget if parsed.stuck else SlowTarget)(vocabulary_size=24, seed=5, eos_bias=-1e4)
    limits = Limits(max_context=4096, max_streams=8, max_message_bytes=65536, max_draft_tokens=64, max_backlog=64)
    engine = Engine(target, limits=limits, most_waiting=parsed.waiting, wait_seconds=60.0, prefix_tokens=8000)
    engine.start()
    server = VerifierServer(engine, target, limits=limits, drain_seconds=1.0)
    asyncio.run(server.serve("127.0.0.1", parsed.port, ready=lambda bound: print(bound, flush=True)))


if __name__ == "__main__":
    main()
