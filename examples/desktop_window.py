"""A desktop window that streams without freezing, can be stopped, and colours what this device had guessed.

    python examples/desktop_window.py

The SDK runs on an event loop in a thread of its own; the window polls the queue of its events, and never waits for
it. DRAFTWIRE_URL is the verifier, DRAFTWIRE_DRAFT the folder of a draft bundle; without one answers are cloud-only.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import sys
import threading
import tkinter as tk

from draftwire.edge_client import AsyncEdgeClient, Degraded, Event, Finished, TextDelta
from draftwire.protocol.errors import DraftwireError

POLL_MS = 20


class Generator:
    """The SDK's side: answers one prompt at a time; ``events`` tells the window what happens, None that it stopped."""

    def __init__(self, url: str, draft: str | None) -> None:
        self.events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()
        self.client = AsyncEdgeClient(url, draft=draft)
        self._answer: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def ask(self, prompt: str) -> None:
        """Start an answer; does not wait."""
        self._loop.call_soon_threadsafe(self._start, prompt)

    def stop(self) -> None:
        """Cancel the answer; does not wait."""
        self._loop.call_soon_threadsafe(self._cancel)

    def close(self) -> None:
        """Cancel the answer, close the connection and end the thread."""
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _start(self, prompt: str) -> None:
        self._answer = self._loop.create_task(self._stream(prompt))
        self._answer.add_done_callback(self._done)

    def _cancel(self) -> None:
        if self._answer is not None:
            self._answer.cancel()

    async def _stream(self, prompt: str) -> None:
        async with self.client.stream([{"role": "user", "content": prompt}]) as stream:
            async for event in stream:  # when this is cancelled, leaving the block tells the verifier
                self.events.put(event)

    def _done(self, answer: asyncio.Task[None]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            self.events.put(None if answer.cancelled() else answer.exception())

    async def _shut_down(self) -> None:
        if self._answer is not None:
            self._answer.cancel()
            await asyncio.wait([self._answer])
        await self.client.close()


class Window:
    """A text, an input line with two buttons, a status line."""

    def __init__(self, root: tk.Tk, generator: Generator) -> None:
        self._root, self._generator, self._answering = root, generator, False
        self._status = tk.Label(root, anchor="w", text="Green is what this device had guessed.")
        self._status.pack(side="bottom", fill="x")
        self._text = tk.Text(root, wrap="word", state="disabled")
        self._text.tag_configure("guessed", foreground="#0b7a3b")
        self._text.pack(side="top", fill="both", expand=True)
        self._prompt = tk.Entry(root)
        self._prompt.bind("<Return>", lambda _: self._ask())
        self._prompt.pack(side="left", fill="x", expand=True)
        self._ask_button = tk.Button(root, text="Ask", command=self._ask)
        self._ask_button.pack(side="left")
        self._stop_button = tk.Button(root, text="Stop", command=generator.stop, state="disabled")
        self._stop_button.pack(side="left")
        root.title("Draftwire")
        root.protocol("WM_DELETE_WINDOW", self._close)
        self._poll()

    def _ask(self) -> None:
        prompt = self._prompt.get().strip()
        if prompt and not self._answering:
            self._prompt.delete(0, "end")
            self._write(f"\n> {prompt}\n")
            self._set_answering(True)
            self._generator.ask(prompt)

    def _poll(self) -> None:
        while not self._generator.events.empty():
            self._take(self._generator.events.get())
        if self._answering:
            self._status["text"] = f"Answering, {self._mode()}"
        self._root.after(POLL_MS, self._poll)

    def _take(self, event: Event | BaseException | None) -> None:
        match event:
            case TextDelta():
                self._write(event.text, "guessed" if event.guessed else "")
            case Degraded():
                self._write(f"[cloud-only: {event.reason}]\n")
            case Finished():
                stats = event.result.stats
                self._end(f"{stats.committed} tokens, {stats.agreed} guessed, {self._mode()}")
            case None:
                self._end("Stopped.")
            case BaseException():
                self._end(str(event))

    def _end(self, status: str) -> None:
        self._write("\n")
        self._set_answering(False)
        self._status["text"] = status

    def _mode(self) -> str:
        status = self._generator.client.status
        return status.mode + (f": {status.reason}" if status.reason else "")

    def _set_answering(self, answering: bool) -> None:
        self._answering = answering
        self._ask_button["state"] = "disabled" if answering else "normal"
        self._stop_button["state"] = "normal" if answering else "disabled"

    def _write(self, text: str, tag: str = "") -> None:
        self._text["state"] = "normal"
        self._text.insert("end", text, tag)
        self._text["state"] = "disabled"
        self._text.see("end")

    def _close(self) -> None:
        self._root.destroy()  # first, so that the window goes at once
        self._generator.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Tk's loop would print an interrupt and go on
    try:
        root = tk.Tk()
        url, draft = os.environ.get("DRAFTWIRE_URL", "ws://127.0.0.1:8300"), os.environ.get("DRAFTWIRE_DRAFT") or None
        Window(root, Generator(url, draft))
        root.mainloop()
    except (DraftwireError, tk.TclError) as error:
        sys.exit(f"desktop_window: {error}")
