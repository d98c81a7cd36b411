"""The benchmark's prompts. How often a draft is right depends on the task, so there are several of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...protocol.errors import InvalidParameterError

__all__ = ["PROMPTS", "TASKS", "BenchPrompt", "choose_prompts", "lengthened"]


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One user turn, and the kind of task it is. ``name`` tells it from the others."""

    name: str
    task: str
    text: str


_BREAD = (
    "Bread made with a sourdough starter rises without bought yeast. The starter is flour and water in which wild "
    "yeasts and bacteria live together; it has to be fed with fresh flour every day, or once a week when it is kept in "
    "a cold place. The yeasts give off the gas that lifts the dough, while the bacteria make the acids that give the "
    "loaf its taste and keep mould away for several days. Because the yeasts are few and slow, such a dough needs "
    "most of a day where a yeasted one needs two hours. Many bakers leave it in the refrigerator overnight, which "
    "slows it further but lets the taste grow, and bake early in the morning. The waiting costs no work, only "
    "planning. People who cannot digest ordinary bread well often find this one easier, since the long rest lets the "
    "bacteria break down part of what troubles them."
)
_HARBOUR = (
    "The town council met on Tuesday evening to decide what should become of the old harbour. Fishing ended there nine "
    "years ago, and since then the three brick warehouses along the quay have stood empty. A builder from the "
    "neighbouring city offered to turn them into flats, and promised a public path along the water. Several residents "
    "spoke against the plan: the flats would be too dear for families from the town, and the parking spaces would "
    "take up the square where the market is held on Saturdays. The director of the maritime museum proposed "
    "to use one warehouse for a workshop in which young people could learn to repair wooden boats. After two hours the "
    "council voted, by eleven to six, to ask the builder for a second plan with fewer flats, no parking on the square, "
    "and room for the workshop. The new plan is to be presented in the autumn."
)
_BATTERY = (
    "A team of engineers has tested a way to store the warmth of summer for winter use. In a field behind "
    "their institute they dug a pit the size of a swimming hall, lined it with plastic sheets, and filled it with "
    "water. From May to September, collectors on the roofs of forty houses heat this water to about eighty degrees. A "
    "floating lid, half a metre thick, keeps the warmth in. From October on, the water is pumped through the houses, "
    "and returns colder. In the first year a third of the stored warmth was lost, mostly through the lid, where rain "
    "had soaked the insulation. After a repair the losses fell to a fifth. The houses still needed a heat pump in "
    "February, when the pit had cooled to thirty degrees, but their use of electricity was less than half of what it "
    "had been. The engineers now want to find out whether a larger pit, which has less surface for its volume, would "
    "last until spring."
)

PROMPTS: tuple[BenchPrompt, ...] = (
    BenchPrompt("chat-1", "chat", "Why is the sky blue? Explain it to a child."),
    BenchPrompt("code-1", "code", "Write a Python function that returns the n-th Fibonacci number, with a docstring."),
    BenchPrompt("summary-1", "summary", f"Summarize this text in three sentences.\n\n{_BREAD}"),
    BenchPrompt("list-1", "list", "List ten things to pack for a week in the mountains, each with a short reason."),
    BenchPrompt("chat-2", "chat", "My neighbour's dog barks all night. How can I talk to her about it politely?"),
    BenchPrompt(
        "code-2",
        "code",
        "Write a Python class for a stack with push, pop and peek, and show in a few lines how to use it.",
    ),
    BenchPrompt("summary-2", "summary", f"Summarize the following news item for a busy reader.\n\n{_HARBOUR}"),
    BenchPrompt("list-2", "list", "Name the planets of the solar system in order, one a line, each with one fact."),
    BenchPrompt("chat-3", "chat", "I have eggs, rice and an onion. What can I cook for dinner, and how?"),
    BenchPrompt(
        "code-3",
        "code",
        "Write an SQL query that finds the five customers with the most orders, and explain each part.",
    ),
    BenchPrompt("summary-3", "summary", f"What are the main points of this report?\n\n{_BATTERY}"),
    BenchPrompt(
        "list-3", "list", "Give me twelve ideas for a birthday party for a seven-year-old, as a numbered list."
    ),
)
"""Three of each task, in an order in which the first few are of different tasks."""

TASKS: tuple[str, ...] = tuple(dict.fromkeys(prompt.task for prompt in PROMPTS))


def choose_prompts(*, tasks: Sequence[str] = TASKS, count: int | None = None) -> list[BenchPrompt]:
    """The first ``count`` prompts of the given tasks; by default one of each.

    Raises:
        InvalidParameterError: no such task, or not so many prompts.
    """
    for task in tasks:
        if task not in TASKS:
            raise InvalidParameterError("--tasks", f"must be of {', '.join(TASKS)}, not {task!r}")
    suitable = [prompt for prompt in PROMPTS if prompt.task in tasks]
    wanted = len(set(tasks)) if count is None else count
    if not 1 <= wanted <= len(suitable):
        raise InvalidParameterError("--prompts", f"must be from 1 to {len(suitable)} here, not {wanted}")
    return suitable[:wanted]


def lengthened(prompt: BenchPrompt) -> BenchPrompt:
    """The same question after about 1500 tokens to read."""
    texts = "\n\n".join(([_BREAD, _HARBOUR, _BATTERY] * 3)[:8])
    return BenchPrompt(f"long-{prompt.name}", prompt.task, f"{texts}\n\nThat was to read. Now: {prompt.text}")
