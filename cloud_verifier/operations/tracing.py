"""The door to OpenTelemetry: a span for each stream, with what it waited for as children.

Spans are made when a stream ends, with the times it had: nothing is done for them while it runs. Where they go is set
by the environment variables that OpenTelemetry defines.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from importlib import metadata
from itertools import pairwise

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from ...protocol.errors import InvalidParameterError
from ..engine.observer import CommitReport, Observer
from ..engine.stream import VerifierStream
from .families import OUTCOMES
from .lifespans import Life, Lifespans
from .tally import speculation_of

__all__ = ["Tracing", "exporter_from_environment"]

_CLOSE_SECONDS = 5.0
_MOST_SEED = (1 << 63) - 1


def exporter_from_environment(environment: Mapping[str, str] = os.environ) -> SpanExporter | None:
    """Where spans go: ``OTEL_TRACES_EXPORTER`` is ``otlp`` (default, over HTTP), ``console`` or ``none``.

    Raises:
        InvalidParameterError: it asks for what is not here.
    """
    name = environment.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if name == "none":
        return None
    if name == "console":
        return ConsoleSpanExporter(out=sys.stdout)
    if name != "otlp":
        raise InvalidParameterError("OTEL_TRACES_EXPORTER", f"{name!r} is not at hand; use otlp, console or none")
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = environment.get(variable, "").strip()
        if protocol and protocol != "http/protobuf":
            raise InvalidParameterError(variable, f"{protocol!r} is not at hand; use http/protobuf, on port 4318")
    return OTLPSpanExporter()


class Tracing(Observer):
    """Makes a span of each stream that was opened.

    Args:
        model: name of the target.
        exporter: where spans go; None for nowhere.
    """

    def __init__(self, *, model: str, exporter: SpanExporter | None) -> None:
        self._model = model
        self._lives = Lifespans()
        version = metadata.version("draftwire")
        resource = Resource.create({SERVICE_VERSION: version})
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):  # nobody has named it
            resource = resource.merge(Resource({SERVICE_NAME: "draftwire-verifier"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        if exporter is not None:
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("draftwire.verifier", version)
        self._propagator = TraceContextTextMapPropagator()

    def close(self) -> None:
        """Send what waits, for a few seconds: a collector that does not answer must not keep the service."""
        closing = threading.Thread(target=self._provider.shutdown, name="draftwire-traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)

    # --- from the engine, in its thread -------------------------------------------------------------------------

    def opened(self, stream: VerifierStream, *, waited: float) -> None:
        """See :class:`Observer`."""
        self._lives.begin(stream, waited=waited)

    def committed(self, stream: VerifierStream, report: CommitReport) -> None:
        """See :class:`Observer`."""
        self._lives.of(stream).commit(report.at)

    def ended(self, stream: VerifierStream, outcome: str) -> None:
        """See :class:`Observer`."""
        life, now = self._lives.end(stream), time.monotonic()
        wall = time.time_ns() - round(now * 1e9)  # what turns monotonic seconds into the time of day

        def at(seconds: float) -> int:
            return wall + round(seconds * 1e9)

        span = self._tracer.start_span(
            f"text_completion {self._model}",
            context=self._propagator.extract({"traceparent": stream.owner.traceparent}),
            kind=SpanKind.SERVER,
            attributes=_attributes(stream, life, outcome, model=self._model),
            start_time=at(life.opened_at),
        )
        if span.is_recording():
            self._children(span, {name: at(seconds) for name, seconds in _phases(life, now).items()})
            if life.first_at is not None:
                span.add_event("first_token", timestamp=at(life.first_at))
            if outcome not in OUTCOMES:
                span.set_attribute("error.type", outcome)
                span.set_status(Status(StatusCode.ERROR, outcome))
        span.end(at(now))

    def _children(self, parent: Span, times: Mapping[str, int]) -> None:
        """Spans from each of ``times`` to the next."""
        context = set_span_in_context(parent)
        for (name, begun), (_, ended) in pairwise(times.items()):
            if ended > begun:
                self._tracer.start_span(name, context=context, start_time=begun).end(ended)


def _phases(life: Life, now: float) -> dict[str, float]:
    """When each phase began (monotonic seconds), and at last the end."""
    phases = {"queue": life.opened_at, "prefill": life.placed_at}
    if life.first_at is not None:
        phases["decode"] = life.first_at
    return {**phases, "end": now if life.first_at is None or life.last_at is None else life.last_at}


def _attributes(stream: VerifierStream, life: Life, outcome: str, *, model: str) -> dict[str, AttributeValue]:
    request, params, counters, owner = stream.request, stream.request.params, stream.counters, stream.owner
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "draftwire",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.frequency_penalty": params.frequency_penalty,
        "gen_ai.request.presence_penalty": params.presence_penalty,
        "gen_ai.usage.input_tokens": request.prompt_length,
        "gen_ai.usage.output_tokens": counters.committed,
        "draftwire.request_id": owner.request_id,
        "draftwire.tenant": owner.tenant.name,
        "draftwire.route": owner.route,
        "draftwire.stream": request.stream,
        "draftwire.speculation": speculation_of(stream),
        "draftwire.drafted_tokens": counters.drafted,
        "draftwire.accepted_tokens": counters.accepted,
        "draftwire.run_ahead_tokens": counters.run_ahead,
        "draftwire.target_passes": counters.target_passes,
    }
    if outcome in OUTCOMES:
        attributes["gen_ai.response.finish_reasons"] = [outcome]
    if params.top_k:
        attributes["gen_ai.request.top_k"] = params.top_k
    if request.seed <= _MOST_SEED:  # attributes are signed
        attributes["gen_ai.request.seed"] = request.seed
    if life.first_token_seconds is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = life.first_token_seconds
    return attributes
