"""Runs the window example as the program it is, and does with its window what a user would.

``python window_driver.py EXAMPLE SCENARIO``. A scenario is a generator that runs in the window's own loop: each
``yield`` lets the window live for a tick. It knows the window by what can be seen of it, widgets and their texts, and
tells the test where it stands in lines on standard output.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tkinter as tk
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeVar

TICK_MS = 5

Scenario = Iterator[None]
Kind = TypeVar("Kind", bound=tk.Widget)


class User:
    """What can be seen of the window and done with it."""

    def __init__(self, root: tk.Tk) -> None:
        self._root = root

    def _widget(self, kind: type[Kind], text: str | None = None) -> Kind:
        widgets = [child for child in self._root.winfo_children() if isinstance(child, kind)]
        (widget,) = [widget for widget in widgets if text is None or widget["text"] == text]
        return widget

    @property
    def text(self) -> str:
        """All that was asked and answered."""
        return self._widget(tk.Text).get("1.0", "end-1c")

    @property
    def answer(self) -> str:
        """What stands below the last question."""
        return self.text.rpartition("> ")[2].partition("\n")[2]

    @property
    def guessed(self) -> str:
        """The coloured text."""
        widget = self._widget(tk.Text)
        ends = [str(index) for index in widget.tag_ranges("guessed")]
        return "".join(widget.get(start, end) for start, end in zip(ends[::2], ends[1::2], strict=True))

    @property
    def status(self) -> str:
        """The status line."""
        return str(self._widget(tk.Label)["text"])

    def can(self, button: str) -> bool:
        """Whether a button is enabled."""
        return str(self._widget(tk.Button, button)["state"]) == "normal"

    def click(self, button: str) -> None:
        """Press a button."""
        self._widget(tk.Button, button).invoke()

    def type(self, text: str) -> None:
        """Type into the input line, as far as it takes what is typed."""
        self._widget(tk.Entry).insert("end", text)

    @property
    def typed(self) -> str:
        """The input line."""
        return self._widget(tk.Entry).get()

    def ask(self, prompt: str) -> None:
        """Type a question and send it."""
        self.type(prompt)
        self.click("Ask")

    def close_window(self) -> None:
        """Close the window by its frame, as the window manager does."""
        self._root.tk.call(self._root.protocol("WM_DELETE_WINDOW"))


def say(line: str) -> None:
    """Tell the test."""
    print(line, flush=True)


def report(user: User) -> None:
    """Tell the test what can be seen."""
    say("report " + json.dumps({name: getattr(user, name) for name in ("answer", "guessed", "status", "typed")}))


def until(holds: Callable[[], bool]) -> Scenario:
    """Let the window live until something holds."""
    while not holds():
        yield


def ticks(count: int) -> Scenario:
    """Let the window live for so many ticks."""
    for _ in range(count):
        yield


def grow(user: User, length: int) -> Scenario:
    """Have the verifier make token after token until the answer has ``length`` characters, with ticks between."""
    while len(user.answer) < length:
        before = len(user.answer)
        say("step")
        yield from until(lambda before=before: len(user.answer) > before)  # type: ignore[misc]
        yield from ticks(10)


def answer(user: User) -> Scenario:
    """An answer whose tokens come one by one; the window stays alive between them, while the verifier is held."""
    user.ask("hello")
    yield from grow(user, 5)
    user.type("meanwhile")
    yield from ticks(10)
    report(user)
    say("go")
    yield from until(lambda: user.can("Ask"))
    report(user)


def guess(user: User) -> Scenario:
    """An answer with a draft, until some of it has been guessed."""
    user.ask("hello")
    yield from until(lambda: "drafting" in user.status)
    while not user.guessed and user.can("Stop"):
        say("step")
        yield from ticks(20)
    say("go")
    yield from until(lambda: user.can("Ask"))
    report(user)


def stop(user: User) -> Scenario:
    """Stop an answer while the verifier is at it, then one that has hardly begun; then ask again."""
    user.ask("hello")
    yield from grow(user, 3)
    user.click("Stop")
    yield from until(lambda: user.can("Ask"))
    report(user)
    say("go")
    user.ask("hello")
    user.click("Stop")
    yield from until(lambda: user.can("Ask"))
    report(user)
    user.ask("hello")
    yield from until(lambda: user.can("Ask"))
    report(user)


def close(user: User) -> Scenario:
    """Close the window while an answer is under way."""
    user.ask("hello")
    yield from grow(user, 3)


def fail(user: User) -> Scenario:
    """Ask twice where nobody answers."""
    for _ in range(2):
        user.ask("hello")
        yield from until(lambda: user.can("Ask"))
        report(user)


SCENARIOS: dict[str, Callable[[User], Scenario]] = {
    function.__name__: function for function in (answer, guess, stop, close, fail)
}


class DrivenTk(tk.Tk):
    """A Tk whose loop runs the scenario and closes the window at its end."""

    def __init__(self) -> None:
        super().__init__()
        self._user = User(self)
        self.after(TICK_MS, self._tick, SCENARIOS[sys.argv[2]](self._user))

    def _tick(self, scenario: Scenario) -> None:
        try:
            next(scenario)
        except StopIteration:
            self._user.close_window()
        else:
            self.after(TICK_MS, self._tick, scenario)

    def report_callback_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Where Tk would print it and go on, the test has failed."""
        traceback.print_exception(kind, error, trace)
        sys.stderr.flush()
        os._exit(3)


if __name__ == "__main__":
    tk.Tk = DrivenTk  # type: ignore[assignment,misc]
    runpy.run_path(sys.argv[1], run_name="__main__")
