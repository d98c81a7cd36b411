"""The draft alone: an answer goes on to its end without a verifier. These tokens are the draft's, not the target's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .device import Device
from .draft_loop import PAUSE_SECONDS, is_paused
from .generation import Generation
from .options import GenerationOptions
from .prompt import Vocabulary
from .proposer import Proposer
from .transcript import Transcript

__all__ = ["Solo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solo:
    """What the draft needs to write by itself. Its model is loaded.

    ``eos_ids`` end the answer, unless it was begun by a verifier, which has said what does.
    """

    device: Device
    vocabulary: Vocabulary
    prompt_ids: list[int]
    eos_ids: Sequence[int]
    paused: Callable[[], bool]

    async def run(self, transcript: Transcript, *, options: GenerationOptions, seed: int) -> None:
        """Write to the end, with the generation's own parameters and noise. No verifier is looked for meanwhile.

        Raises:
            DrafterError: the draft failed, or its context is full.
        """
        generation = transcript.generation or self._begin(transcript, options)
        proposer = Proposer(options.sampling, seed=seed, prompt_length=generation.prompt_length)
        stats = transcript.stats
        async with self.device.lease() as drafter:
            await self.device.read(drafter, generation.sequence)
            while not transcript.finish_if_whole():
                while is_paused(self.paused):
                    await asyncio.sleep(PAUSE_SECONDS)
                drafted = await self.device.draft(drafter, generation.sequence, proposer)
                stats.draft_steps += 1
                stats.draft_seconds += drafted.seconds
                stats.draft_cpu_seconds += drafted.cpu_seconds
                generation.extend(drafted.proposal.token)
                transcript.record_unverified(drafted.proposal.token)

    def _begin(self, transcript: Transcript, options: GenerationOptions) -> Generation:
        generation = Generation(
            stream=0,
            prompt_ids=self.prompt_ids,
            max_tokens=options.budget(
                prompt_tokens=len(self.prompt_ids), max_context=self.device.bundle.manifest.context_length
            ),
            stop_ids=() if options.ignore_eos else self.eos_ids,
            most_ahead=0,
        )
        transcript.begin(generation, self.vocabulary)
        return generation
