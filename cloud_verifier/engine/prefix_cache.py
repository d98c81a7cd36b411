"""Keys and values of text that was seen before, so that a prompt that starts alike is not computed again.

Text is cut into blocks of 16 tokens, counted from its start. A block is held once for all texts that share it and
everything before it, as in vLLM's automatic prefix caching: a tree, in which a prompt finds the longest chain that it
starts with. When memory is wanted, the block goes that was used longest ago; that one never has others after it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..targets.target import OutOfKvMemoryError, SavedKv, Target

__all__ = ["BLOCK_TOKENS", "PrefixCache"]

BLOCK_TOKENS = 16

Tokens = tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Node:
    """A block after its ``parent``; the root of a scope has neither parent nor block."""

    tokens: Tokens
    parent: _Node | None
    block: SavedKv | None
    children: dict[Tokens, _Node] = field(default_factory=dict)


class PrefixCache:
    """Saves from slots of the target, and finds again.

    Args:
        target: copies keys and values, and knows what memory there is.
        most_tokens: held at most, whatever memory there is; 0 switches the cache off.

    A ``scope`` keeps apart those who must not learn from response times what the others' prompts were.
    """

    def __init__(self, target: Target, *, most_tokens: int) -> None:
        self._target = target
        self._most_blocks = most_tokens // BLOCK_TOKENS
        self._roots: dict[str, _Node] = {}
        self._used: OrderedDict[_Node, str] = OrderedDict()  # oldest first; each node after all of its children

    @property
    def tokens(self) -> int:
        """Tokens held."""
        return len(self._used) * BLOCK_TOKENS

    def match(self, scope: str, tokens: Sequence[int]) -> list[SavedKv]:
        """The blocks that ``tokens`` start with, as many as are held."""
        node, chain = self._roots.get(scope), []
        for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            node = node.children.get(tuple(tokens[start : start + BLOCK_TOKENS])) if node is not None else None
            if node is None:
                break
            chain.append(node)
        self._touch(chain)
        return [node.block for node in chain if node.block is not None]

    def keep(self, scope: str, slot: int, tokens: Sequence[int]) -> None:
        """Save what ``slot`` holds of ``tokens`` and is not held yet, as far as memory goes."""
        root = node = self._roots.get(scope) or _Node((), None, None)
        chain: list[_Node] = []
        for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            part = tuple(tokens[start : start + BLOCK_TOKENS])
            known = node.children.get(part)
            if known is None:
                block = self._save(slot, start, spared=chain)
                if block is None:
                    break
                known = node.children[part] = _Node(part, node, block)
                self._used[known] = scope
            chain.append(known)
            self._touch(chain[-1:])  # so that making room does not take it
            node = known
        self._touch(chain)
        if root.children:
            self._roots[scope] = root  # making room may have taken its last block for a moment

    def evict(self) -> bool:
        """Give the memory of the block that was used longest ago back; False when there is none."""
        if not self._used:
            return False
        node, scope = self._used.popitem(last=False)
        assert node.parent is not None
        assert node.block is not None
        del node.parent.children[node.tokens]
        if node.parent.parent is None and not node.parent.children:
            self._roots.pop(scope, None)
        self._target.release(node.block)
        return True

    def clear(self) -> None:
        """Hold nothing."""
        while self.evict():
            pass

    def _save(self, slot: int, start: int, *, spared: Sequence[_Node]) -> SavedKv | None:
        while len(self._used) >= self._most_blocks:
            if not self._evict_but(spared):
                return None
        while True:
            try:
                return self._target.save(slot, start, start + BLOCK_TOKENS)
            except OutOfKvMemoryError:
                if not self._evict_but(spared):
                    return None

    def _evict_but(self, spared: Sequence[_Node]) -> bool:
        """Evict, unless it would be the chain that is being saved: its parents must be there for it to be found."""
        return bool(self._used) and next(iter(self._used)) not in spared and self.evict()

    def _touch(self, chain: Sequence[_Node]) -> None:
        for node in reversed(chain):
            self._used.move_to_end(node)
