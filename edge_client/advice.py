"""What to expect of a pair, and what to change, in plain words: rules over what a check-up measured. No I/O.

Each rule looks at one thing, and says something or nothing. The order below is the order of the advice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .forecast import PAYS, DraftFault, Forecast, Measured, forecast, typical_rights

__all__ = ["Advice", "Severity", "advise"]

Severity: TypeAlias = Literal["problem", "warning", "note", "fine"]
"""Broken; costs speed and can be changed; good to know; as it should be."""

SLOW_DRAFT = 0.5
"""Draft time in target steps from which a draft is slow: a path then gets ahead of the target by a token a step at
most, and what a network takes away is never made up."""

TOO_SLOW_DRAFT = 1.0
"""From here on the target by itself is as fast as the draft, and a path hardly ever gets ahead of it."""

FAR = 3.0
"""Round trip in target steps that is far: a path usually lives about three tokens, so most of it would be late."""

NEAR = 0.010
"""Round trip in seconds below which no region is nearer."""

SELDOM_RIGHT = 0.5
"""Share of right tokens below which most paths end at their first token or second."""

WEAK_TASK = 0.15
"""One kind of text is worth a word when the draft is right in it so much less often than over all."""

WELL_TRAINED = 0.85
"""What a draft tuned to its target, or a less coarsely quantized copy, comes to."""

FAST_STEP = 0.015
"""Above 65 tokens a second nobody reads along, and few devices draft a token in much less time."""

SLOWER = 0.95
"""Speed over cloud-only below which it is told that a draft slows answers down, not just that it does not pay."""

HARDLY_PAYS = 1.15
"""Speed over cloud-only that is not worth an installation of a draft."""

STEADY_JITTER = 0.005
"""Seconds of jitter that any network has."""

JITTER_STEPS = 0.5
"""Jitter in target steps from which a draft often misses the step it was meant for."""

BUSY_SPREAD = 1.5
"""A slow drafting step over a usual one: the work is the same each time, so the rest is waiting for a core."""

BUSY_CPU_SHARE = 0.7
"""Drafting computes and waits for nothing, so CPU time much below wall time means that the core was elsewhere."""

BUSY_STREAMING = 1.4
"""A drafting step while text streams over one alone: a client that has a core to spare needs a few percent more."""

SLOW_FRAMES, SLOW_FRAMES_LEAST = 1.5, 0.010
"""Round trip of frames over that of pings, and seconds between them, from which something holds frames back."""

DEAR_TOKEN = 0.1
"""Share of a step that one more draft token in it costs: 0.02 is usual on CPUs in bfloat16, 0.12 in float32."""

SHARED_VERIFIER = 1.5
"""A slow target step over a usual one: steps over one token are alike unless other streams share them."""

SHORTFALL = 0.8
"""Measured over predicted speed below which the parts measured one by one do not explain what came out."""

TYPICAL_SHARE = 0.7
"""How often a draft of the target's own family is right, in practice."""

TYPICAL_DRAFTS = (0.005, 0.010, 0.020)
"""Seconds a token: a small int4 draft on a laptop, on a telephone, and on an old one."""

NEARER = 0.020
"""Round trip in seconds to a region on the same continent."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What was found, with its value, and what to do about it. Both are for people, in one line."""

    severity: Severity
    finding: str
    action: str


_Rule: TypeAlias = Callable[[Measured], Advice | None]


def advise(measured: Measured) -> list[Advice]:
    """What to expect and what to change; starts with what matters most."""
    found = [advice for rule in _RULES if (advice := rule(measured)) is not None]
    verdict = _verdict(measured, any(advice.severity == "warning" for advice in found))
    return found if verdict is None else [verdict, *found]


# --- what to expect ---------------------------------------------------------------------------------------------------


def _verdict(measured: Measured, warned: bool) -> Advice | None:
    """Never more than what was measured, nor than what is predicted for longer answers."""
    here = forecast(measured)
    if measured.draft is None or here is None:
        return None
    gain = min(measured.draft.ratio, here.run_ahead)
    basis = f"measured {measured.draft.ratio:.2f}x over {measured.tokens} tokens, predicted {here.run_ahead:.2f}x"
    if gain < PAYS:
        what = "drafting slows answers down here" if gain < SLOWER else "this draft hardly pays here"
        return Advice("warning", f"{what}: expect about {gain:.1f}x ({basis})", _why_not(warned))
    action = "the lines below say what would bring more" if warned else "nothing needs to change"
    return Advice("fine", f"expect about {gain:.1f}x the speed of cloud-only ({basis})", action)


def _why_not(warned: bool) -> str:
    if warned:
        return "the lines below say why; until that is changed, leave --draft out and save the device's energy"
    return "leave --draft out and save the device's energy, or run this again while the machine is idle"


def _no_draft(measured: Measured) -> Advice | None:
    if measured.draft is not None or measured.fault is not None:
        return None
    brings = ", ".join(f"{_speed(_typical(measured, draft))} at {_ms(draft)} a token" for draft in TYPICAL_DRAFTS)
    best = _typical(measured, TYPICAL_DRAFTS[0])
    pays = best is not None and best.run_ahead >= PAYS
    return Advice(
        "note",
        f"no draft was given; the target takes {_ms(measured.step)} a step and is {_ms(measured.rtt)} away. A draft of "
        f"its family, right {TYPICAL_SHARE} of the time, would bring about {brings}",
        "export one with draftwire-export draft, and give it with --draft"
        if pays
        else "stay cloud-only: with this target at this distance a draft would hardly pay",
    )


def _unusable(measured: Measured) -> Advice | None:
    if measured.fault is None:
        return None
    good = _speed(_typical(measured, TYPICAL_DRAFTS[1]))
    return Advice(
        "problem",
        measured.reason or "the draft cannot be used",
        f"{_REPAIRS[measured.fault]}. Answers come all the same, cloud-only; a typical draft would bring about {good}",
    )


_REPAIRS: dict[DraftFault, str] = {
    "mismatch": "give a draft whose fingerprint is the verifier's: export a smaller model of the target's own family",
    "unreadable": "give the folder that draftwire-export draft wrote, all of its files with it, or export it again",
    "failing": "run draftwire-export check on the bundle, and export it again if that fails",
}


def _shortfall(measured: Measured) -> Advice | None:
    same = forecast(measured, answer=0)
    if measured.draft is None or same is None or measured.draft.ratio >= SHORTFALL * same.run_ahead:
        return None
    return Advice(
        "note",
        f"measured {measured.draft.ratio:.2f}x, though the parts taken one by one would give {same.run_ahead:.2f}x for "
        "answers as short",
        "run this again with device and verifier otherwise idle; both on one machine take each other's cores",
    )


# --- the draft --------------------------------------------------------------------------------------------------------


def _slow_draft(measured: Measured) -> Advice | None:
    draft = measured.draft
    if draft is None or draft.alone < SLOW_DRAFT * measured.step:  # slow only while text streams: see _busy
        return None
    half, quarter = (forecast(measured, draft=draft.streaming / part) for part in (2, 4))
    much = "too slow" if draft.streaming >= TOO_SLOW_DRAFT * measured.step else "slow"
    return Advice(
        "warning",
        f"the draft is {much} for this target: {_ms(draft.streaming)} a token, {draft.streaming / measured.step:.1f} "
        f"of a step ({_ms(measured.step)})",
        f"make it faster: {_faster(measured)}. In half the time it would bring about {_speed(half)}, in a quarter "
        f"{_speed(quarter)}, instead of {_speed(forecast(measured))}",
    )


def _faster(measured: Measured) -> str:
    ways = ["a smaller model"]
    if (draft := measured.draft) is not None:
        if draft.quantization != "int4":
            ways.append(f"int4 instead of {'fp32' if draft.quantization == 'none' else draft.quantization}")
        if draft.threads < draft.cores:
            ways.append(f"more threads (--threads {min(2 * draft.threads, draft.cores)} instead of {draft.threads})")
    return ", ".join([*ways, "or another execution provider (providers= in the SDK)"])


def _seldom_right(measured: Measured) -> Advice | None:
    draft = measured.draft
    if draft is None or draft.share >= SELDOM_RIGHT:
        return None
    better = forecast(measured, rights=typical_rights(WELL_TRAINED))
    int8 = ", an int8 export instead of int4" if draft.quantization == "int4" else ""
    return Advice(
        "warning",
        f"the draft is seldom right: {draft.share:.2f} of the samples' tokens, {_worst(measured)}",
        f"try another draft of the target's family{int8}, or one fine-tuned on the target's own answers; right "
        f"{WELL_TRAINED} of the time it would bring about {_speed(better)} instead of {_speed(forecast(measured))}",
    )


def _weak_task(measured: Measured) -> Advice | None:
    draft = measured.draft
    if draft is None or draft.share < SELDOM_RIGHT or min(draft.shares.values()) > draft.share - WEAK_TASK:
        return None
    return Advice(
        "note",
        f"how often the draft is right depends on the text: {draft.share:.2f} over all, {_worst(measured)}",
        "if that kind of text is yours, judge by its figure, and fine-tune the draft on answers of that kind",
    )


def _worst(measured: Measured) -> str:
    shares = measured.draft.shares if measured.draft is not None else {}
    worst = min(shares, key=shares.__getitem__)
    return f"least in {worst} ({shares[worst]:.2f})"


def _fast_target(measured: Measured) -> Advice | None:
    here = forecast(measured)
    if measured.draft is None or here is None or measured.step >= FAST_STEP or here.run_ahead >= HARDLY_PAYS:
        return None
    return Advice(
        "note",
        f"the target is fast: {_ms(measured.step)} a step, which is faster than anybody reads; the draft takes "
        f"{_ms(measured.draft.streaming)} a token and brings about {_speed(here)}",
        f"draft for a larger target, or where target passes are what costs: it takes about {here.passes_per_token:.2f} "
        "of them a token, instead of 1",
    )


def _busy(measured: Measured) -> Advice | None:
    draft = measured.draft
    if draft is None:
        return None
    signs = []
    if draft.alone_high > BUSY_SPREAD * draft.alone:
        signs.append(f"one token in ten takes {_ms(draft.alone_high)} or more, where {_ms(draft.alone)} is usual")
    if draft.cpu_share < BUSY_CPU_SHARE:
        signs.append(f"only {draft.cpu_share:.0%} of the time was spent computing")
    if draft.streaming > BUSY_STREAMING * draft.alone:
        signs.append(f"{_ms(draft.streaming)} a token while text streams, {_ms(draft.alone)} without")
    if not signs:
        return None
    here, undisturbed = forecast(measured), forecast(measured, draft=draft.alone)
    gains = here is not None and undisturbed is not None and undisturbed.run_ahead > PAYS * here.run_ahead
    brings = f"; undisturbed it would bring about {_speed(undisturbed)}" if gains else ""
    leave = (
        f"give drafting fewer threads than {draft.threads}" if draft.threads > 1 else "leave drafting a core of its own"
    )
    return Advice(
        "warning",
        f"the device's cores are busy with something else while it drafts: {'; '.join(signs)}",
        f"close what else runs, or {leave}{brings}",
    )


# --- the network and the verifier -------------------------------------------------------------------------------------


def _far(measured: Measured) -> Advice | None:
    steps = measured.rtt / measured.step
    if steps < FAR or measured.rtt < NEAR:
        return None
    here = forecast(measured)
    finding = f"the round trip decides: {_ms(measured.rtt)} is {steps:.1f} target steps of {_ms(measured.step)}"
    if here is None:
        return Advice("note", finding, "without a draft that delays the first token alone; a nearer region helps there")
    nearest = min(NEARER, measured.rtt / 2)
    near = forecast(measured, rtt=nearest)
    gains = here.run_ahead - 1
    still = f"a draft still gains about {gains:.0%}" if here.run_ahead >= PAYS else "a draft gains next to nothing here"
    helps = near is not None and near.run_ahead > here.run_ahead
    nearer = f"; a nearer region would bring about {_speed(near)} at {_ms(nearest)}" if helps else ""
    return Advice(
        "warning",
        finding,
        f"{still}{nearer}. Do not use the cost policy at this distance: a target that waits for drafts comes to about "
        f"{here.waiting:.1f}x",
    )


def _jitter(measured: Measured) -> Advice | None:
    if measured.jitter < max(STEADY_JITTER, JITTER_STEPS * measured.step):
        return None
    slow = forecast(measured, rtt=measured.rtt + measured.jitter)
    costs = f" ({_speed(slow)} when it is slow, {_speed(forecast(measured))} else)" if slow is not None else ""
    return Advice(
        "warning",
        f"the network is unsteady: a round trip is {_ms(measured.rtt)}, but one in ten takes at least "
        f"{_ms(measured.jitter)} more",
        f"use a wired or less busy network; late drafts cost speed{costs}, never text",
    )


def _slow_frames(measured: Measured) -> Advice | None:
    draft = measured.draft
    if draft is None or draft.stream_rtt is None:
        return None
    later = draft.stream_rtt - measured.rtt
    if later < SLOW_FRAMES_LEAST or draft.stream_rtt < SLOW_FRAMES * measured.rtt:
        return None
    return Advice(
        "note",
        f"frames take {_ms(draft.stream_rtt)} there and back, pings {_ms(measured.rtt)}: a slow uplink, or a busy "
        f"machine at either end; drafting sends {draft.bytes_up_per_second / 1000:.1f} kB a second",
        "if the uplink has little more than that to give, send less: a smaller look_ahead; else see what else runs",
    )


def _dear_steps(measured: Measured) -> Advice | None:
    if measured.draft is None or measured.slope < DEAR_TOKEN:
        return None
    return Advice(
        "note",
        f"drafts make the target's steps long: each draft token in a step costs {measured.slope:.0%} of a step more",
        "if the target is not in bfloat16 yet, serve it so, or with more threads; or see what else keeps the "
        "verifier's machine busy",
    )


def _shared_verifier(measured: Measured) -> Advice | None:
    if measured.step_high <= SHARED_VERIFIER * measured.step:
        return None
    return Advice(
        "note",
        f"the target's steps vary: {_ms(measured.step)} usually, one in ten {_ms(measured.step_high)} or more; other "
        "streams share it, or its machine is busy",
        "take these figures as a moment's, and run this again at another time",
    )


def _sampled(measured: Measured) -> Advice | None:
    if measured.draft is None:
        return None
    return Advice(
        "note",
        "all of this was measured with greedy answers",
        "above temperature 0 a draft is right a little less often, the more so the higher it is; expect a little less",
    )


_RULES: tuple[_Rule, ...] = (
    _unusable,
    _no_draft,
    _slow_draft,
    _seldom_right,
    _far,
    _jitter,
    _busy,
    _fast_target,
    _shortfall,
    _slow_frames,
    _dear_steps,
    _shared_verifier,
    _weak_task,
    _sampled,
)


# --- words ------------------------------------------------------------------------------------------------------------


def _typical(measured: Measured, draft: float) -> Forecast | None:
    return forecast(measured, draft=draft, rights=typical_rights(TYPICAL_SHARE))


def _speed(predicted: Forecast | None) -> str:
    """One digit behind the point: the predictions rest on few tokens."""
    return f"{predicted.run_ahead:.1f}x" if predicted is not None else "nothing known"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"
