"""``draftwire-verifier``: serve a target, or show what one is."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import platform
import re
import sys
from collections.abc import Sequence
from importlib import metadata

from ..protocol.errors import DraftwireError, InvalidParameterError
from ..protocol.messages import Limits
from .engine.engine import Engine
from .engine.scheduler import RunAhead, Scheduler
from .service.health import Health
from .service.server import VerifierServer
from .targets.target import Target

__all__ = ["main"]

PROGRAM = "draftwire-verifier"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status: 0, 1 for a failure, 2 for wrong usage."""
    parsed = _parser().parse_args(arguments)
    logging.basicConfig(level=parsed.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for library in ("huggingface_hub", "transformers"):  # their retries and notes are no news to an operator
        logging.getLogger(library).setLevel(logging.ERROR)
    try:
        status = int(parsed.run(parsed))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has left, and wants no word about it
        _abandon_output()
        return 1
    except InvalidParameterError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2
    except DraftwireError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        _abandon_output()
        print(f"{PROGRAM}: error: cannot write the output: {error.strerror or error}", file=sys.stderr)
        return 1


def _abandon_output() -> None:
    """Let what is still buffered go nowhere, so that leaving the program does not fail on it again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="The cloud half of Draftwire: verifies draft tokens.")
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {metadata.version('draftwire')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve a target model to edge clients")
    serve.add_argument("model", metavar="MODEL", help="hub id, folder or GGUF file of the target")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    serve.add_argument("--port", type=_port, default=8300, help="port; 0 picks a free one (default %(default)s)")
    _add_model_options(serve)
    _add_capacity_options(serve)
    serve.add_argument(
        "--run-ahead",
        choices=[choice.value for choice in RunAhead],
        default=RunAhead.AUTO.value,
        help="advance streams whose drafts are late: by the client's policy (auto), always, never",
    )
    serve.add_argument(
        "--crowd",
        type=_positive,
        metavar="N",
        help="with --run-ahead auto: in steps that N other streams share, wait for late drafts under latency "
        "too; saves target passes, and costs each stream some speed (default: never)",
    )
    serve.add_argument(
        "--drain-seconds",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="after SIGTERM, how long running streams may go on (default %(default)g)",
    )
    serve.add_argument(
        "--stall-seconds",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="a step of the target that takes longer makes /readyz fail until it ends (default %(default)g)",
    )
    serve.set_defaults(run=_serve)

    info = commands.add_parser("info", help="show versions and devices, or what a target is")
    info.add_argument("model", metavar="MODEL", nargs="?", help="hub id, folder or GGUF file of a target")
    _add_model_options(info)
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)
    return parser


def _add_capacity_options(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--max-streams", type=_positive, default=64, help="streams at once (default %(default)s)")
    serve.add_argument("--max-context", type=_positive, help="tokens of one stream (default: the model's own)")
    serve.add_argument(
        "--kv-memory",
        type=_size,
        metavar="SIZE",
        help="memory for keys and values of all streams and known prefixes, such as 4G or 800M; nothing grows beyond "
        "it (default: half of the memory that is free once the model is loaded)",
    )
    serve.add_argument(
        "--prefix-cache",
        type=_whole,
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
        type=_whole,
        default=64,
        metavar="N",
        help="streams that may wait for a place; any more are told to come back later (default %(default)s)",
    )
    serve.add_argument(
        "--wait-seconds",
        type=_seconds,
        default=10.0,
        metavar="S",
        help="how long a stream waits for a place at most (default %(default)g)",
    )
    serve.add_argument(
        "--step-tokens",
        type=_positive,
        default=512,
        metavar="N",
        help="tokens that one step of the target computes at most, prompts and drafts included (default %(default)s)",
    )


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtype",
        choices=["auto", "float32", "bfloat16", "float16"],
        default="auto",
        help="of the weights (default: the checkpoint's own)",
    )
    parser.add_argument("--device", default="cpu", help="torch device, such as cpu or cuda:0 (default %(default)s)")
    parser.add_argument("--threads", type=_positive, help="CPU threads of the target (default: torch's choice)")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run Python code that the model's repository brings"
    )


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 65536:
        raise argparse.ArgumentTypeError("must be from 0 to 65535")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError("must be seconds, 0 or more")
    return value


def _size(text: str) -> int:
    """Bytes, with K, M, G or T for powers of 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"must be a size such as 4G or 800M, not {text!r}")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def _load(parsed: argparse.Namespace, *, kv_memory: int | None = None) -> Target:
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
    )


def _serve(parsed: argparse.Namespace) -> int:
    target = _load(parsed, kv_memory=parsed.kv_memory)
    context = target.info.max_context
    if parsed.max_context is not None and parsed.max_context > context:
        raise InvalidParameterError("--max-context", f"is more than the {context} that model and memory allow")
    limits = make_limits(target, max_streams=parsed.max_streams, max_context=parsed.max_context or context)
    engine = Engine(
        target,
        limits=limits,
        scheduler=Scheduler(run_ahead=RunAhead(parsed.run_ahead), crowd=parsed.crowd, step_tokens=parsed.step_tokens),
        most_waiting=parsed.max_waiting,
        wait_seconds=parsed.wait_seconds,
        prefix_tokens=parsed.prefix_cache,
        share_prefixes=parsed.share_prefixes,
    )
    engine.start()
    server = VerifierServer(
        engine,
        target,
        limits=limits,
        health=Health(engine, stall_seconds=parsed.stall_seconds),
        drain_seconds=parsed.drain_seconds,
    )

    def ready(port: int) -> None:
        host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
        print(f"serving {target.info.name} at ws://{host}:{port}", flush=True)

    try:
        asyncio.run(server.serve(parsed.host, parsed.port, ready=ready))
    finally:
        engine.stop()
    return 0


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


def _info(parsed: argparse.Namespace) -> int:
    report: dict[str, object] = {"draftwire": metadata.version("draftwire"), "python": platform.python_version()}
    report.update({name: metadata.version(name) for name in ("torch", "transformers", "aiohttp")})
    report["devices"] = _devices()
    if parsed.model is not None:
        info = _load(parsed).info
        report.update(
            target=info.name,
            vocabulary_size=info.vocabulary_size,
            max_context=info.max_context,
            eos_ids=list(info.eos_ids),
            fingerprint=info.fingerprint.hex(),
            dtype=info.dtype,
            device=info.device,
        )
    if parsed.json:
        print(json.dumps(report, indent=2))
    else:
        for name, value in report.items():
            print(f"{name:>16}  {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return 0


def _devices() -> list[str]:
    import torch  # the model has loaded it already, or nothing else here needs it

    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


if __name__ == "__main__":
    sys.exit(main())
