from __future__ import annotations

from pathlib import Path

import pytest
from draftwire.edge_client.draft_timing import bare_loop, drafter_loop, main, plain_loop
from draftwire.protocol.manifest import Manifest


def test_the_loops_compared_do_the_same_work(fused_bundle: Path, concatenated_bundle: Path) -> None:
    manifest = Manifest.load(fused_bundle)
    loops = [
        bare_loop(fused_bundle, manifest, threads=1, capacity=40),
        drafter_loop(fused_bundle, threads=1),
        plain_loop(concatenated_bundle, threads=1),
    ]
    # The same model three times; padding ids, which only the drafter leaves out, do not come first here.
    for token in range(2, 42):
        first, *others = [step(token) for step in loops]
        assert others == [first, first] or first >= manifest.vocabulary.size


def test_prints_a_table(fused_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(fused_bundle), "--threads", "1", "--tokens", "4", "--position", "6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1 thread(s), positions 4 to 8")
    assert [line[:8] for line in lines[2:]] == ["bare IOB", "Drafter ", "drafting"]


def test_failures_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.startswith("error: no draft bundle at")
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path), "--threads", "0"])
    assert caught.value.code == 2
