"""Run as a program: serve a table target whose steps take a while, until killed. Prints the port.

Arguments: a port; ``stuck`` for steps that never end, which say so.
"""

from __future__ import annotations

import asyncio
import sys
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
    """A step takes 5 ms."""

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        time.sleep(0.005)
        return super().step(blocks)


class StuckTarget(TableTarget):
    """A step never ends."""

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        print("stuck", flush=True)
        threading.Event().wait()
        return super().step(blocks)


def main() -> None:
    """Serve."""
    kind = StuckTarget if sys.argv[2:] == ["stuck"] else SlowTarget
    target = kind(vocabulary_size=24, seed=5, eos_bias=-1e4)
    limits = Limits(max_context=4096, max_streams=8, max_message_bytes=65536, max_draft_tokens=64, max_backlog=64)
    engine = Engine(target, limits=limits, most_waiting=64, wait_seconds=60.0, prefix_tokens=8000)
    engine.start()
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    server = VerifierServer(engine, target, limits=limits, drain_seconds=1.0)
    asyncio.run(server.serve("127.0.0.1", port, ready=lambda bound: print(bound, flush=True)))


if __name__ == "__main__":
    main()
