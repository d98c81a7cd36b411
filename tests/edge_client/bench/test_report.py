from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from draftwire.edge_client.bench.conditions import Condition, Net
from draftwire.edge_client.bench.measure import Answer
from draftwire.edge_client.bench.modes import parse_modes
from draftwire.edge_client.bench.outcome import Collected, Outcome
from draftwire.edge_client.bench.report import WIDTH, report

AnswerMaker = Callable[..., Answer]
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
Target T, draft D
1 prompt (chat)

Speed, temperature 0

RTT ms  measured  mode         tokens/s  ratio     quartiles  least to most  predicted  of predicted
    20      50.0  cloud_only       25.0  1.00x             -              -          -             -
                  draftwire        50.0  2.00x             -              -      1.00x          200%
   100      50.0  cloud_only       25.0  1.00x             -              -          -             -
                  draftwire        50.0  2.00x             -              -      1.00x          200%
RTT ms: emulated, and the whole round trip as measured. Ratio: speed over cloud-only, geometric mean
over the prompts, then its spread. Predicted: what drafting without pause on one path gives (serial:
in rounds) by the step, draft time and round trip measured here, and where the draft is right. It is
no bound: of predicted may be over 100%.
cloud_only:  no draft; always run, as all others are compared with it
draftwire:   the default of every client: an adaptive look-ahead, and the target never waits

Latency and cost, temperature 0

                                       between commits ms  passes            bytes/token  CPU ms
RTT ms  mode         TTFT ms  TPOT ms     p50   p95   p99  /token  accepted      up/down  /token
    20  cloud_only       100     40.0      40    40    40    1.00         -       0 / 10     0.0
        draftwire        100     20.0      40    40    40    0.60      0.50       20 / 8    10.0
   100  cloud_only       100     40.0      40    40    40    1.00         -       0 / 10     0.0
        draftwire        100     20.0      40    40    40    0.60      0.50       20 / 8    10.0
TTFT: time to the first token; TPOT: time per token after the first. Passes of the target, bytes,
and the device's CPU time for drafting are for each committed token. Accepted: share of the draft
tokens tested.

Where a round goes, temperature 0

                                         ms, mean of a round   share with N or more accepted, +N
RTT ms  mode           round   draft    wire   queue  target    +1    +2    +3    +4    +6    +8
    20  cloud_only      40.0     0.0       -     0.0    30.0     -     -     -     -     -     -
        draftwire       40.0    20.0    60.0     3.0    33.0  0.50  0.50  0.00  0.00  0.00  0.00
   100  cloud_only      40.0     0.0       -     0.0    30.0     -     -     -     -     -     -
        draftwire       40.0    20.0    60.0     3.0    33.0  0.50  0.50  0.00  0.00  0.00  0.00
Round: from one commit to the next; its parts overlap except in serial mode. +N: share of the rounds
with a draft in which at least N of its tokens were accepted.

Hugging Face on the target's core, no network, the same prompts

temperature  way                   tokens/s  TTFT ms
          0  generate                  36.4       50
             assisted generation       15.6      104
Assistant: torch model in bfloat16 with the draft's weights.

Interrupted: RTT 100 ms, temperature 0, after 1 prompt
"""


def test_the_tables(outcome: OutcomeMaker) -> None:
    shown = [outcome(rtt_ms=20), outcome(rtt_ms=100, complete=False)]
    assert report(shown, REFERENCES, heading="Target T, draft D\n1 prompt (chat)") == GOLDEN.rstrip("\n")


def test_no_line_is_over_100_columns(outcome: OutcomeMaker) -> None:
    text = report([outcome(rtt_ms=10000, temperature=temperature) for temperature in (0.0, 0.7)], REFERENCES)
    assert max(map(len, text.splitlines())) <= WIDTH == 100
    assert "temperature 0.7" in text
    assert text.count("cloud_only:") == 1  # modes are explained once


def test_of_two_prompts_the_spread_is_shown_and_serial_accepts_no_more_than_it_drafts(
    plain: AnswerMaker, drafted: AnswerMaker
) -> None:
    answers = [plain(prompt=prompt) for prompt in ("chat-1", "code-1")]
    answers += [
        replace(drafted(prompt=prompt), mode="serial", variant=variant)
        for prompt in ("chat-1", "code-1")
        for variant in ("K=3", "K=6")
    ]
    condition = Condition(net=Net(rtt_ms=20), temperature=0.0)
    lines = report([Outcome.of(condition, parse_modes(["serial"]), Collected(answers=answers))]).splitlines()
    speed, _, round_ = (line for line in lines if line.lstrip().startswith("serial K=3"))
    assert speed.split()[2:] == ["50.0", "2.00x", *["2.00", "to", "2.00", "2.00", "to", "2.00", "-", "-"]]
    assert round_.split()[-6:] == ["0.50", "0.50", "0.00", "-", "-", "-"]


def test_what_failed_is_told(outcome: OutcomeMaker) -> None:
    failed = Outcome(condition=outcome().condition, failure="the verifier left")
    assert report([failed]) == "Failed: RTT 50 ms, temperature 0: the verifier left"


def test_nothing_is_no_text() -> None:
    assert report([]) == ""
