"""The names and meanings of all metrics, in the vocabulary of vLLM where it has a word for it.

vLLM's ``vllm:`` becomes ``draftwire_``, as colons are for names that recording rules make. ``docs/metrics.md`` says the
same as this file, for readers of dashboards.
"""

from __future__ import annotations

from .instruments import Family, Kind

__all__ = [
    "ENGINE_COUNTERS",
    "ENGINE_GAUGES",
    "ENGINE_HISTOGRAMS",
    "OUTCOMES",
    "PREFIX",
    "ROUTE_STATES",
    "SHARES",
    "SPECULATIONS",
    "share_families",
]

PREFIX = "draftwire_"

SPECULATIONS = ("on", "off", "shadow")
"""Values of the label ``speculation``: what became of a stream's drafts. Off is also where a client does not draft."""

OUTCOMES = ("stop", "length", "cancelled", "left")
"""Values of the label ``finished_reason``."""

ROUTE_STATES = ("healthy", "tripped", "probing")
"""Values of the label ``state``: whether measured figures let drafts be used."""

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_WAIT_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_LIFE_SECONDS = (0.1, 0.3, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_STEP_STREAMS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)

_SPECULATION = ("speculation",)


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(name=name, kind=Kind.COUNTER, help=text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(name=name, kind=Kind.GAUGE, help=text, labels=labels)


def _histogram(name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Family:
    return Family(name=name, kind=Kind.HISTOGRAM, help=text, labels=labels, bounds=bounds)


ENGINE_COUNTERS = {
    family.name: family
    for family in (
        _counter("spec_decode_num_drafts", "Blocks of draft tokens that were verified.", *_SPECULATION),
        _counter("spec_decode_num_draft_tokens", "Draft tokens that were verified.", *_SPECULATION),
        _counter("spec_decode_num_accepted_tokens", "Draft tokens that passed.", *_SPECULATION),
        _counter(
            "spec_decode_num_draft_tokens_per_pos",
            "Draft tokens that were verified, by position in their block.",
            *_SPECULATION,
            "position",
        ),
        _counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens that passed, by position in their block.",
            *_SPECULATION,
            "position",
        ),
        _counter("prompt_tokens", "Prompt tokens of streams that were opened.", *_SPECULATION),
        _counter("generation_tokens", "Tokens that were committed.", *_SPECULATION),
        _counter("run_ahead_tokens", "Tokens committed without a draft, for clients that draft.", *_SPECULATION),
        _counter("request_success", "Streams that ended without an error.", "finished_reason"),
        _counter("request_failures", "Streams that ended with an error, by its code.", "reason"),
        _counter("requests_rejected", "Streams and calls that were refused, by the reason.", "reason"),
        _counter("num_preemptions", "Streams that gave their KV memory up and were computed again."),
        _counter("recomputed_blocks", "Blocks computed again without drafts, as their logits were not finite."),
        _counter("target_tokens", "Tokens that the target computed, by what they were.", "kind"),
        _counter("target_failures", "Steps in which the target failed."),
        _counter("speculation_switches", "Changes of a route's guardrail.", "route", "to", "reason"),
        _counter("prefix_cache_queries", "Prompt tokens that were looked for in the prefix cache."),
        _counter("prefix_cache_hits", "Prompt tokens that were found there."),
        _counter("config_reloads", "Reloads of the configuration, by how they went.", "outcome"),
        _counter("log_errors", "Log lines that could not be written."),
        _counter("log_dropped", "Log lines that were dropped as writing fell behind."),
    )
}

ENGINE_HISTOGRAMS = {
    family.name: family
    for family in (
        _histogram("time_to_first_token_seconds", "From OPEN to the first commit.", _WAIT_SECONDS, *_SPECULATION),
        _histogram("inter_token_latency_seconds", "Between commits of a stream.", _SECONDS, *_SPECULATION),
        _histogram(
            "request_time_per_output_token_seconds",
            "Of each stream, from first to last commit, a token.",
            _SECONDS,
            *_SPECULATION,
        ),
        _histogram("e2e_request_latency_seconds", "From OPEN to END.", _LIFE_SECONDS, *_SPECULATION),
        _histogram("request_queue_time_seconds", "Waiting for a place.", _WAIT_SECONDS),
        _histogram("request_prefill_time_seconds", "From a place to the first commit.", _WAIT_SECONDS),
        _histogram("request_decode_time_seconds", "From the first commit to the last.", _LIFE_SECONDS),
        _histogram("request_prompt_tokens", "Prompt tokens of a stream.", _TOKENS),
        _histogram("request_generation_tokens", "Committed tokens of a stream.", _TOKENS),
        _histogram("step_seconds", "A step with all that the engine does about it.", _SECONDS),
        _histogram("target_step_seconds", "The target's share of a step.", _SECONDS),
        _histogram("step_tokens", "Tokens that a step computed.", _STEP_TOKENS),
        _histogram("step_streams", "Streams that took part in a step.", _STEP_STREAMS),
    )
}

ENGINE_GAUGES = {
    family.name: family
    for family in (
        _gauge("num_requests_running", "Streams that have a place."),
        _gauge("num_requests_waiting", "Streams that wait for a place."),
        _gauge("kv_cache_usage_perc", "Share of the KV memory in use; 1 is all of it."),
        _gauge("kv_cache_used_bytes", "KV memory in use."),
        _gauge("kv_cache_limit_bytes", "KV memory that may be in use."),
        _gauge("prefix_cache_tokens", "Tokens in the prefix cache."),
        _gauge("connections", "Open WebSocket connections."),
        _gauge("speculation_state", "1 for the state that a route's guardrail is in.", "route", "state"),
        _gauge("draining", "1 while new streams are refused because the verifier shuts down."),
        _gauge("step_in_progress_seconds", "Age of the step in progress; 0 between steps."),
        _gauge("build_info", "Always 1; what this verifier is.", "version", "model", "dtype", "device"),
    )
}

SHARES = ("requests", "prompt_tokens", "generation_tokens", "draft_tokens", "accepted_tokens")


def share_families(party: str) -> dict[str, Family]:
    """What is counted for each ``party``, which is ``route`` or ``key``, when its streams end."""
    texts = {
        "requests": "Streams that have ended",
        "prompt_tokens": "Prompt tokens of streams that have ended",
        "generation_tokens": "Committed tokens of streams that have ended",
        "draft_tokens": "Verified draft tokens of streams that have ended",
        "accepted_tokens": "Accepted draft tokens of streams that have ended",
    }
    extra = {"requests": ("finished_reason",)}
    return {
        share: _counter(f"{party}_{share}", f"{texts[share]}, by {party}.", party, *extra.get(share, ()))
        for share in SHARES
    }
