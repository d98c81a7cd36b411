"""``draftwire-verifier key`` and ``check-config``: what operators do before they serve."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .config_file import read_config
from .keys import hash_key, key_name, new_key
from .tls import Certificate

__all__ = ["add_door_commands", "check_config", "make_key"]


def add_door_commands(commands: Any) -> None:
    """Add both to what ``ArgumentParser.add_subparsers`` returned; ``run`` of what is parsed is the function."""
    key = commands.add_parser("key", help="make an API key: prints it once, and what to store of it")
    key.add_argument("name", metavar="NAME", help="whose it is; also in logs and metrics")
    key.set_defaults(run=make_key)
    check = commands.add_parser("check-config", help="say what is wrong with a configuration file, if anything")
    check.add_argument("file", metavar="FILE", type=Path)
    check.set_defaults(run=check_config)


def make_key(parsed: argparse.Namespace) -> int:
    """Print a fresh key, and the lines of the configuration file that let it in."""
    name, key = key_name(parsed.name, field="NAME"), new_key()
    table = f'"{name}"' if "." in name else name
    print(f"The key of {name}, shown this once:\n\n    {key}\n")
    print("For the configuration file; an old hash may stay in the list until all have the new key:\n")
    print(f'[keys.{table}]\nsha256 = ["{hash_key(key)}"]')
    return 0


def check_config(parsed: argparse.Namespace) -> int:
    """Read the file, and the certificate it names, as ``serve`` would; InvalidParameterError where it would fail."""
    config = read_config(parsed.file)
    keys = len(config.keyring())
    if config.tls is not None:
        Certificate(config.tls)
    whom = f"{keys} keys of {len(config.keys)} names" if keys else "no keys, so everybody is let in"
    print(f"{parsed.file} is fine: {whom}; {len(config.routes)} routes; {'TLS' if config.tls else 'no TLS'}")
    return 0
