"""What a generation tells, and what it counts, over more than one stream."""

from __future__ import annotations

from typing import Any

import pytest
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.edge_client.events import Degraded, Event, Finished, RoundCompleted, TextDelta
from draftwire.edge_client.generation import Generation, round_of
from draftwire.edge_client.prompt import Vocabulary
from draftwire.edge_client.tokenizer import Tokenizer
from draftwire.edge_client.transcript import Transcript
from draftwire.protocol.acceptance import Proposal
from draftwire.protocol.messages import Commit, End, EndReason

PROMPT = (3, 4, 5)


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary(Tokenizer.from_json(TableTarget(vocabulary_size=24, seed=5).tokenizer_json), None)


class Story:
    """A transcript, its generation, and commits applied to both."""

    def __init__(self, vocabulary: Vocabulary, **options: Any) -> None:
        self.transcript = Transcript(seed=7)
        self.generation = Generation(
            stream=0, prompt_ids=PROMPT, **{"max_tokens": 20, "stop_ids": (), "most_ahead": 8, **options}
        )
        self.transcript.begin(self.generation, vocabulary)

    def stream(self, number: int, *, drafting: bool = True) -> None:
        self.generation.resume(number, most_ahead=8)
        self.transcript.open_stream(drafting=drafting)

    def draft(self, *tokens: int) -> None:
        for token in tokens:
            assert self.generation.add(self.generation.path, Proposal(token), 0)
        assert self.generation.take_frame(sent_at=5, continues=False) is not None

    def commit(self, accepted: int, token: int, *, path: int = 1, echo: int | None = None) -> None:
        commit = Commit(stream=self.generation.stream, path=path, accepted=accepted, token=token, echo=echo)
        committed = self.generation.apply(commit)
        self.transcript.record(commit, committed, round_of(commit, committed, now=1.0))

    async def events(self) -> list[Event]:
        self.transcript.close()
        events: list[Event] = []
        while (event := await self.transcript.next_event()) is not None:
            events.append(event)
        return events


async def test_the_counts_of_a_lost_verifier_are_the_clients_own_and_add_up(vocabulary: Vocabulary) -> None:
    story = Story(vocabulary)
    story.stream(1)
    story.commit(0, 9, path=0)  # run ahead
    story.draft(6, 7, 8)
    story.commit(2, 1, echo=5)  # three tested, two accepted; then the verifier is lost
    stats = story.transcript.stats
    assert (stats.committed, stats.target_passes) == (4, 2)
    assert (stats.drafted, stats.accepted, stats.run_ahead) == (3, 2, 1)
    story.stream(2)
    story.commit(0, 2, path=0)
    story.draft(3, 4)
    story.commit(1, 9, echo=5)
    end = End(
        stream=2,
        reason=EndReason.LENGTH,
        committed_tokens=3,
        drafted_tokens=2,
        accepted_tokens=1,
        target_passes=3,
        run_ahead_tokens=1,
    )
    story.transcript.finish(end)
    assert (stats.committed, stats.target_passes) == (7, 2 + 3)
    assert (stats.drafted, stats.accepted, stats.run_ahead) == (3 + 2, 2 + 1, 1 + 1)
    assert stats.accepted == sum(stats.accepted_by_position)
    assert stats.paths == 2


async def test_of_one_stream_the_verifiers_counts_are_all_there_is(vocabulary: Vocabulary) -> None:
    story = Story(vocabulary)
    story.stream(1)
    story.draft(6, 7)
    story.commit(1, 7)  # the last draft token travels as the round's own
    end = End(stream=1, reason=EndReason.STOP, committed_tokens=2, drafted_tokens=2, accepted_tokens=2, target_passes=1)
    story.transcript.finish(end)
    stats = story.transcript.stats
    assert (stats.drafted, stats.accepted, stats.target_passes, stats.run_ahead) == (2, 2, 1, 0)
    assert stats.accepted_by_position == [1, 1]


async def test_without_drafting_nothing_is_run_ahead(vocabulary: Vocabulary) -> None:
    story = Story(vocabulary)
    story.stream(1, drafting=False)
    story.commit(0, 9, path=0)
    assert (story.transcript.stats.run_ahead, story.transcript.stats.target_passes) == (0, 1)


async def test_text_goes_on_over_streams_and_ends_once(vocabulary: Vocabulary) -> None:
    story = Story(vocabulary, max_tokens=3)
    story.stream(1)
    story.commit(0, 9, path=0)
    assert not story.transcript.finish_if_whole()
    story.stream(2)
    story.commit(0, 1, path=0)
    story.commit(0, 2, path=0)
    assert story.transcript.finish_if_whole()
    events = await story.events()
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["i", "a", "b"]
    assert sum(isinstance(event, RoundCompleted) for event in events) == 3
    (last,) = [event for event in events if isinstance(event, Finished)]
    assert events[-1] is last
    assert (last.result.text, last.result.token_ids, last.result.finish_reason) == ("iab", (9, 1, 2), "length")
    assert last.result is story.transcript.result


async def test_the_drafts_own_tokens_are_marked(vocabulary: Vocabulary) -> None:
    story = Story(vocabulary, max_tokens=4, stop_ids=(0,))
    story.stream(1)
    story.commit(0, 9, path=0)
    for token in (2, 0):
        story.generation.extend(token)
        story.transcript.record_unverified(token)
    assert story.transcript.finish_if_whole()
    texts = [event for event in await story.events() if isinstance(event, TextDelta)]
    assert [(event.text, event.verified) for event in texts] == [("i", True), ("b", False), ("", False)]
    result = story.transcript.result
    assert result is not None
    assert (result.text, result.finish_reason, result.unverified_tokens) == ("ib", "stop", 2)
    assert (result.stats.committed, result.stats.unverified) == (1, 2)


async def test_a_draft_that_is_not_used_is_told_once(vocabulary: Vocabulary) -> None:
    story = Story(vocabulary)
    story.transcript.degrade("no bundle")
    story.transcript.degrade("no bundle")
    assert await story.events() == [Degraded(reason="no bundle")]
    assert story.transcript.cloud_only


def test_before_it_has_begun_there_is_nothing() -> None:
    transcript = Transcript(seed=7)
    assert not transcript.finish_if_whole()
    result = transcript.result_so_far("error")
    assert (result.text, result.token_ids, result.prompt_tokens, result.seed) == ("", (), 0, 7)
