"""Reads the configuration file: every field known, every value checked, every fault one line that names its table."""

from __future__ import annotations

import contextlib
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ...protocol.errors import InvalidParameterError
from ..engine.speculation import Speculation
from ..guardrails.rule import Rule
from ..guardrails.thresholds import Thresholds
from ..option_types import LOWEST_RATE
from .config import Config, DoorLimits, KeyRules, RouteRules, TlsFiles
from .keys import check_hash, key_name
from .origin import check_origin

__all__ = ["DEFAULT_ROUTE", "read_config"]

DEFAULT_ROUTE = "default"
"""The name in the file of the route that has none."""

_SHOWN = 80

T = TypeVar("T")


def read_config(path: Path) -> Config:
    """What the file says.

    Raises:
        InvalidParameterError: it cannot be read, is no TOML, or has an unknown or wrong field, which is named.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidParameterError(str(path), f"cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, or a number of thousands of digits
        raise InvalidParameterError(str(path), f"is no TOML: {error}") from None
    with _Table(values, where=str(path)) as top:
        thresholds = _thresholds(top.table("guardrails"), Thresholds())
        return Config(
            limits=_limits(top.table("limits")),
            keys={key_name(name, field=table.where): _key(table) for name, table in top.tables("keys")},
            routes=_routes(top.tables("routes"), thresholds),
            origins=_origins(top.table("origins")),
            tls=_tls(top.table("tls"), path.parent) if top.has("tls") else None,
            thresholds=thresholds,
        )


class _Table:
    """One table of the file. Leaving it as a context manager refuses the fields that nobody has asked for."""

    def __init__(self, values: Mapping[str, Any], *, where: str) -> None:
        self.where = where
        self._left = dict(values)

    def take(self, name: str, check: Callable[[Any], T]) -> T | None:
        """A field's value through ``check``, which raises ValueError with what it must be; None where not given."""
        if name not in self._left:
            return None
        try:
            return check(self._left.pop(name))
        except InvalidParameterError as error:
            raise InvalidParameterError(f"{self.where} {name}", _problem(error)) from None
        except ValueError as error:
            raise InvalidParameterError(f"{self.where} {name}", str(error)) from None

    def table(self, name: str) -> _Table:
        """A table in this one; empty where it is missing."""
        return _Table(self.take(name, _mapping) or {}, where=self._inside(name))

    def tables(self, name: str) -> list[tuple[str, _Table]]:
        """The named tables in a table."""
        outer = self.table(name)
        return [(key, outer.table(key)) for key in list(outer._left)]

    def given(self, checks: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
        """The fields that are there."""
        return {name: self.take(name, check) for name, check in checks.items() if name in self._left}

    def has(self, name: str) -> bool:
        """Whether a field is there and has not been asked for."""
        return name in self._left

    def _inside(self, name: str) -> str:
        file, bracket, tables = self.where.partition(" [")
        return f"{file} [{tables.rstrip(']')}.{name}]" if bracket else f"{file} [{name}]"

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None and self._left:
            raise InvalidParameterError(f"{self.where} {min(self._left)}", "is not a field that is known here")


# --- the tables ---------------------------------------------------------------------------------------------------


def _limits(table: _Table) -> DoorLimits:
    with table:
        return DoorLimits(
            **table.given(
                {
                    "max_connections": _positive,
                    "max_connections_per_key": _positive,
                    "max_connections_per_address": _positive,
                    "connections_per_minute": _rate,
                    "requests_per_minute": _rate,
                    "max_streams_per_key": _positive,
                    "max_prompt_tokens": _positive,
                    "max_output_tokens": _positive,
                    "hello_seconds": _some_seconds,
                    "idle_seconds": _seconds,
                }
            )
        )


def _key(table: _Table) -> KeyRules:
    with table:
        digests = table.take("sha256", lambda value: tuple(check_hash(each, field="sha256") for each in _texts(value)))
        if not digests:
            raise InvalidParameterError(f"{table.where} sha256", "must list at least one hash of a key")
        return KeyRules(
            digests=digests,
            **table.given(
                {
                    "max_streams": _positive,
                    "max_connections": _positive,
                    "requests_per_minute": _rate,
                    "max_prompt_tokens": _positive,
                    "max_output_tokens": _positive,
                    "speculation": _rule,
                }
            ),
        )


def _routes(tables: list[tuple[str, _Table]], general: Thresholds) -> dict[str, RouteRules]:
    routes = {}
    for name, table in tables:
        with table:
            own = table.has("guardrails")
            thresholds = _thresholds(table.table("guardrails"), general) if own else None
            rules = RouteRules(thresholds=thresholds, **table.given({"speculation": _rule}))
        routes["" if name == DEFAULT_ROUTE else key_name(name, field=table.where)] = rules
    return routes


def _origins(table: _Table) -> frozenset[str]:
    with table:
        allowed = table.take("allow", lambda value: frozenset(check_origin(each) for each in _texts(value)))
        return allowed or frozenset()


def _tls(table: _Table, folder: Path) -> TlsFiles:
    with table:
        certificate, key = (table.take(name, lambda value: folder / _text(value)) for name in ("certificate", "key"))
    if certificate is None or key is None:
        raise InvalidParameterError(table.where, "must name both a certificate and a key")
    return TlsFiles(certificate=certificate, key=key)


def _thresholds(table: _Table, base: Thresholds) -> Thresholds:
    with table:
        given = table.given(_THRESHOLDS)
        try:
            return replace(base, **given)
        except InvalidParameterError as error:
            raise InvalidParameterError(f"{table.where} {error.field}", _problem(error)) from None


# --- the values ---------------------------------------------------------------------------------------------------


def _shown(value: Any) -> str:
    """A value in a message: its beginning, where it is long."""
    try:
        text = repr(value)
    except ValueError:  # hexadecimal digits may be more than Python writes as decimal ones
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be a table")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"must be text on one line, not {_shown(value)}")
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise ValueError("must be a list of texts")
    return [_text(each) for each in value]


def _number(value: Any) -> float:
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # a whole number of hundreds of digits
            number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"must be a number, not {_shown(value)}")
    return number


def _positive(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
        raise ValueError(f"must be a whole number, at least 1, not {_shown(value)}")
    return value


def _rate(value: Any) -> float:
    if not LOWEST_RATE <= _number(value) <= 1e9:
        raise ValueError(f"must be a number, at least {LOWEST_RATE}, not {_shown(value)}")
    return float(value)


def _seconds(value: Any) -> float:
    if not 0.0 <= _number(value) <= 1e9:
        raise ValueError(f"must be seconds, 0 or more, not {_shown(value)}")
    return float(value)


def _some_seconds(value: Any) -> float:
    if not 0.0 < _number(value) <= 1e9:
        raise ValueError(f"must be seconds, above 0, not {_shown(value)}")
    return float(value)


def _rule(value: Any) -> Rule:
    """``"on"``, ``"off"``, ``"shadow"`` or ``{canary = 0.1}``."""
    if isinstance(value, dict) and value.keys() == {"canary"}:
        return Rule(Speculation.ON, share=_number(value["canary"]))
    if isinstance(value, str) and value in [each.value for each in Speculation]:
        return Rule(Speculation(value))
    raise ValueError(f"must be 'on', 'off', 'shadow' or {{canary = SHARE}}, not {_shown(value)}")


def _tripped(value: Any) -> Speculation:
    if value not in ("off", "shadow"):
        raise ValueError(f"must be 'off' or 'shadow', not {_shown(value)}")
    return Speculation(value)


def _problem(error: InvalidParameterError) -> str:
    return str(error).removeprefix(f"{error.field}: ")


_THRESHOLDS: dict[str, Callable[[Any], Any]] = {
    "min_acceptance": _number,
    "max_tpot_ratio": _number,
    "max_error_rate": _number,
    "window_seconds": _number,
    "baseline_seconds": _number,
    "min_samples": _positive,
    "cooldown_seconds": _number,
    "good_windows": _positive,
    "probe_share": _number,
    "baseline_share": _number,
    "tripped": _tripped,
}
