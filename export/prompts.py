"""The fixed prompt set on which every exported draft is compared with the model it was made from.

Two prompts of each of four kinds, because a draft agrees more on code and lists than on free talk, and one kind alone
would flatter or slander it. Changing this set changes every recorded figure; it is part of the product.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PROMPTS", "Prompt"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user turn; ``kind`` is chat, code, summary or list."""

    kind: str
    text: str


PROMPTS = (
    Prompt("chat", "I have a free afternoon in a city by the sea. What could I do, and what should I take with me?"),
    Prompt("chat", "Why does bread rise in the oven? Explain it to someone who has never baked."),
    Prompt("code", "Write a Python function that returns the n-th Fibonacci number, with a docstring."),
    Prompt("code", "Write a SQL query that finds the ten customers with the highest total order value in 2023."),
    Prompt(
        "summary",
        "Summarize in two sentences: The library opened in 1911 with four thousand books in a former grain store. It "
        "was closed twice, once by a flood and once for lack of money. Today it lends half a million items a year, "
        "runs a repair workshop, and is the only building in the district that is open every day.",
    ),
    Prompt(
        "summary",
        "Give the main point of this text in one sentence: Heat pumps move heat instead of making it, so one unit of "
        "electricity can bring three units of heat into a house. They work less well in deep frost, and old radiators "
        "may be too small for the lower water temperature.",
    ),
    Prompt("list", "List eight household items that can be repaired at home, each with the tool that is needed."),
    Prompt("list", "Give me a packing list for three days of hiking in the mountains in September."),
)
