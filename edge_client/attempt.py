"""One stream at one verifier, from OPEN to its end: commits in, drafts out, both into the transcript."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..protocol.errors import DraftwireError, ErrorCode, VerifierRefusedError
from ..protocol.messages import Cancel, Commit, Draft, End, Error, Open, Opened, Prefix
from .connection import Channel, VerifierConnection, stream_error
from .device import Device
from .draft_loop import DraftLoop
from .gamma.choice import make_controller
from .gamma.figures import Figures
from .generation import Generation, round_of
from .options import GenerationOptions
from .prompt import Vocabulary
from .proposer import Proposer
from .transcript import Transcript

__all__ = ["Attempt", "Setup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the client has ready for a stream.

    ``prefix`` names an earlier stream on the connection, and how many of its tokens the prompt starts with.
    ``device`` is None for a cloud-only stream; ``degraded`` says why, where a draft was asked for. ``figures`` are what
    the device measured in its streams so far.
    """

    connection: VerifierConnection
    vocabulary: Vocabulary
    prompt_ids: list[int]
    prefix: Prefix | None
    retain: bool
    device: Device | None
    degraded: str | None
    figures: Figures
    paused: Callable[[], bool]
    finished: Callable[[int, list[int]], None]


class Attempt:
    """Begins an answer, or goes on with one that a lost connection cut off.

    OPEN carries prompt and committed tokens, and the same seed. Noise depends on seed and position alone, so greedy and
    coupled text is what it would have been. In rejection mode the continuation is distributed as the target's: a token
    that was decided at the lost verifier, but of which nothing has arrived, is decided anew, and what comes of it
    depends on what has arrived and on noise of its own position, which nothing that arrived has been drawn with.

    Args:
        setup: what it needs.
        options: of the generation.
        seed: of the generation.
        transcript: to go on with.
        target: name and fingerprint of the target that the answer was begun by; None to begin one.
        progressed: called after every commit.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        options: GenerationOptions,
        seed: int,
        transcript: Transcript,
        target: tuple[str, bytes] | None,
        progressed: Callable[[], None],
    ) -> None:
        self._setup = setup
        self._options = options
        self._seed = seed
        self._transcript = transcript
        self._progressed = progressed
        _check_same(target, setup.connection)
        self._generation = transcript.generation or self._begin()
        self._drafting = setup.device is not None and options.drafting and not transcript.cloud_only

    def _begin(self) -> Generation:
        setup, welcome = self._setup, self._setup.connection.welcome
        generation = Generation(
            stream=0,
            prompt_ids=setup.prompt_ids,
            max_tokens=self._options.budget(
                prompt_tokens=len(setup.prompt_ids), max_context=welcome.limits.max_context
            ),
            stop_ids=() if self._options.ignore_eos else welcome.eos_ids,
            most_ahead=welcome.limits.max_backlog,
            by_rejection=self._options.sampling.by_rejection,
        )
        self._transcript.begin(generation, setup.vocabulary)
        return generation

    async def run(self) -> None:
        """Generate to the end.

        Raises:
            UnknownPrefixError: the whole prompt must be sent.
            DraftwireError: the stream or its connection failed; the transcript has all that arrived.
        """
        setup, limits = self._setup, self._setup.connection.welcome.limits
        channel = await setup.connection.open_stream(self._open)
        self._generation.resume(channel.stream, most_ahead=min(limits.max_backlog, limits.max_draft_tokens))
        self._transcript.open_stream(drafting=self._drafting)
        if setup.degraded is not None:
            self._transcript.degrade(setup.degraded)
        loop = self._draft_loop(setup.device, channel) if setup.device is not None and self._drafting else None
        drafting = asyncio.create_task(loop.run()) if loop is not None else None
        try:
            end = await self._follow(channel, loop)
        finally:
            channel.close()
            if drafting is not None:
                await _end(drafting)
        setup.finished(channel.stream, self._generation.sequence)
        self._transcript.finish(end)

    def _open(self, stream: int) -> Open:
        setup, generation = self._setup, self._generation
        skipped = setup.prefix.length if setup.prefix is not None else 0
        return Open(
            stream=stream,
            token_ids=tuple(generation.sequence[skipped:]),
            prompt_length=generation.prompt_length,
            params=self._options.sampling,
            max_tokens=generation.remaining,
            seed=self._seed,
            policy=self._options.wire_policy,
            stop_ids=generation.stop_ids,
            prefix=setup.prefix,
            drafting=self._drafting,
            retain=setup.retain,
        )

    def _draft_loop(self, device: Device, channel: Channel) -> DraftLoop:
        async def send(frame: Draft) -> int:
            return await channel.send(frame) if channel.live else 0

        return DraftLoop(
            device,
            self._generation,
            Proposer(self._options.sampling, seed=self._seed, prompt_length=self._generation.prompt_length),
            make_controller(
                self._options.controller,
                look_ahead=self._options.look_ahead,
                figures=self._setup.figures,
                saves_passes=self._options.policy == "cost",
            ),
            self._transcript.stats,
            send=send,
            paused=self._setup.paused,
            degraded=self._transcript.degrade,
        )

    async def _follow(self, channel: Channel, loop: DraftLoop | None) -> End:
        """Apply what the verifier says until END."""
        try:
            while True:
                message, size = await channel.receive()
                self._transcript.stats.bytes_down += size
                match message:
                    case Opened():
                        continue
                    case Commit():
                        self._apply(message, loop)
                    case Error():
                        raise self._failure(message)
                    case End():
                        return message
        except BaseException:
            if channel.live:
                with contextlib.suppress(DraftwireError):
                    await channel.send(Cancel(stream=channel.stream))
            raise

    def _apply(self, commit: Commit, loop: DraftLoop | None) -> None:
        committed = self._generation.apply(commit)
        round_ = round_of(commit, committed, now=time.monotonic())
        if loop is not None:
            loop.committed(round_)
        self._transcript.record(commit, committed, round_)
        self._progressed()

    def _failure(self, error: Error) -> DraftwireError:
        if error.code is ErrorCode.SHUTTING_DOWN:  # and it would say so to the next stream as well
            self._setup.connection.retire()
        return stream_error(error)


def _check_same(target: tuple[str, bytes] | None, connection: VerifierConnection) -> None:
    """An answer must not begin with one model's words and end with another's."""
    welcome = connection.welcome
    if target is not None and target != (welcome.target, welcome.fingerprint):
        raise VerifierRefusedError(
            f"{connection.url} serves {welcome.target}, but the answer was begun by {target[0]}; "
            "give addresses of one target"
        )


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and see it end, even when cancelled meanwhile: a task left behind would outlive its stream."""
    task.cancel()
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted
