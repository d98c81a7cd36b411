"""Spans as OpenTelemetry's own exporter gets them."""

from __future__ import annotations

import socket
import threading

import opentelemetry.semconv._incubating.attributes.gen_ai_attributes as conventions
import pytest
from draftwire.cloud_verifier.operations.tracing import Tracing, exporter_from_environment
from draftwire.protocol.errors import InvalidParameterError
from draftwire.protocol.sampling import SamplingParams
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from .collector import collector
from .streams import Client, commit, stream_of

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


class Traced:
    """A tracing observer, and the spans it has made."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.observer = Tracing(model="tiny", exporter=self._exporter)

    def spans(self) -> dict[str, ReadableSpan]:
        """By name; sends what waits."""
        self.observer.close()
        spans = self._exporter.get_finished_spans()
        assert len({span.name for span in spans}) == len(spans)
        return {span.name: span for span in spans}


@pytest.fixture
def traced() -> Traced:
    return Traced()


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_a_stream_is_a_span_with_its_phases_as_children(traced: Traced) -> None:
    stream = stream_of(opened_at=100.0, params=SamplingParams(temperature=0.7, top_p=0.9, top_k=40))
    traced.observer.opened(stream, waited=0.5)
    commit(traced.observer, stream, 102.0, drafted=4, accepted=2)
    commit(traced.observer, stream, 103.0)
    traced.observer.ended(stream, "stop")
    spans = traced.spans()
    assert spans.keys() == {"text_completion tiny", "queue", "prefill", "decode"}
    whole = spans["text_completion tiny"]
    assert whole.attributes is not None
    assert dict(whole.attributes) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "draftwire",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.temperature": 0.7,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 40,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.seed": 5,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 2.0,
        "draftwire.request_id": "r-1",
        "draftwire.tenant": "acme",
        "draftwire.route": "chat",
        "draftwire.stream": 1,
        "draftwire.speculation": "on",
        "draftwire.drafted_tokens": 4,
        "draftwire.accepted_tokens": 2,
        "draftwire.run_ahead_tokens": 1,
        "draftwire.target_passes": 2,
    }
    assert (whole.kind, whole.status.status_code, whole.parent) == (SpanKind.SERVER, StatusCode.UNSET, None)
    (first,) = whole.events
    assert first.name == "first_token"
    assert whole.start_time is not None
    assert (first.timestamp - whole.start_time) / 1e9 == pytest.approx(2.0)
    for name, took in {"queue": 0.5, "prefill": 1.5, "decode": 1.0}.items():
        assert seconds(spans[name]) == pytest.approx(took)
        parent = spans[name].parent
        assert parent is not None
        assert parent.span_id == whole.context.span_id
    assert spans["queue"].start_time == whole.start_time
    assert spans["decode"].start_time == first.timestamp


def test_names_of_attributes_are_those_of_the_conventions(traced: Traced) -> None:
    stream = stream_of(params=SamplingParams(top_k=3))
    traced.observer.opened(stream, waited=0.0)
    commit(traced.observer, stream, 101.0)
    traced.observer.ended(stream, "length")
    known = {value for name, value in vars(conventions).items() if name.startswith("GEN_AI_")}
    attributes = traced.spans()["text_completion tiny"].attributes
    used = {name for name in attributes or {} if name.startswith("gen_ai.")}
    assert len(used) == 16
    assert used <= known


def test_an_error_is_told_as_one(traced: Traced) -> None:
    stream = stream_of()
    traced.observer.opened(stream, waited=0.0)
    traced.observer.ended(stream, "internal")
    spans = traced.spans()
    whole = spans["text_completion tiny"]
    assert spans.keys() == {"text_completion tiny", "prefill"}
    assert whole.status.status_code is StatusCode.ERROR
    assert whole.attributes is not None
    assert whole.attributes["error.type"] == "internal"
    assert "gen_ai.response.finish_reasons" not in whole.attributes
    assert whole.events == ()


def test_a_client_that_left_is_no_error(traced: Traced) -> None:
    stream = stream_of()
    traced.observer.opened(stream, waited=0.0)
    traced.observer.ended(stream, "left")
    assert traced.spans()["text_completion tiny"].status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("header", [f"00-{TRACE}-{PARENT}-01", "nonsense", ""])
def test_it_belongs_to_the_trace_of_whoever_asked(traced: Traced, header: str) -> None:
    client = Client()
    client.traceparent = header  # type: ignore[attr-defined]
    stream = stream_of(client)
    traced.observer.opened(stream, waited=0.0)
    traced.observer.ended(stream, "stop")
    parent = traced.spans()["text_completion tiny"].parent
    if header.startswith("00"):
        assert parent is not None
        assert (f"{parent.trace_id:x}", f"{parent.span_id:x}") == (TRACE.lstrip("0"), PARENT)
    else:
        assert parent is None


def test_a_trace_that_is_not_sampled_is_not_made(traced: Traced) -> None:
    client = Client()
    client.traceparent = f"00-{TRACE}-{PARENT}-00"  # type: ignore[attr-defined]
    stream = stream_of(client)
    traced.observer.opened(stream, waited=0.5)
    traced.observer.ended(stream, "stop")
    assert traced.spans() == {}


def test_the_largest_seed_does_not_break_it(traced: Traced) -> None:
    stream = stream_of(seed=2**64 - 1)
    traced.observer.opened(stream, waited=0.0)
    traced.observer.ended(stream, "stop")
    attributes = traced.spans()["text_completion tiny"].attributes
    assert attributes is not None
    assert "gen_ai.request.seed" not in attributes


def test_the_service_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, told in {"": "draftwire-verifier", "mine": "mine"}.items():
        monkeypatch.setenv("OTEL_SERVICE_NAME", given)
        resource = Tracing(model="tiny", exporter=None)._provider.resource
        assert resource.attributes["service.name"] == told
        assert resource.attributes["service.version"]


def test_nothing_is_kept_of_streams_that_are_over(traced: Traced) -> None:
    stream = stream_of()
    traced.observer.opened(stream, waited=0.0)
    commit(traced.observer, stream, 101.0)
    traced.observer.ended(stream, "stop")
    assert len(traced.observer._lives) == 0


# --- where they go ------------------------------------------------------------------------------------------------


def test_exporters_by_environment() -> None:
    otlp = exporter_from_environment({})
    assert isinstance(otlp, OTLPSpanExporter)
    otlp.shutdown()
    assert isinstance(exporter_from_environment({"OTEL_TRACES_EXPORTER": "console"}), ConsoleSpanExporter)
    assert exporter_from_environment({"OTEL_TRACES_EXPORTER": "none"}) is None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
    ],
)
def test_what_is_not_at_hand_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"^{variable}: '{value}' is not at hand; use "):
        exporter_from_environment({variable: value})


def test_spans_reach_a_collector_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as (url, taken):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        tracing, stream = Tracing(model="tiny", exporter=exporter_from_environment()), stream_of()
        tracing.opened(stream, waited=0.5)
        commit(tracing, stream, 101.0)
        tracing.ended(stream, "stop")
        tracing.close()
        names = [
            span.name
            for request in taken
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
    assert sorted(names) == ["prefill", "queue", "text_completion tiny"]


@pytest.mark.timeout(20)
def test_a_collector_that_does_not_answer_does_not_keep_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwire.cloud_verifier.operations.tracing._CLOSE_SECONDS", 0.05)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1000")
    answers = threading.Event()
    with collector(held=answers) as (url, _):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        tracing = Tracing(model="tiny", exporter=exporter_from_environment())
        for number in range(1, 5000):  # more than are kept waiting
            stream = stream_of(stream=number)
            tracing.opened(stream, waited=0.0)
            tracing.ended(stream, "stop")
        tracing.close()
        assert not answers.is_set()
        answers.set()
        for thread in threading.enumerate():
            if thread.name == "draftwire-traces":  # what it still has to say must not be said in another test
                thread.join()


def test_a_collector_that_is_not_there_does_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
    tracing = Tracing(model="tiny", exporter=exporter_from_environment())
    for number in range(1, 3000):
        stream = stream_of(stream=number)
        tracing.opened(stream, waited=0.0)
        tracing.ended(stream, "stop")
    tracing.close()
    assert 0 < len(caplog.records) < 20
