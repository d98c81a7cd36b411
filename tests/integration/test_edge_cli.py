"""The ``draftwire`` command, run as users run it: a process, its output, its exit status."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..grace import wait_for
from .running_verifier import RunningVerifier, running_verifier
from .table_bundle import right_table, write_bundle
from .table_targets import endless_table

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command left behind."""

    status: int
    out: str
    err: str

    def failed_in_one_line(self) -> bool:
        """Whether it failed the way commands should."""
        return self.err.startswith("draftwire: error: ") and self.err.count("\n") == 1 and "Traceback" not in self.err


async def draftwire(*arguments: str, stdin: str = "") -> Ran:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "draftwire.edge_client.cli",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await wait_for(process.communicate(stdin.encode()))
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


@pytest.fixture
async def verifier() -> AsyncIterator[RunningVerifier]:
    target = endless_table()
    target.chat_template = TEMPLATE
    async with running_verifier(target) as running:
        yield running


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = endless_table()
    return write_bundle(tmp_path_factory.mktemp("draft"), target, right_table(target))


async def generated_json(*arguments: str) -> dict[str, object]:
    ran = await draftwire("generate", *arguments, "--json")
    assert ran.status == 0, ran.err
    report: dict[str, object] = json.loads(ran.out)
    return report


async def test_generate_gives_the_targets_own_tokens_with_and_without_a_draft(
    verifier: RunningVerifier, draft: Path
) -> None:
    options = ["abc", "--raw", "--url", verifier.url, "--max-tokens", "20", "--temperature", "0.8", "--seed", "3"]
    plain = await generated_json(*options)
    drafted = await generated_json(*options, "--draft", str(draft))
    prompt = plain["prompt_tokens"]
    assert prompt == 3
    assert plain["token_ids"] == drafted["token_ids"]
    assert len(plain["token_ids"]) == 20  # type: ignore[arg-type]
    assert plain["seed"] == 3
    assert plain["finish_reason"] == "length"
    assert plain["status"] == {"mode": "cloud-only", "reason": None}
    assert drafted["stats"]["committed"] == 20  # type: ignore[index]


async def test_generate_prints_text_as_it_comes_and_figures_if_asked(verifier: RunningVerifier) -> None:
    options = ("generate", "abc", "--raw", "--url", verifier.url, "--max-tokens", "12")
    quiet = await draftwire(*options)
    told = await draftwire(*options, "--stats")
    assert (quiet.status, quiet.err) == (0, "")
    assert len(quiet.out.strip()) == 12
    assert told.out == quiet.out
    assert "12 tokens" in told.err
    assert "first token " in told.err


async def test_generate_reads_standard_input(verifier: RunningVerifier) -> None:
    options = ("--raw", "--url", verifier.url, "--max-tokens", "5")
    assert (await draftwire("generate", "-", *options, stdin="abc")).out == (
        await draftwire("generate", "abc", *options)
    ).out


async def test_generate_uses_the_chat_template_unless_raw(verifier: RunningVerifier) -> None:
    report = await generated_json("ab", "--system", "c", "--url", verifier.url, "--max-tokens", "4")
    assert report["prompt_tokens"] == 3


async def test_an_unusable_draft_is_told_and_the_answer_comes_all_the_same(
    verifier: RunningVerifier, tmp_path: Path
) -> None:
    ran = await draftwire(
        "generate", "abc", "--raw", "--url", verifier.url, "--draft", str(tmp_path), "--max-tokens", "5"
    )
    assert ran.status == 0
    assert ran.err.startswith("draftwire: cloud-only: no draft bundle at")
    assert len(ran.out.strip()) == 5


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--temperature", "nan", "temperature"),
        ("--top-p", "2", "top_p"),
        ("--look-ahead", "-1", "look_ahead"),
        ("--look-ahead", "1000000", "look_ahead"),
        ("--max-tokens", "0", "max_tokens"),
        ("--repetition-penalty", "0", "repetition_penalty"),
        ("--seed", "-5", "seed"),
        ("--url", "ftp://nowhere", "url"),
        ("--url", "ws://127.0.0.1:99999", "url"),
        ("--api-key-file", "/no/such/file", "--api-key-file"),
        ("--threads", "0", "threads"),
    ],
)
async def test_a_bad_value_is_wrong_usage_and_named(
    verifier: RunningVerifier, draft: Path, option: str, value: str, named: str
) -> None:
    ran = await draftwire("generate", "abc", "--raw", "--url", verifier.url, "--draft", str(draft), f"{option}={value}")
    assert ran.status == 2
    assert ran.failed_in_one_line()
    assert f"error: {named}: " in ran.err


@pytest.mark.parametrize("arguments", [[], ["generate"], ["generate", "x", "--nonsense"], ["nonsense"]])
async def test_wrong_usage_is_explained(arguments: list[str]) -> None:
    ran = await draftwire(*arguments)
    assert ran.status == 2
    assert "usage: draftwire" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("command", [["generate", "abc"], ["chat"]])
async def test_an_absent_verifier_is_one_line(command: list[str]) -> None:
    ran = await draftwire(*command, "--url", "ws://127.0.0.1:9")
    assert ran.status == 1
    assert ran.failed_in_one_line()
    assert "no verifier at ws://127.0.0.1:9" in ran.err


async def test_a_prompt_too_long_states_the_limit(verifier: RunningVerifier) -> None:
    ran = await draftwire("generate", "a" * 5000, "--raw", "--url", verifier.url)
    assert ran.status == 1
    assert ran.failed_in_one_line()
    assert "4096" in ran.err


async def test_chat_remembers_and_goes_on(verifier: RunningVerifier) -> None:
    ran = await draftwire("chat", "--url", verifier.url, "--max-tokens", "6", stdin="abc\ndef\n/reset\nabc\n/exit\n")
    assert ran.status == 0, ran.err
    first, second, again = ran.out.splitlines()
    assert first == again
    assert len(first) == len(second) == 6


async def test_chat_second_turn_follows_from_the_first(verifier: RunningVerifier) -> None:
    ran = await draftwire("chat", "--url", verifier.url, "--max-tokens", "6", stdin="abc\nde\n")
    first, second = ran.out.splitlines()
    whole = await generated_json("abc" + first + "de", "--raw", "--url", verifier.url, "--max-tokens", "6")
    assert whole["text"] == second


async def test_doctor_finds_everything_in_order(verifier: RunningVerifier, draft: Path) -> None:
    ran = await draftwire("doctor", "--url", verifier.url, "--draft", str(draft), "--json")
    assert ran.status == 0, ran.err
    report = json.loads(ran.out)
    assert report["problems"] == []
    assert report["draft"]["matches"] is True
    assert report["verifier"]["target"] == verifier.target.info.name
    assert report["rtt_ms"] > 0
    assert report["draft_ms_per_token"] > 0
    text = await draftwire("doctor", "--url", verifier.url, "--draft", str(draft))
    assert text.out.splitlines()[-1].startswith(("all is in order", "nothing is broken; "))


async def test_doctor_names_what_is_wrong(verifier: RunningVerifier, tmp_path: Path) -> None:
    other = endless_table(vocabulary_size=12)
    stranger = write_bundle(tmp_path / "stranger", other, right_table(other))
    ran = await draftwire("doctor", "--url", verifier.url, "--draft", str(stranger))
    assert ran.status == 1
    assert "does not share the vocabulary" in ran.out
    absent = await draftwire("doctor", "--url", "ws://127.0.0.1:9", "--json")
    assert absent.status == 1
    assert "no verifier" in json.loads(absent.out)["problems"][0]


async def test_json_after_a_failure_has_what_was_committed_and_the_error(verifier: RunningVerifier) -> None:
    absent = await draftwire("generate", "abc", "--raw", "--json", "--url", "ws://127.0.0.1:9")
    assert absent.status == 1
    report = json.loads(absent.out)
    assert report["finish_reason"] == "error"
    assert report["token_ids"] == []
    assert "no verifier at ws://127.0.0.1:9" in report["error"]
    assert (await generated_json("abc", "--raw", "--url", verifier.url, "--max-tokens", "3"))["error"] is None


@pytest.mark.parametrize(
    "arguments", [["generate", "abc", "--raw"], ["generate", "abc", "--raw", "--json"], ["doctor"]]
)
async def test_output_that_cannot_be_written_is_one_line(verifier: RunningVerifier, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "draftwire.edge_client.cli", *arguments, "--url", verifier.url]
    with open("/dev/full", "w") as full:
        process = await asyncio.create_subprocess_exec(*command, stdout=full, stderr=asyncio.subprocess.PIPE)
        _, err = await wait_for(process.communicate())
    assert process.returncode == 1
    assert err.decode().startswith("draftwire: error: cannot write the output")
    assert err.count(b"\n") == 1


async def test_a_prompt_that_is_no_text_is_told_so(verifier: RunningVerifier) -> None:
    ran = await draftwire("generate", "\udcff", "--raw", "--url", verifier.url)
    assert (ran.status, ran.failed_in_one_line()) == (2, True)
    assert "PROMPT: is not valid UTF-8" in ran.err


async def test_a_key_that_cannot_be_sent_is_not_shown(verifier: RunningVerifier, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("first\nsecond", encoding="utf-8")
    ran = await draftwire("generate", "abc", "--raw", "--url", verifier.url, "--api-key-file", str(key))
    assert (ran.status, ran.failed_in_one_line()) == (2, True)
    assert "second" not in ran.err


async def test_chat_tells_what_is_no_command(verifier: RunningVerifier) -> None:
    ran = await draftwire("chat", "--url", verifier.url, stdin="/help\n")
    assert (ran.status, ran.out) == (0, "")
    assert "no command /help" in ran.err
