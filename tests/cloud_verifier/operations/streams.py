"""Streams as the engine would tell of them, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftwire.cloud_verifier.engine.observer import CommitReport, Observer, StepReport
from draftwire.cloud_verifier.engine.speculation import Speculation
from draftwire.cloud_verifier.engine.stream import Owner, VerifierStream
from draftwire.cloud_verifier.engine.tenant import Tenant
from draftwire.cloud_verifier.targets.target import Block, TargetInfo
from draftwire.protocol.messages import Message, Open
from draftwire.protocol.sampling import SamplingParams

INFO = TargetInfo(
    name="tiny",
    vocabulary_size=24,
    logits_size=24,
    max_context=1000,
    eos_ids=(2,),
    fingerprint=bytes(16),
    dtype="bfloat16",
    device="cpu",
)


class Client(Owner):
    """Whoever opened a stream; hears nothing."""

    def __init__(self, *, tenant: str = "acme", route: str = "chat", request_id: str = "r-1") -> None:
        self.tenant = Tenant(name=tenant)
        self.route = route
        self.request_id = request_id

    def deliver(self, messages: Sequence[Message]) -> None:
        raise AssertionError(messages)


def stream_of(owner: Owner | None = None, *, opened_at: float = 100.0, **options: Any) -> VerifierStream:
    """A stream of three prompt tokens, whose client drafts."""
    speculation = options.pop("speculation", Speculation.ON)
    fields = {
        "stream": 1,
        "token_ids": (1, 7, 3),
        "prompt_length": 3,
        "params": SamplingParams(),
        "max_tokens": 50,
        "seed": 5,
        "drafting": True,
        **options,
    }
    request = Open(**fields)
    return VerifierStream(
        owner=owner or Client(),
        request=request,
        sequence=list(request.token_ids),
        opened_at=opened_at,
        slot=1,
        speculation=speculation,
    )


def commit(observer: Observer, stream: VerifierStream, at: float, *, drafted: int = 0, accepted: int = 0) -> None:
    """A step's outcome for a stream: as the engine does, first counted in it and then told."""
    committed = 1 if stream.speculation is Speculation.SHADOW else accepted + 1
    counters = stream.counters
    counters.committed += committed
    counters.drafted += drafted
    counters.accepted += accepted
    counters.target_passes += 1
    run_ahead = stream.drafting and not drafted
    counters.run_ahead += committed if run_ahead else 0
    report = CommitReport(at=at, drafted=drafted, accepted=accepted, committed=committed, run_ahead=run_ahead)
    observer.committed(stream, report)


def step_of(*, prompts: int, drafts: int, streams: int, seconds: float = 0.02) -> StepReport:
    """A step of so many streams, each with one token of its own beside ``prompts`` and ``drafts`` in all."""
    blocks = [Block(index, 0, [1]) for index in range(1, streams)]
    blocks.append(Block(streams, 0, [1] * (1 + prompts + drafts)))
    return StepReport(
        started=0.0,
        seconds=seconds,
        target_seconds=seconds / 2,
        blocks=blocks,
        prompt_tokens=prompts,
        draft_tokens=drafts,
    )
