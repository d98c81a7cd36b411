"""``draftwire relay``: an emulated wide-area network between anything that speaks TCP."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from typing import Any
from urllib.parse import urlsplit

from ...protocol.errors import InvalidParameterError
from ..bench.processes import terminate_is_interrupt
from ..wan_conditions import ABOUT_PIECES, parse_bandwidth, parse_jitter
from ..wan_relay import Conditions, Cut, WanRelay, is_host

__all__ = ["register"]

_DEFAULT_LISTEN = "127.0.0.1:0"


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "relay",
        help="forward TCP connections over an emulated network, until interrupted",
        description="Forward TCP connections over an emulated network, until interrupted.",
        epilog=ABOUT_PIECES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="where to forward, such as the verifier")
    parser.add_argument(
        "--listen", default=_DEFAULT_LISTEN, metavar="HOST:PORT", help="port 0 takes a free one (default %(default)s)"
    )
    parser.add_argument("--rtt", type=float, default=0.0, metavar="MS", help="round trip added (default %(default)g)")
    parser.add_argument(
        "--jitter",
        default="0",
        metavar="MS",
        help="extra delay of each piece of data, one way, ms: MOST or LEAST-MOST (default %(default)s); see below",
    )
    parser.add_argument(
        "--bandwidth", metavar="BITS", help="bits a second, such as 100k or 2M; 100k/2M is up/down (default no limit)"
    )
    parser.add_argument(
        "--cut-after",
        metavar="SECONDS",
        help="break a connection so long after its start; each time given, as in 2,5, breaks one connection",
    )
    parser.add_argument("--cut-after-bytes", metavar="N", help="break a connection once it has received so many bytes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the jitter (default %(default)s)")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    host, port = _address("--to", parsed.to)
    if port == 0:
        raise InvalidParameterError("--to", "needs a port above 0")
    listen_host, listen_port = _address("--listen", parsed.listen)
    if (host, port) == (listen_host, listen_port):
        raise InvalidParameterError("--to", f"{parsed.to} is where it listens itself; give another port")
    relay = WanRelay(
        host,
        port,
        conditions=_conditions(parsed),
        cuts=_cuts(parsed),
        seed=parsed.seed,
        listen_host=listen_host,
        listen_port=listen_port,
    )
    _open_many_files()
    with terminate_is_interrupt():
        asyncio.run(_serve(relay, listen_host, parsed))
    return 0


async def _serve(relay: WanRelay, host: str, parsed: argparse.Namespace) -> None:
    asyncio.get_running_loop().set_exception_handler(relay.on_loop_error)
    async with relay:
        started = time.monotonic()
        try:  # from the first line on, as whoever has read it may end this at once
            print(f"listening on {_joined(host, relay.port)}, {_plan(relay.conditions, parsed)}", flush=True)
            await asyncio.Event().wait()
        finally:
            print(_summary(relay, time.monotonic() - started), flush=True)


def _open_many_files() -> None:
    """Each connection is two open files, and the limit that a program starts with is often 1024."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS names no limit, and then refuses that
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# --- options --------------------------------------------------------------------------------------------------------


def _address(field: str, text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None or parts.netloc != text or "@" in text:
        raise InvalidParameterError(field, f"must look like host:port, not {text!r}")
    if not is_host(host):
        raise InvalidParameterError(field, f"must have a host name that can be looked up, not {text!r}")
    return host, port


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _conditions(parsed: argparse.Namespace) -> Conditions:
    if not 0 <= parsed.rtt <= 10_000:
        raise InvalidParameterError("--rtt", f"must be from 0 to 10000 ms, not {parsed.rtt:g}")
    up, down = parse_bandwidth(parsed.bandwidth, field="--bandwidth") if parsed.bandwidth else (None, None)
    return Conditions(
        delay=parsed.rtt / 2000,
        jitter=parse_jitter(parsed.jitter, field="--jitter"),
        bandwidth_up=up,
        bandwidth_down=down,
    )


def _cuts(parsed: argparse.Namespace) -> list[Cut]:
    try:
        timed = [Cut(after_seconds=float(text)) for text in _parts(parsed.cut_after)]
    except ValueError as error:  # of which InvalidParameterError is one
        raise InvalidParameterError(
            "--cut-after", f"must be seconds such as 2 or 5,2, not {parsed.cut_after!r}"
        ) from error
    try:
        counted = [Cut(after_bytes=int(text)) for text in _parts(parsed.cut_after_bytes)]
    except ValueError as error:
        raise InvalidParameterError(
            "--cut-after-bytes", f"must be whole numbers above 0, not {parsed.cut_after_bytes!r}"
        ) from error
    return timed + counted


def _parts(text: str | None) -> list[str]:
    return [] if text is None else text.split(",")


# --- what is said ---------------------------------------------------------------------------------------------------


def _plan(conditions: Conditions, parsed: argparse.Namespace) -> str:
    parts = [f"relaying to {parsed.to}", f"round trip {parsed.rtt:g} ms"]
    low, high = conditions.jitter_range
    if high:
        parts.append(f"jitter {1000 * low:g} to {1000 * high:g} ms one way")
    if parsed.bandwidth:
        parts.append(f"{parsed.bandwidth} bit/s {'up/down' if '/' in parsed.bandwidth else 'each way'}")
    if parsed.cut_after:
        parts.append(f"cut after {parsed.cut_after} s")
    if parsed.cut_after_bytes:
        parts.append(f"cut after {parsed.cut_after_bytes} bytes down")
    return ", ".join(parts)


def _summary(relay: WanRelay, seconds: float) -> str:
    counters = relay.counters
    return (
        f"relayed for {seconds:.1f} s: {_counted(counters.connections, 'connection')}, {counters.bytes_up} bytes up, "
        f"{counters.bytes_down} bytes down, {_counted(counters.cuts, 'cut')}"
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
