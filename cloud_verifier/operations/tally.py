"""What the engine tells, counted: an observer that turns events into the numbers that metrics are made of."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from ...protocol.errors import ErrorCode
from ..engine.observer import CommitReport, Observer, StepReport
from ..engine.stream import Owner, VerifierStream
from .families import ENGINE_COUNTERS, ENGINE_HISTOGRAMS, OUTCOMES, SPECULATIONS
from .instruments import Counts, Distribution, Family, Labels, Lengths, Spread
from .lifespans import Lifespans
from .shares import Shares

__all__ = ["Tally", "speculation_of"]

_BY_CODE = tuple((code.name.lower(),) for code in ErrorCode)
_BY_SPECULATION = tuple((value,) for value in SPECULATIONS)


def speculation_of(stream: VerifierStream) -> str:
    """What becomes of a stream's drafts, as the label ``speculation``; ``off`` where its client does not draft."""
    return stream.speculation.value if stream.drafting else "off"


class Tally(Observer):
    """Counts, in the engine's thread; read from any.

    One lock guards all numbers, so that those read together belong together: tokens accepted by position sum up to
    tokens accepted, whatever the moment.

    Args:
        by_key: count each key's share as well.
    """

    def __init__(self, *, by_key: bool = False) -> None:
        self._lock = threading.Lock()
        self._lives = Lifespans()
        self._counts: list[Counts | Lengths] = []
        self._distributions: list[Distribution] = []
        self._count_streams()
        self._count_steps()
        self._time_streams()
        self._shares = [Shares("route", lambda owner: owner.route)]
        if by_key:
            self._shares.append(Shares("key", lambda owner: owner.tenant.name))

    def _count_streams(self) -> None:
        self._drafts = self._counter("spec_decode_num_drafts", _BY_SPECULATION)
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", _BY_SPECULATION)
        self._accepted = self._counter("spec_decode_num_accepted_tokens", _BY_SPECULATION)
        self._drafted_lengths = self._lengths("spec_decode_num_draft_tokens_per_pos")
        self._accepted_lengths = self._lengths("spec_decode_num_accepted_tokens_per_pos")
        self._prompt_tokens = self._counter("prompt_tokens", _BY_SPECULATION)
        self._generated = self._counter("generation_tokens", _BY_SPECULATION)
        self._run_ahead = self._counter("run_ahead_tokens", _BY_SPECULATION)
        self._succeeded = self._counter("request_success", [(outcome,) for outcome in OUTCOMES])
        self._failed = self._counter("request_failures", _BY_CODE)
        self._rejected = self._counter("requests_rejected", _BY_CODE)
        self._switches = self._counter("speculation_switches", [])

    def _count_steps(self) -> None:
        self._preemptions = self._counter("num_preemptions")
        self._recomputed = self._counter("recomputed_blocks")
        self._target_tokens = self._counter("target_tokens", [("prompt",), ("draft",), ("decode",)])
        self._target_failures = self._counter("target_failures")
        self._step_seconds = self._distribution("step_seconds")
        self._target_seconds = self._distribution("target_step_seconds")
        self._step_tokens = self._distribution("step_tokens")
        self._step_streams = self._distribution("step_streams")

    def _time_streams(self) -> None:
        self._first_token = self._distribution("time_to_first_token_seconds", _BY_SPECULATION)
        self._gaps = self._distribution("inter_token_latency_seconds", _BY_SPECULATION)
        self._per_token = self._distribution("request_time_per_output_token_seconds", _BY_SPECULATION)
        self._end_to_end = self._distribution("e2e_request_latency_seconds", _BY_SPECULATION)
        self._queued = self._distribution("request_queue_time_seconds")
        self._prefill = self._distribution("request_prefill_time_seconds")
        self._decode = self._distribution("request_decode_time_seconds")
        self._prompt_sizes = self._distribution("request_prompt_tokens")
        self._answer_sizes = self._distribution("request_generation_tokens")

    def _counter(self, name: str, known: tuple[Labels, ...] | list[Labels] = ((),)) -> Counts:
        counts = Counts(ENGINE_COUNTERS[name], known)
        self._counts.append(counts)
        return counts

    def _lengths(self, name: str) -> Lengths:
        lengths = Lengths(ENGINE_COUNTERS[name], SPECULATIONS)
        self._counts.append(lengths)
        return lengths

    def _distribution(self, name: str, known: tuple[Labels, ...] = ((),)) -> Distribution:
        distribution = Distribution(ENGINE_HISTOGRAMS[name], known)
        self._distributions.append(distribution)
        return distribution

    # --- for whoever reads --------------------------------------------------------------------------------------

    def read(self) -> tuple[list[tuple[Family, Mapping[Labels, float]]], list[tuple[Family, Mapping[Labels, Spread]]]]:
        """All counters and all distributions, as of one moment."""
        with self._lock:
            counts = [*self._counts, *(each for shares in self._shares for each in shares.counts)]
            return (
                [(each.family, each.values()) for each in counts],
                [(each.family, each.values()) for each in self._distributions],
            )

    # --- from the service ---------------------------------------------------------------------------------------

    def rejected(self, reason: str) -> None:
        """Somebody was refused, for one of a few reasons that are fixed in the code."""
        with self._lock:
            self._rejected.add(1, reason)

    def speculation_switched(self, route: str, to: str, reason: str) -> None:
        """The guardrail of ``route``, which must be one of those configured, has changed its state."""
        with self._lock:
            self._switches.add(1, route or "default", to, reason)

    # --- from the engine, in its thread -------------------------------------------------------------------------

    def refused(self, owner: Owner, code: str) -> None:
        """See :class:`Observer`."""
        del owner
        self.rejected(code)

    def opened(self, stream: VerifierStream, *, waited: float) -> None:
        """See :class:`Observer`."""
        with self._lock:
            self._lives.begin(stream, waited=waited)
            self._queued.add(waited)
            self._prompt_tokens.add(stream.request.prompt_length, speculation_of(stream))

    def committed(self, stream: VerifierStream, report: CommitReport) -> None:
        """See :class:`Observer`."""
        label = speculation_of(stream)
        with self._lock:
            self._generated.add(report.committed, label)
            if report.drafted:
                self._drafts.add(1, label)
                self._draft_tokens.add(report.drafted, label)
                self._accepted.add(report.accepted, label)
                self._drafted_lengths.add(report.drafted, label)
                self._accepted_lengths.add(report.accepted, label)
            elif report.run_ahead:
                self._run_ahead.add(report.committed, label)
            life = self._lives.of(stream)
            gap = life.commit(report.at)
            if gap is not None:
                self._gaps.add(gap, label)
            else:
                self._first_token.add(report.at - life.opened_at, label)
                self._prefill.add(report.at - life.placed_at)

    def stepped(self, report: StepReport) -> None:
        """See :class:`Observer`."""
        tokens = report.tokens
        with self._lock:
            self._step_seconds.add(report.seconds)
            self._target_seconds.add(report.target_seconds)
            self._step_tokens.add(tokens)
            self._step_streams.add(len(report.blocks))
            self._target_tokens.add(report.prompt_tokens, "prompt")
            self._target_tokens.add(report.draft_tokens, "draft")
            self._target_tokens.add(tokens - report.prompt_tokens - report.draft_tokens, "decode")

    def failed_step(self, error: Exception) -> None:
        """See :class:`Observer`."""
        del error
        with self._lock:
            self._target_failures.add(1)

    def preempted(self, stream: VerifierStream) -> None:
        """See :class:`Observer`."""
        del stream
        with self._lock:
            self._preemptions.add(1)

    def recomputed(self, stream: VerifierStream) -> None:
        """See :class:`Observer`."""
        del stream
        with self._lock:
            self._recomputed.add(1)

    def ended(self, stream: VerifierStream, outcome: str) -> None:
        """See :class:`Observer`."""
        label, committed = speculation_of(stream), stream.counters.committed
        with self._lock:
            life = self._lives.end(stream)
            if outcome in OUTCOMES:
                self._succeeded.add(1, outcome)
            else:
                self._failed.add(1, outcome)
            for shares in self._shares:
                shares.ended(stream, outcome)
            if committed > 1:
                self._per_token.add(life.decode_seconds / (committed - 1), label)
            if outcome in ("stop", "length") and life.last_at is not None:
                self._end_to_end.add(life.last_at - life.opened_at, label)
                self._decode.add(life.decode_seconds)
                self._prompt_sizes.add(stream.request.prompt_length)
                self._answer_sizes.add(committed)
