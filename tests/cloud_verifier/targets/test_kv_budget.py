"""A target whose keys and values get too little memory, or more than there is: what the operator is told."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import pytest
from draftwire.cloud_verifier.cli import main
from draftwire.cloud_verifier.targets import transformers_target
from draftwire.cloud_verifier.targets.kv_cache import KvCache
from draftwire.cloud_verifier.targets.target import OutOfKvMemoryError
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from draftwire.protocol.errors import InvalidParameterError, UnsupportedModelError

MakeModel = Callable[..., str]


def least_of(folder: str) -> int:
    with pytest.raises(InvalidParameterError) as caught:
        TransformersTarget.load(folder, kv_memory=1)
    match = re.search(r"2 streams of 256 tokens take (\d+)", str(caught.value))
    assert match is not None
    return int(match[1])


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_the_least_that_is_named_does_and_less_does_not(make_model: MakeModel) -> None:
    folder = make_model("llama")
    least = least_of(folder)
    TransformersTarget.load(folder, kv_memory=least)
    with pytest.raises(InvalidParameterError, match=f"kv_memory: {least - 1} bytes are too few"):
        TransformersTarget.load(folder, kv_memory=least - 1)


def test_serve_says_how_much_to_give_it(make_model: MakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", make_model("llama"), "--kv-memory", "2K", "--port", "0"]) == 2
    *_, line = capsys.readouterr().err.splitlines()  # a progress bar may come before it
    assert "kv_memory: 2048 bytes are too few" in line
    assert line.endswith("set --kv-memory to 1M or more")


@pytest.mark.parametrize("first", [1, 2])
def test_memory_that_runs_out_in_the_check_at_load_is_called_that(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    original = KvCache.open

    def open_(cache: KvCache, stream: int, capacity: int, *, room: int = 1) -> None:
        if stream >= first:
            raise OutOfKvMemoryError
        original(cache, stream, capacity, room=room)

    monkeypatch.setattr(KvCache, "open", open_)
    with pytest.raises(UnsupportedModelError, match="leaves no memory for keys and values"):
        TransformersTarget.load(make_model("llama"))


def test_a_context_that_memory_shortens_is_told_with_both_figures(
    make_model: MakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_model("llama")
    caplog.set_level(logging.INFO)
    TransformersTarget.load(folder, kv_memory=least_of(folder))
    (told,) = [message for message in caplog.messages if "context" in message]
    assert "640 tokens, not the model's 1024" in told
    caplog.clear()
    TransformersTarget.load(folder, kv_memory=2 * least_of(folder))
    assert caplog.messages == []


def test_more_than_there_is_brings_a_warning(
    make_model: MakeModel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, free = make_model("llama"), 10_000_000
    monkeypatch.setattr(transformers_target, "free_memory", lambda _: free)
    TransformersTarget.load(folder, kv_memory=free)
    assert warnings_in(caplog) == []
    TransformersTarget.load(folder, kv_memory=free + 1)
    (told,) = warnings_in(caplog)
    assert "--kv-memory allows 10000001 bytes, but only 10000000 are free" in told


def test_a_share_is_of_what_is_free_once_the_model_is_there(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, loaded = make_model("llama"), []
    original = transformers_target.load_model
    monkeypatch.setattr(transformers_target, "load_model", lambda *a, **k: loaded.append(1) or original(*a, **k))
    monkeypatch.setattr(transformers_target, "free_memory", lambda _: 10_000_000 if loaded else 1)
    assert TransformersTarget.load(folder, kv_share=0.5).kv_budget == 5_000_000
    assert TransformersTarget.load(folder, kv_share=0.5, kv_memory=4_000_000).kv_budget == 4_000_000
    monkeypatch.setattr(transformers_target, "free_memory", lambda _: None)
    assert TransformersTarget.load(folder, kv_share=0.5).kv_budget is None
