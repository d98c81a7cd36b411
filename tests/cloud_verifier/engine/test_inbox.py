"""What waits for the engine, and how much of each owner's."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire.cloud_verifier.engine.inbox import FRAME_WEIGHT, Command, Inbox, draft_weight
from draftwire.cloud_verifier.engine.stream import Owner
from draftwire.protocol.messages import Draft, Message
from draftwire.protocol.sparse_q import SparseQ


class Somebody(Owner):
    def deliver(self, messages: Sequence[Message]) -> None:
        raise AssertionError(messages)


def command(owner: Somebody, weight: int = FRAME_WEIGHT) -> Command:
    return Command(owner=owner, stream=1, run=lambda _: None, weight=weight)


def test_commands_are_taken_in_order_and_once() -> None:
    inbox, one, two = Inbox(room=100), Somebody(), Somebody()
    commands = [command(one), command(two), command(one)]
    assert all(inbox.post(each) for each in commands)
    assert len(inbox) == 3
    assert inbox.take() == commands
    assert inbox.take() == []


def test_only_the_owner_of_too_much_waits_and_nothing_is_refused() -> None:
    inbox, one, two, told = Inbox(room=100), Somebody(), Somebody(), []
    for weight in (60, 40, 1, 500):
        assert not inbox.crowded(one) or weight == 500
        assert inbox.post(command(one, weight))
    assert inbox.crowded(one)
    assert not inbox.crowded(two)
    inbox.when_room(two, lambda: told.append(two))
    inbox.when_room(one, lambda: told.append(one))
    assert told == [two]
    assert len(inbox.take()) == 4
    assert told == [two, one]
    assert not inbox.crowded(one)


def test_a_closed_inbox_takes_nothing_and_keeps_nobody_waiting() -> None:
    inbox, one, told = Inbox(room=0), Somebody(), []
    inbox.post(command(one))
    inbox.when_room(one, lambda: told.append(1))
    assert len(inbox.close()) == 1
    assert told == [1]
    assert inbox.post(command(one)) is False
    inbox.when_room(one, lambda: told.append(2))
    assert told == [1, 2]
    assert inbox.close() == []


def test_what_a_draft_weighs() -> None:
    q = SparseQ(ids=(1, 2, 3), weights=(1, 1, 1))
    plain = Draft(stream=1, path=1, start=1, token_ids=(1, 2), confidences=(0, 0), sent_at=0)
    sparse = Draft(stream=1, path=1, start=1, token_ids=(1, 2), sent_at=0, sparse_q=(q, q))
    empty = Draft(stream=1, path=1, start=1, token_ids=(), confidences=(), sent_at=0)
    assert [draft_weight(draft) - FRAME_WEIGHT for draft in (empty, plain, sparse)] == [0, 2, 8]
