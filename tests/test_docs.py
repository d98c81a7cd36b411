"""The documents say what is so: files they name exist, code compiles, commands parse, the worked example happens."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

import numpy as np
import pytest
from draftwire.cloud_verifier.engine.stream import Owner, VerifierStream
from draftwire.cloud_verifier.service.config_file import read_config
from draftwire.edge_client.generation import Generation
from draftwire.protocol import errors
from draftwire.protocol.acceptance import Proposal, verify_block
from draftwire.protocol.messages import Commit, Draft, Message, Open
from draftwire.protocol.sampling import SamplingParams

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("protocol", "edge_client", "cloud_verifier", "export")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")])
ARCHITECTURE = ROOT / "docs" / "architecture.md"

_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)|<img[^>]*\bsrc=\"([^\"]+)\"")
_COMMANDS = {"draftwire": "edge_client", "draftwire-verifier": "cloud_verifier", "draftwire-export": "export"}


# --- what the documents hold ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of a document, and where it stands."""

    where: str
    text: str


def _blocks(*languages: str) -> Iterator[Fragment]:
    for document in DOCUMENTS:
        content = document.read_text(encoding="utf-8")
        for match in _FENCE.finditer(content):
            if match[2] in languages:
                line = content.count("\n", 0, match.start()) + 1
                yield Fragment(f"{document.relative_to(ROOT)}:{line}", textwrap.dedent(match[3]))


def _simple_commands(script: str) -> Iterator[list[str]]:
    """The commands of a shell script as lists of words, split at ``|``, ``&&``, ``;``, ``&`` and redirections."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= set("();<>|&"):
                words.append(word)
            elif words:
                yield words
                words = []


def _cli_calls(script: str) -> Iterator[tuple[str, list[str]]]:
    """The calls of this package's own programs: the part they belong to, and their arguments."""
    for words in _simple_commands(script):
        while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
            words = words[1:]
        if words and (part := _COMMANDS.get(Path(words[0]).name)):
            yield part, words[1:]


class _Parsed(BaseException):
    """Raised in place of running a command that was parsed."""


def _parse(part: str, arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program itself parse its arguments, and stop it there. SystemExit where it refuses them."""
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_stop(self: argparse.ArgumentParser, args: Sequence[str] | None = None) -> NoReturn:
        try:
            parse_args(self, args)
        except SystemExit as asked_for_help:
            if asked_for_help.code:
                raise
        raise _Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    with pytest.raises(_Parsed):
        importlib.import_module(f"draftwire.{part}.cli").main(arguments)


PYTHON_BLOCKS = list(_blocks("python", "py"))
CALLS = [(block.where, *call) for block in _blocks("sh", "bash", "shell", "console") for call in _cli_calls(block.text)]


# --- code, commands, links --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=lambda block: block.where)
def test_python_compiles(block: Fragment) -> None:
    compile(block.text, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(
    ("where", "part", "arguments"), CALLS, ids=[f"{where} {' '.join(words)}" for where, _, words in CALLS]
)
def test_commands_parse(where: str, part: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    del where  # in the test's name
    _parse(part, arguments, monkeypatch)


def test_commands_are_found_in_scripts() -> None:
    script = (
        "$ DRAFTWIRE_API_KEY=x .venv/bin/draftwire generate 'a b' \\\n  --url ws://x | tee out  # draftwire no\nls\n"
    )
    assert list(_cli_calls(script)) == [("edge_client", ["generate", "a b", "--url", "ws://x"])]
    assert list(_cli_calls("draftwire-verifier info & draftwire-export check d > log")) == [
        ("cloud_verifier", ["info"]),
        ("export", ["check", "d"]),
    ]


@pytest.mark.parametrize("part", _COMMANDS.values())
def test_a_wrong_command_would_be_noticed(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as refused:
        _parse(part, ["--no-such-option"], monkeypatch)
    assert refused.value.code == 2


@pytest.mark.parametrize("block", list(_blocks("toml")), ids=lambda block: block.where)
def test_configuration_files_are_read(block: Fragment, tmp_path: Path) -> None:
    file = tmp_path / "verifier.toml"
    file.write_text(block.text, encoding="utf-8")
    assert len(read_config(file).keyring()) > 0


def test_options_that_operators_are_told_of_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for part, arguments in [("cloud_verifier", []), ("cloud_verifier", ["serve"]), ("edge_client", ["bench"])]:
        with pytest.raises(SystemExit):
            importlib.import_module(f"draftwire.{part}.cli").main([*arguments, "--help"])
    known = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    named = {each for span in _spans("deployment.md") for each in re.findall(r"(?<![\w-])--[a-z][a-z-]+", span)}
    assert len(named) > 20
    assert named <= known


def test_metrics_that_operators_are_told_of_exist() -> None:
    """What `docs/metrics.md` lists is checked against the code where the code is tested."""
    known = {span for span in _spans("metrics.md") if re.fullmatch(r"draftwire_\w+", span)}
    named = {each for span in _spans("deployment.md") for each in re.findall(r"\bdraftwire_\w+", span)}
    assert len(named) > 10
    assert named <= known


def _spans(document: str) -> list[str]:
    """Inline code."""
    text = _FENCE.sub("", (ROOT / "docs" / document).read_text(encoding="utf-8"))
    return re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(document: Path) -> None:
    targets = [link or image for link, image in _LINK.findall(document.read_text(encoding="utf-8"))]
    missing = [target for target in targets if "://" not in target and not (document.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_whole_and_have_a_text_alternative(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    names = {child.tag.rpartition("}")[2] for child in root}
    assert {"title", "desc"} <= names
    assert root.get("viewBox")


# --- architecture.md --------------------------------------------------------------------------------------------------


def test_every_file_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)+[\w.-]*)`", ARCHITECTURE.read_text(encoding="utf-8")))
    assert len(named) > 50
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_architecture_names_every_source_file_once_in_its_tables() -> None:
    rows = re.findall(r"^\| `([\w/]+\.py)` \|", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE)
    sources = [path for part in PARTS for path in (ROOT / part).rglob("*.py") if path.name != "__init__.py"]
    assert sorted(rows) == sorted(str(path.relative_to(ROOT)) for path in sources)


def test_the_error_tree_is_the_one_in_the_code() -> None:
    def tree(kind: type[BaseException], depth: int) -> Iterator[str]:
        yield "  " * depth + kind.__name__
        for child in kind.__subclasses__():
            if child.__module__ == errors.__name__:
                yield from tree(child, depth + 1)

    (block,) = re.findall(r"```text\n(DraftwireError\b.*?)```", ARCHITECTURE.read_text(encoding="utf-8"), re.DOTALL)
    shown = [re.match(r" *\w+", line)[0] for line in block.splitlines()]  # type: ignore[index]
    assert shown == list(tree(errors.DraftwireError, 0))


# --- its worked example, played by the code itself --------------------------------------------------------------------

PROMPT = "abc"
TARGET_TEXT = "abcdefghij"


class _Nobody(Owner):
    """An owner that hears nothing."""

    def deliver(self, messages: Sequence[Message]) -> None:
        raise AssertionError(messages)


def _word(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def _tokens(word: str) -> tuple[int, ...]:
    return tuple(ord(letter) - ord("a") for letter in word)


class Story:
    """Both ends of one stream, without what lies between them: each move is a row of the table."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.device = Generation(stream=1, prompt_ids=_tokens(PROMPT), max_tokens=100, stop_ids=(), most_ahead=4)
        request = Open(
            stream=1,
            token_ids=_tokens(PROMPT),
            prompt_length=len(PROMPT),
            params=SamplingParams(),
            max_tokens=100,
            seed=0,
            drafting=True,
        )
        self.verifier = VerifierStream(
            slot=1, owner=_Nobody(), request=request, sequence=list(_tokens(PROMPT)), cached=0, opened_at=0.0
        )

    def drafts(self, word: str) -> Draft:
        """The device guesses, and sends what it guessed."""
        for token in _tokens(word):
            assert self.device.add(self.device.path, Proposal(token), 0)
        frame = self.device.take_frame(sent_at=0, continues=True)
        assert frame is not None
        self._row(f"device sends DRAFT path {frame.path}, start {frame.start}, `{word}`")
        return frame

    def takes_draft(self, frame: Draft) -> None:
        """The verifier receives a frame."""
        self.verifier.take_draft(frame, now=0.0, max_backlog=64)
        self._row(f"verifier takes DRAFT path {frame.path}, start {frame.start}, `{_word(frame.token_ids)}`")

    def steps(self) -> Commit:
        """The verifier computes one step."""
        work = self.verifier.work(max_block=16, prefill_chunk=256)
        position = len(self.verifier.sequence)
        rows = np.full((work.block.rows, 26), -50.0, np.float32)
        for row, letter in enumerate(TARGET_TEXT[position : position + len(rows)]):
            rows[row, _tokens(letter)[0]] = 50.0
        verdict = verify_block(
            rows,
            work.proposals,
            params=SamplingParams(),
            history=self.verifier.history,
            seed=0,
            position=position,
            budget=self.verifier.remaining,
        )
        frame = self.verifier.commit(verdict, work.proposals, started=0.0, ended=0.0)
        assert frame.token is not None
        block = _word(work.block.tokens)
        self._row(f"verifier steps on `{block}`, sends {self._commit(frame)}")
        return frame

    def takes_commit(self, frame: Commit) -> None:
        """The device receives a frame."""
        self.device.apply(frame)
        self._row(f"device takes {self._commit(frame)}")

    @staticmethod
    def _commit(frame: Commit) -> str:
        assert frame.token is not None
        return f"COMMIT path {frame.path}, accepted {frame.accepted}, token `{_word([frame.token])}`"

    def _row(self, what: str) -> None:
        cells = [str(len(self.rows) + 1), what, self._device_cell(), self._verifier_cell()]
        self.rows.append(f"| {' | '.join(cells)} |")

    def _device_cell(self) -> str:
        path = self.device.path
        guess = _word([proposal.token for proposal in path.beyond(len(self.device.sequence))])
        return f"`{_word(self.device.sequence)}` path {path.id}" + (f" + `{guess}`" if guess else "")

    def _verifier_cell(self) -> str:
        stream = self.verifier
        assert stream.cached < len(stream.sequence)
        cell = f"`{_word(stream.sequence)}`, {stream.cached} cached"
        if stream.path is None:
            return cell
        if not stream.path.alive:
            return f"{cell}, path {stream.path.id} dead"
        guess = _word([proposal.token for proposal in stream.proposed()])
        return f"{cell}, path {stream.path.id}" + (f" + `{guess}`" if guess else "")


def _play() -> list[str]:
    story = Story()
    run_ahead = story.steps()
    first = story.drafts("de")
    story.takes_commit(run_ahead)
    story.takes_draft(first)
    second = story.drafts("fx")
    full = story.steps()
    story.takes_commit(full)
    story.takes_draft(second)
    divergence = story.steps()
    stale = story.drafts("y")
    story.takes_draft(stale)
    story.takes_commit(divergence)
    story.takes_draft(story.drafts("hi"))
    story.takes_commit(story.steps())
    return story.rows


def test_the_worked_example_is_what_the_code_does() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    assert [row for row in _play() if row not in text] == []
    assert len(re.findall(r"^\| \d+ \| (?:device|verifier) ", text, re.MULTILINE)) == len(_play())
