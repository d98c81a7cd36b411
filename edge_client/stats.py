"""What one generation cost and gained: counters only; the ratios derived from them live here and nowhere else."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

__all__ = ["Stats"]


@dataclass(slots=True, kw_only=True)
class Stats:
    """Counters of one generation, over all the connections that it took.

    ``drafted``, ``accepted``, ``run_ahead`` and ``target_passes`` are the verifier's own counts, told at the end of a
    stream. A verifier that is lost tells nothing: for its part of the answer they are the client's count of what
    arrived, which knows nothing of work that was lost with it.

    Attributes:
        committed: tokens that a verifier committed and that were delivered.
        unverified: tokens delivered that are the draft's alone.
        reconnects: connections that took the generation up again after another was lost.
        rounds: COMMIT frames received.
        drafted: draft tokens the verifier tested.
        accepted: draft tokens accepted and committed.
        accepted_by_position: entry i counts rounds in which at least i + 1 draft tokens were accepted.
        last_accepted: draft tokens accepted in the last round.
        agreed: delivered tokens that the device's path held at that moment, run-ahead tokens included.
        sent_tokens: draft tokens sent, tested or not.
        sent_frames: DRAFT frames they were sent in.
        paths: paths of which something was sent.
        run_ahead: tokens the verifier committed in steps that had no draft.
        target_passes: target steps this stream took part in.
        bytes_up, bytes_down: of WebSocket frames, headers included, prompt and handshake excluded.
        draft_steps, draft_seconds: drafting steps on the device, and the wall time they took.
        draft_cpu_seconds: CPU time of drafting.
        target_seconds: time the verifier reported for this stream's steps.
        queued_seconds: time drafts waited for a step.
        rtt_seconds: every measured round trip.
        ttft_seconds: from the call to the first token; None before it.
        total_seconds: from the call to the end.
    """

    committed: int = 0
    unverified: int = 0
    reconnects: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    last_accepted: int = 0
    agreed: int = 0
    sent_tokens: int = 0
    sent_frames: int = 0
    paths: int = 0
    run_ahead: int = 0
    target_passes: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    draft_steps: int = 0
    draft_seconds: float = 0.0
    draft_cpu_seconds: float = 0.0
    target_seconds: float = 0.0
    queued_seconds: float = 0.0
    rtt_seconds: list[float] = field(default_factory=list)
    ttft_seconds: float | None = None
    total_seconds: float = 0.0

    def count_accepted(self, accepted: int) -> None:
        """Record a round in which ``accepted`` draft tokens passed."""
        self.accepted += accepted
        self.last_accepted = accepted
        while len(self.accepted_by_position) < accepted:
            self.accepted_by_position.append(0)
        for position in range(accepted):
            self.accepted_by_position[position] += 1

    def count_last(self, accepted: int) -> None:
        """Correct the last round by the verifier's total: a draft token that ends the answer is accepted too,
        though it travels as the round's own token.
        """
        if accepted == self.accepted + 1:
            self.accepted = accepted
            if self.last_accepted == len(self.accepted_by_position):
                self.accepted_by_position.append(0)
            self.accepted_by_position[self.last_accepted] += 1

    # --- ratios -------------------------------------------------------------------------------------------------

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def target_passes_per_token(self) -> float:
        """Target passes for one committed token; 1 is what plain streaming costs."""
        return self.target_passes / self.committed if self.committed else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Committed tokens for one target pass."""
        return self.committed / self.target_passes if self.target_passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Delivered tokens a second after the first one arrived."""
        seconds, delivered = self.total_seconds - (self.ttft_seconds or 0.0), self.committed + self.unverified
        return (delivered - 1) / seconds if delivered > 1 and seconds > 0 else 0.0

    @property
    def bytes_per_token(self) -> float:
        """Bytes both ways for one committed token."""
        return (self.bytes_up + self.bytes_down) / self.committed if self.committed else 0.0

    @property
    def draft_ms_per_token(self) -> float:
        """Milliseconds of device time for one drafted token."""
        return 1000 * self.draft_seconds / self.draft_steps if self.draft_steps else 0.0

    @property
    def cpu_seconds_per_token(self) -> float:
        """Device CPU seconds of drafting for one committed token."""
        return self.draft_cpu_seconds / self.committed if self.committed else 0.0

    @property
    def median_rtt(self) -> float | None:
        """Median measured round trip in seconds; None before the first."""
        ordered = sorted(self.rtt_seconds)
        return ordered[len(ordered) // 2] if ordered else None

    def to_dict(self) -> dict[str, object]:
        """Counters and ratios, for ``--json``."""
        ratios = [name for name, value in vars(type(self)).items() if isinstance(value, property)]
        return {**asdict(self), **{name: getattr(self, name) for name in ratios}}
