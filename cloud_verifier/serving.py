"""``draftwire-verifier serve``: a target, the engine, the door and what operators see, put together."""

from __future__ import annotations

import argparse
import asyncio
import gc
from typing import Any

from ..protocol.errors import InvalidParameterError
from ..protocol.messages import Limits
from .engine.engine import Engine
from .engine.observer import Observers
from .engine.scheduler import RunAhead, Scheduler
from .openai.api import OpenAiApi
from .operations.operations import Operations, build_operations
from .operations.options import add_operations_options
from .option_types import port, positive, seconds, size, whole
from .service.door import Door, add_door_options, build_door
from .service.health import Health
from .service.server import VerifierServer
from .targets.target import Target

__all__ = ["add_model_options", "add_serve", "load_target", "make_limits"]

_FREE_SHARE = 0.5


def add_serve(commands: Any) -> None:
    """Add the command to what ``ArgumentParser.add_subparsers`` returned."""
    serve = commands.add_parser("serve", help="serve a target model to edge clients")
    serve.add_argument("model", metavar="MODEL", help="hub id, folder or GGUF file of the target")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    serve.add_argument("--port", type=port, default=8300, help="port; 0 picks a free one (default %(default)s)")
    add_model_options(serve)
    _add_capacity_options(serve)
    serve.add_argument(
        "--run-ahead",
        choices=[choice.value for choice in RunAhead],
        default=RunAhead.AUTO.value,
        help="advance streams whose drafts are late: by the client's policy (auto), always, never",
    )
    serve.add_argument(
        "--crowd",
        type=positive,
        metavar="N",
        help="with --run-ahead auto: in steps that N other streams share, wait for late drafts under latency "
        "too; saves target passes, and costs each stream some speed (default: never)",
    )
    serve.add_argument(
        "--drain-seconds",
        type=seconds,
        default=30.0,
        metavar="S",
        help="after SIGTERM, how long running streams may go on (default %(default)g)",
    )
    serve.add_argument(
        "--stall-seconds",
        type=seconds,
        default=30.0,
        metavar="S",
        help="a step of the target that takes longer makes /readyz fail until it ends (default %(default)g)",
    )
    add_door_options(serve)
    add_operations_options(serve)
    serve.set_defaults(run=_serve)


def _add_capacity_options(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--max-streams", type=positive, default=64, help="streams at once (default %(default)s)")
    serve.add_argument("--max-context", type=positive, help="tokens of one stream (default: the model's own)")
    serve.add_argument(
        "--kv-memory",
        type=size,
        metavar="SIZE",
        help="memory for keys and values of all streams and known prefixes, such as 4G or 800M; nothing grows beyond "
        "it (default: half of the memory that is free once the model is loaded)",
    )
    serve.add_argument(
        "--prefix-cache",
        type=whole,
        default=1 << 17,
        metavar="TOKENS",
        help="tokens of earlier prompts and answers to keep while memory allows; 0 for none (default %(default)s)",
    )
    serve.add_argument(
        "--share-prefixes",
        action="store_true",
        help="let all keys share known prefixes; response times then tell what others have asked",
    )
    serve.add_argument(
        "--max-waiting",
        type=whole,
        default=64,
        metavar="N",
        help="streams that may wait for a place; any more are told to come back later (default %(default)s)",
    )
    serve.add_argument(
        "--wait-seconds",
        type=seconds,
        default=10.0,
        metavar="S",
        help="how long a stream waits for a place at most (default %(default)g)",
    )
    serve.add_argument(
        "--step-tokens",
        type=positive,
        default=512,
        metavar="N",
        help="tokens that one step of the target computes at most, prompts and drafts included (default %(default)s)",
    )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which numbers, device and threads; for every command that loads a model."""
    parser.add_argument(
        "--dtype",
        choices=["auto", "float32", "bfloat16", "float16"],
        default="auto",
        help="of the weights (default: the checkpoint's own)",
    )
    parser.add_argument("--device", default="cpu", help="torch device, such as cpu or cuda:0 (default %(default)s)")
    parser.add_argument("--threads", type=positive, help="CPU threads of the target (default: torch's choice)")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run Python code that the model's repository brings"
    )


def load_target(parsed: argparse.Namespace, *, kv_memory: int | None = None, kv_share: float | None = None) -> Target:
    """The target that the options name; see :meth:`TransformersTarget.load` for the rest, and for what it raises."""
    from .targets.transformers_target import (
        TransformersTarget,  # torch takes seconds to import, which --help need not wait for
    )

    return TransformersTarget.load(
        parsed.model,
        device=parsed.device,
        dtype=parsed.dtype,
        threads=parsed.threads,
        trust_remote_code=parsed.trust_remote_code,
        kv_memory=kv_memory,
        kv_share=kv_share,
    )


def _serve(parsed: argparse.Namespace) -> int:
    target = load_target(parsed, kv_memory=parsed.kv_memory, kv_share=_FREE_SHARE)
    limits = make_limits(target, max_streams=parsed.max_streams, max_context=_context(parsed, target))
    operations = build_operations(parsed, target.info, log=parsed.log)
    door = build_door(parsed, refused=operations.tally.rejected, switched=operations.tally.speculation_switched)
    engine = _engine(parsed, target, limits, operations, door)
    engine.start()
    operations.watch(
        engine,
        connections=lambda: door.doorkeeper.connections,
        routes=lambda: {route: state.value for route, state in door.guardrails.states().items()},
        reloads=lambda: (door.reloads, door.failed_reloads),
    )
    server = VerifierServer(
        engine,
        target,
        limits=limits,
        doorkeeper=door.doorkeeper,
        routes=[*OpenAiApi(engine, target, limits).routes(), *operations.routes],
        health=Health(engine, stall_seconds=parsed.stall_seconds),
        drain_seconds=parsed.drain_seconds,
    )

    def ready(port: int) -> None:
        host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
        print(f"serving {target.info.name} at {door.scheme}://{host}:{port}", flush=True)

    _set_aside_what_stays()
    try:
        asyncio.run(server.serve(parsed.host, parsed.port, ready=ready, tls=door.tls, reload=door.on_hangup))
    finally:
        engine.stop()
        operations.close()
    return 0


def _set_aside_what_stays() -> None:
    """Spare the garbage collector the libraries and the model, which are never freed: a full collection visits some
    400,000 objects of theirs, and holds engine and event loop up for a quarter of a second.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # by what is left to visit the collector decides when to do so next


def _context(parsed: argparse.Namespace, target: Target) -> int:
    most = target.info.max_context
    if parsed.max_context is not None and parsed.max_context > most:
        raise InvalidParameterError("--max-context", f"is more than the {most} that model and memory allow")
    return int(parsed.max_context or most)


def _engine(parsed: argparse.Namespace, target: Target, limits: Limits, operations: Operations, door: Door) -> Engine:
    return Engine(
        target,
        limits=limits,
        scheduler=Scheduler(run_ahead=RunAhead(parsed.run_ahead), crowd=parsed.crowd, step_tokens=parsed.step_tokens),
        observer=Observers([operations.observer, door.guardrails.observer]),
        speculation=door.guardrails.decide,
        most_waiting=parsed.max_waiting,
        wait_seconds=parsed.wait_seconds,
        prefix_tokens=parsed.prefix_cache,
        share_prefixes=parsed.share_prefixes,
    )


def make_limits(target: Target, *, max_streams: int, max_context: int) -> Limits:
    """What clients are promised. A message is at most a whole context of ids, and room for the rest of OPEN."""
    width = max(1, (target.info.vocabulary_size - 1).bit_length())
    return Limits(
        max_context=max_context,
        max_streams=max_streams,
        max_message_bytes=(max_context * width + 7) // 8 + 16 * 1024,
        max_draft_tokens=64,
        max_backlog=64,
    )
