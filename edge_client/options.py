"""What a caller may set for one generation, checked before anything is sent."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ..protocol.errors import InvalidParameterError
from ..protocol.messages import Policy
from ..protocol.sampling import SamplingParams
from .gamma.choice import CONTROLLERS, ControllerName

__all__ = ["MAX_LOOK_AHEAD", "GenerationOptions", "PolicyName"]

MAX_LOOK_AHEAD = 64
DEFAULT_MAX_TOKENS = 512

PolicyName: TypeAlias = Literal["latency", "cost"]

_POLICIES: Mapping[str, Policy] = {"latency": Policy.LATENCY, "cost": Policy.COST}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """Options of one generation.

    Attributes:
        max_tokens: most tokens of the answer; None is 512, or what the context leaves if that is less.
        sampling: see :class:`~draftwire.protocol.sampling.SamplingParams`.
        seed: 0 to 2**64 - 1; drawn at random when None, and reported with the result.
        controller: how far ahead to draft, and when to send: ``adaptive`` follows device, network and text; ``fixed``,
            ``aimd``, ``pid``, ``bandit`` and ``serial`` are there for comparison.
        look_ahead: most draft tokens beyond the committed prefix, and just so many for ``fixed`` and ``serial``; 0 is
            cloud-only, None is what suits the controller.
        policy: ``latency`` lets the verifier run ahead of late drafts, ``cost`` saves target passes.
        ignore_eos: go on after an end-of-sequence id.
    """

    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    controller: ControllerName = "adaptive"
    look_ahead: int | None = None
    policy: PolicyName = "latency"
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1, 2**31 - 1)
        if self.seed is not None:
            _whole("seed", self.seed, 0, 2**64 - 1)
        if self.look_ahead is not None:
            _whole("look_ahead", self.look_ahead, 0, MAX_LOOK_AHEAD)
        if not isinstance(self.controller, str) or self.controller not in CONTROLLERS:
            raise InvalidParameterError(
                "controller", f"must be one of {', '.join(CONTROLLERS)}, not {self.controller!r}"
            )
        if not isinstance(self.policy, str) or self.policy not in _POLICIES:
            raise InvalidParameterError("policy", f"must be 'latency' or 'cost', not {self.policy!r}")

    @classmethod
    def of(cls, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> GenerationOptions:
        """Options from keyword arguments; sampling parameters are given by their own names.

        Raises:
            InvalidParameterError: a value is out of range, or a name is unknown.
        """
        names = {**defaults, **given}
        sampling = {name: names.pop(name) for name in SamplingParams.names() if name in names}
        if isinstance(sampling.get("logit_bias"), Mapping):
            sampling["logit_bias"] = tuple(sampling["logit_bias"].items())
        for name in names:
            if name not in cls.__dataclass_fields__ or name == "sampling":
                raise InvalidParameterError(name, "is no known option")
        return cls(sampling=SamplingParams(**sampling), **names)

    def chosen_seed(self) -> int:
        """The seed given, or a random one."""
        return secrets.randbits(64) if self.seed is None else self.seed

    def budget(self, *, prompt_tokens: int, max_context: int) -> int:
        """Tokens the answer may have; at least 1, so that a prompt too long is refused with the limit in words."""
        if self.max_tokens is not None:
            return self.max_tokens
        return max(1, min(DEFAULT_MAX_TOKENS, max_context - prompt_tokens))

    @property
    def drafting(self) -> bool:
        """Whether the device should draft."""
        return self.look_ahead != 0

    @property
    def wire_policy(self) -> Policy:
        """The policy as the wire names it."""
        return _POLICIES[self.policy]


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidParameterError(name, f"must be a whole number from {low} to {high}, not {value!r}")
