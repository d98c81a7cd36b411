"""Everything at the door, put together from options, file and environment, and set anew on request."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import os
import ssl
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...protocol.errors import DraftwireError, InvalidParameterError
from ..guardrails.guardrails import Guardrails
from ..option_types import positive, rate, seconds
from .config import Config, TlsFiles
from .config_file import read_config
from .doorkeeper import Doorkeeper
from .keys import KEYS_VARIABLE, keys_from_environment
from .origin import check_origin
from .tls import Certificate

__all__ = ["Door", "add_door_options", "build_door"]

logger = logging.getLogger(__name__)

_LIMITS = ("max_connections", "requests_per_minute", "max_prompt_tokens", "max_output_tokens", "idle_seconds")
"""Of :class:`~.config.DoorLimits`, those that have an option on the command line, which goes before the file."""


def add_door_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``serve`` about who may come in, and for how much."""
    group = parser.add_argument_group("the door", f"API keys come from the file, and from {KEYS_VARIABLE}=NAME=KEY,...")
    group.add_argument("--config", type=Path, metavar="FILE", help="limits, keys, routes; SIGHUP reads it again")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate and those that vouch for it, in PEM")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, in PEM and not encrypted")
    group.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this origin use the service, such as https://app.example; repeat for more, * for all",
    )
    group.add_argument("--max-connections", type=positive, metavar="N", help="connections at once (default 512)")
    group.add_argument("--requests-per-minute", type=rate, metavar="N", help="of each key (default: any number)")
    group.add_argument("--max-prompt-tokens", type=positive, metavar="N", help="of one stream (default: the context)")
    group.add_argument("--max-output-tokens", type=positive, metavar="N", help="of one stream (default: the context)")
    group.add_argument(
        "--idle-seconds", type=seconds, metavar="S", help="close connections without streams; 0 never (default 600)"
    )


def build_door(
    parsed: argparse.Namespace,
    *,
    refused: Callable[[str], None] = lambda _: None,
    switched: Callable[[str, str, str], None] | None = None,
) -> Door:
    """The door that the options describe. The environment's keys are taken out of it.

    Args:
        parsed: of :func:`add_door_options`, and ``host``.
        refused: is told a short name of why, once for each refusal.
        switched: see :class:`Guardrails`.

    Raises:
        InvalidParameterError: an option, the file or the environment is wrong; the message names what.
    """
    options = _Options(parsed, keys_from_environment(os.environ))
    door = Door(options.read, reloadable=options.reloadable, refused=refused, switched=switched)
    if not len(door.doorkeeper.config.keyring()) and not _is_loopback(getattr(parsed, "host", "127.0.0.1")):
        logger.warning(
            "everybody who reaches %s may use this verifier: it asks for no key; draftwire-verifier key NAME makes one",
            parsed.host,
        )
    return door


class Door:
    """What the server and the engine need of the door.

    Args:
        read: gives the configuration as it is to be now; called at once, and for each reload.
        reloadable: whether it may be another one the next time.
    """

    def __init__(
        self,
        read: Callable[[], Config],
        *,
        reloadable: bool = True,
        refused: Callable[[str], None] = lambda _: None,
        switched: Callable[[str, str, str], None] | None = None,
    ) -> None:
        self._read = read
        self._reloadable = reloadable
        config = read()
        self.doorkeeper = Doorkeeper(config, refused=refused)
        self.guardrails = Guardrails(**_rules(config), switched=switched)
        self._certificate = Certificate(config.tls) if config.tls is not None else None
        self.reloads = 0
        self.failed_reloads = 0

    @property
    def tls(self) -> Callable[[], ssl.SSLContext] | None:
        """Gives what a connection is to use that comes now; None for plain text."""
        certificate = self._certificate
        return (lambda: certificate.context) if certificate is not None else None

    @property
    def scheme(self) -> str:
        """Of the service's address."""
        return "wss" if self._certificate is not None else "ws"

    @property
    def on_hangup(self) -> Callable[[], None] | None:
        """For SIGHUP: :meth:`reload`. None for a program in a terminal that has nothing to read again: the signal says
        then that the terminal is closed, and ends it as ever.
        """
        in_terminal = sys.stdin is not None and sys.stdin.isatty()
        return None if in_terminal and not self._reloadable else self.reload

    def reload(self) -> None:
        """Read everything again. What is wrong is logged and counted, and all stays as it was."""
        if not self._reloadable:
            logger.info("nothing to read again: neither --config nor --tls-cert was given")
            return
        try:
            config = self._read()
            self._check_change(config)
            if self._certificate is not None:
                self._certificate.reload(config.tls)
        except DraftwireError as error:
            self.failed_reloads += 1
            logger.error("not reloaded, everything stays as it was: %s", error)
            return
        self.guardrails.replace(**_rules(config))
        self.doorkeeper.replace(config)
        self.reloads += 1
        logger.info("reloaded: %d keys, %d routes", len(config.keyring()), len(config.routes))

    def _check_change(self, config: Config) -> None:
        if (config.tls is None) is not (self._certificate is None):
            raise InvalidParameterError("tls", "cannot be turned on or off by a reload; restart for that")
        if len(self.doorkeeper.config.keyring()) and not len(config.keyring()):
            raise InvalidParameterError("keys", "there are none any more; restart to let everybody in")


class _Options:
    """Reads the file, and puts on top of it what options and environment say."""

    def __init__(self, parsed: argparse.Namespace, keys: Mapping[str, list[str]]) -> None:
        self._parsed = parsed
        self._keys = keys
        self.reloadable = parsed.config is not None or parsed.tls_cert is not None

    def read(self) -> Config:
        parsed = self._parsed
        config = read_config(parsed.config) if parsed.config is not None else Config()
        given = {name: getattr(parsed, name) for name in _LIMITS if getattr(parsed, name) is not None}
        config = replace(
            config.with_keys(self._keys),
            limits=replace(config.limits, **given),
            origins=config.origins | {check_origin(each) for each in parsed.allow_origin},
            tls=self._tls() or config.tls,
        )
        config.keyring()  # a key that two names share is found here
        return config

    def _tls(self) -> TlsFiles | None:
        certificate, key = self._parsed.tls_cert, self._parsed.tls_key
        if (certificate is None) is not (key is None):
            missing = "--tls-key" if key is None else "--tls-cert"
            raise InvalidParameterError(missing, "must be given as well: a certificate and its key go together")
        return TlsFiles(certificate=certificate, key=key) if certificate is not None else None


def _rules(config: Config) -> dict[str, Any]:
    """What the guardrails take of the configuration."""
    return {
        "routes": {name: rules.speculation for name, rules in config.routes.items()},
        "keys": {name: rules.speculation for name, rules in config.keys.items()},
        "thresholds": config.thresholds,
        "route_thresholds": {name: each.thresholds for name, each in config.routes.items() if each.thresholds},
    }


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
