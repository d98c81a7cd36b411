"""Command-line options of what operators see."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..option_types import port

__all__ = ["add_log_options", "add_operations_options"]


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """How and where to log, for every command."""
    parser.add_argument(
        "--log-format",
        choices=["text", "json"],
        default="text",
        help="lines for people, or one JSON object a line (default %(default)s)",
    )
    parser.add_argument(
        "--log-file",
        type=Path,
        metavar="PATH",
        help="append log lines to this file, which may be moved away at any time (default: standard error)",
    )


def add_operations_options(serve: argparse.ArgumentParser) -> None:
    """What to measure and where to tell it, for ``serve``."""
    group = serve.add_argument_group("metrics and traces")
    group.add_argument(
        "--metrics-port",
        type=port,
        metavar="PORT",
        help="serve /metrics on a port of its own, and not on the service's (default: on the service's, without a key)",
    )
    group.add_argument(
        "--metrics-host",
        default="127.0.0.1",
        metavar="HOST",
        help="address of that port (default %(default)s)",
    )
    group.add_argument(
        "--metrics-by-key",
        action="store_true",
        help="count requests and tokens of each key as well; its name is then in /metrics",
    )
    group.add_argument(
        "--no-request-log",
        dest="request_log",
        action="store_false",
        help="do not log a line when a stream begins and one when it ends",
    )
    group.add_argument(
        "--otel",
        action="store_true",
        help="send a trace of each stream by OpenTelemetry, to where OTEL_EXPORTER_OTLP_ENDPOINT says",
    )
