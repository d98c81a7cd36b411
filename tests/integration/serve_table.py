"""Run as a program: serve a table target whose steps take a while, until killed. Prints the port."""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections.abc import Sequence

import numpy as np
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.service.health import Health
from draftwire.cloud_verifier.service.server import VerifierServer
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Block
from draftwire.protocol.messages import Limits
from numpy.typing import NDArray

_STALLS_AT = 10


class SlowTarget(TableTarget):
    """A step takes ``seconds``, and the tenth, which says so, ``stall_seconds`` more where there are any."""

    seconds = 0.005
    stall_seconds = 0.0
    _steps = 0

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        self._steps += 1
        if self.stall_seconds and self._steps == _STALLS_AT:
            print("stalled", flush=True)
            time.sleep(self.stall_seconds)
        if self.seconds:
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
    parser.add_argument("--stall", type=float, default=0.0, help="seconds of one step; unready after a third")
    parser.add_argument("--waiting", type=int, default=64)
    parser.add_argument("--context", type=int, default=4096)
    parsed = parser.parse_args()
    SlowTarget.seconds, SlowTarget.stall_seconds = parsed.step_ms / 1000, parsed.stall
    kind = StuckTarget if parsed.stuck else SlowTarget
    target = kind(vocabulary_size=24, seed=5, eos_bias=-1e4, max_context=parsed.context)
    limits = Limits(
        max_context=parsed.context, max_streams=8, max_message_bytes=65536, max_draft_tokens=64, max_backlog=64
    )
    engine = Engine(target, limits=limits, most_waiting=parsed.waiting, wait_seconds=60.0, prefix_tokens=8000)
    engine.start()
    health = Health(engine, stall_seconds=parsed.stall / 3 or 30.0)
    server = VerifierServer(engine, target, limits=limits, drain_seconds=1.0, health=health)
    asyncio.run(server.serve("127.0.0.1", parsed.port, ready=lambda bound: print(bound, flush=True)))


if __name__ == "__main__":
    main()
