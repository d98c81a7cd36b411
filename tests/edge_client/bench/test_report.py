from __future__ import annotations

from collections.abc import Callable

from draftwire.edge_client.bench.outcome import Outcome
from draftwire.edge_client.bench.report import report

OutcomeMaker = Callable[..., Outcome]
REFERENCES = [
    {
        "temperature": 0.0,
        "generate": {"tokens_per_second": 36.4, "ttft_ms": 50.0, "tokens": 40},
        "assisted": {"tokens_per_second": 15.6, "ttft_ms": 104.0, "tokens": 40},
        "assistant": "torch model in bfloat16 with the draft's weights",
    }
]

GOLDEN = """\
Speed, temperature 0, 1 prompt

RTT ms  mode          tokens/s   ratio      quartiles  least to most  predicted  reached
    20  cloud_only        25.0   1.00x   1.00 to 1.00   1.00 to 1.00          -        -
        draftwire         50.0   2.00x   2.00 to 2.00   2.00 to 2.00      1.00x     200%
   100  cloud_only        25.0   1.00x   1.00 to 1.00   1.00 to 1.00          -        -
        draftwire         50.0   2.00x   2.00 to 2.00   2.00 to 2.00      1.00x     200%
Ratio: speed over cloud-only, geometric mean over the prompts, then its spread. Predicted: from the
step, draft time and round trip measured here, and where the draft is right. Reached: the share of
that.

Latency and cost, temperature 0, 1 prompt

RTT ms  mode           TTFT   TPOT  ITL p50   p95   p99   passes  accepted  bytes up/down   CPU ms
    20  cloud_only      100   40.0       40    40    40     1.00         -         0 / 10      0.0
        draftwire       100   20.0       40    40    40     0.60      0.50         20 / 8     10.0
   100  cloud_only      100   40.0       40    40    40     1.00         -         0 / 10      0.0
        draftwire       100   20.0       40    40    40     0.60      0.50         20 / 8     10.0
Milliseconds. TTFT: to the first token; TPOT: a token; ITL: from commit to commit. For a committed
token: target passes, bytes, device CPU of drafting. Accepted: share of the draft tokens tested.

Where a round goes, temperature 0, 1 prompt

RTT ms  mode           round   draft    wire   queue  target    +1    +2    +3    +4    +6    +8
    20  cloud_only      40.0     0.0       -     0.0    30.0     -     -     -     -     -     -
        draftwire       40.0    20.0    60.0     3.0    33.0  0.50  0.50  0.00  0.00  0.00  0.00
   100  cloud_only      40.0     0.0       -     0.0    30.0     -     -     -     -     -     -
        draftwire       40.0    20.0    60.0     3.0    33.0  0.50  0.50  0.00  0.00  0.00  0.00
Milliseconds from commit to commit, and means of its parts, which overlap except in serial mode. +N:
share of the rounds with a draft in which at least N of its tokens were accepted.

Hugging Face on the target's core, no network, the same prompts

temperature  way                   tokens/s  TTFT ms
          0  generate                  36.4       50
             assisted generation       15.6      104
Assistant: torch model in bfloat16 with the draft's weights.

Interrupted: RTT 100 ms, temperature 0, after 1 prompt
"""


def test_the_tables(outcome: OutcomeMaker) -> None:
    shown = [outcome(rtt_ms=20), outcome(rtt_ms=100, complete=False)]
    assert report(shown, REFERENCES) == GOLDEN.rstrip("\n")


def test_no_line_is_over_100_columns(outcome: OutcomeMaker) -> None:
    text = report([outcome(rtt_ms=10000, temperature=temperature) for temperature in (0.0, 0.7)], REFERENCES)
    assert max(map(len, text.splitlines())) <= 100
    assert "temperature 0.7" in text


def test_what_failed_is_told(outcome: OutcomeMaker) -> None:
    failed = Outcome(condition=outcome().condition, failure="the verifier left")
    assert report([failed]) == "Failed: RTT 50 ms, temperature 0: the verifier left"


def test_nothing_is_no_text() -> None:
    assert report([]) == ""
