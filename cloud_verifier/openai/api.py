"""``/v1/completions``, ``/v1/chat/completions`` and ``/v1/models/{id}``, as OpenAI's clients call them.

    read -> encode -> open streams -> follow them -> answer

Nothing is drafted for these streams: they are the plain cloud-only baseline, and cost the engine what any stream does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ...protocol.errors import DraftwireError, InvalidParameterError, ModelNotFoundError
from ...protocol.messages import Error, Limits, Open
from ..engine.engine import Engine
from ..service.catalog import model_card
from ..service.http import Call, Reply, Route, json_reply
from ..targets.target import Target
from .answer import Answer, EventStream, whole_reply
from .choice import Choice
from .endpoint import ChatCompletions, Completions, Endpoint
from .fields import Fields, read_json, shown
from .generation import Generation, GenerationError
from .options import Options, read_options
from .problem import Problem, refusal_reply
from .vocabulary import Vocabulary

__all__ = ["OpenAiApi"]

_INLINE_BYTES = 8 * 1024
"""A request up to this size is read in the event loop; a larger one in a thread, as its tokens take a while."""

_MOST_CHOICES = 32
_MODELS = "/v1/models/"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A request, read: its options, for each prompt its token ids and how many may follow, and which field said so."""

    options: Options
    prompts: Sequence[tuple[int, ...]]
    budgets: Sequence[int]
    output_field: str


class OpenAiApi:
    """Answers OpenAI's clients on an engine.

    Args:
        engine: running.
        target: what it serves.
        limits: what clients are promised.
        most_choices: of one call, over all its prompts.
    """

    def __init__(self, engine: Engine, target: Target, limits: Limits, *, most_choices: int = _MOST_CHOICES) -> None:
        self._engine = engine
        self._info = target.info
        self._limits = limits
        self._most_choices = most_choices
        self._vocabulary = Vocabulary(target)

    def routes(self) -> list[Route]:
        """The endpoints."""
        endpoints: dict[str, Endpoint] = {
            "/v1/completions": Completions(),
            "/v1/chat/completions": ChatCompletions(),
        }
        routes = [
            Route(method="POST", path=path, handler=partial(self._answer, endpoint), refuse=refusal_reply)
            for path, endpoint in endpoints.items()
        ]
        return [*routes, Route(method="GET", path=f"{_MODELS}{{id:.+}}", handler=self._model, refuse=refusal_reply)]

    async def _model(self, call: Call) -> Reply:
        try:
            self._check_model(call.path.removeprefix(_MODELS))
        except DraftwireError as error:
            return _refused(call, error).reply()
        return json_reply(model_card(self._info, max_context=self._limits.max_context))

    async def _answer(self, endpoint: Endpoint, call: Call) -> Reply:
        try:
            read = partial(self._read, endpoint, call.body, call.visitor.allowance.most_output)
            asked = read() if len(call.body) <= _INLINE_BYTES else await asyncio.to_thread(read)
        except DraftwireError as error:
            return _refused(call, error).about(prompt=endpoint.prompt_field).reply()
        try:
            return await self._generate(endpoint, call, asked)
        except DraftwireError as error:  # who raises it counts it
            problem = Problem.of(error)
        except GenerationError as error:
            problem = error.problem
        return problem.about(prompt=endpoint.prompt_field, output=asked.output_field).reply()

    # --- reading ------------------------------------------------------------------------------------------------

    def _read(self, endpoint: Endpoint, body: bytes, most_output: int | None) -> _Asked:
        fields = Fields(read_json(body))
        options = read_options(fields, most_choices=self._most_choices)
        if options.model is not None:
            self._check_model(options.model)
        most = endpoint.read_most(fields)
        default = min(most.default, most_output or most.default)
        endpoint.refuse_unsupported(fields, options)
        prompts = endpoint.read_prompts(fields, self._vocabulary)
        fields.finish()
        if len(prompts) * options.count > self._most_choices:
            problem = f"{len(prompts)} prompts with n {options.count} are more than {self._most_choices} choices"
            raise InvalidParameterError(endpoint.prompt_field, f"{problem}; send them in several calls")
        budgets = [self._budget(len(prompt), most.wanted, default) for prompt in prompts]
        return _Asked(options=options, prompts=prompts, budgets=budgets, output_field=most.field)

    def _check_model(self, name: str) -> None:
        if name != self._info.name:
            raise ModelNotFoundError(f"the model {shown(name)} is not served here; {self._info.name} is")

    def _budget(self, prompt_tokens: int, wanted: int | None, default: int) -> int:
        """At least 1, so that a prompt too long is refused with the limit in words."""
        if wanted is not None:
            return wanted
        return max(1, min(default, self._limits.max_context - prompt_tokens))

    # --- answering ----------------------------------------------------------------------------------------------

    async def _generate(self, endpoint: Endpoint, call: Call, asked: _Asked) -> Reply:
        options = asked.options
        requests, choices = self._streams(asked)
        generation = Generation(self._engine, call.visitor, requests, choices)
        answer = Answer(
            endpoint=endpoint,
            model=self._info.name,
            seed=options.seed,
            prompts=[len(prompt) for prompt in asked.prompts],
            choices=choices,
            include_usage=options.include_usage,
        )
        handed_over = False
        try:
            await generation.start()
            if not options.stream:
                return await whole_reply(answer, generation)
            reply = EventStream(answer, generation).reply()
            handed_over = True
            return reply
        finally:
            if not handed_over:
                generation.close()

    def _streams(self, asked: _Asked) -> tuple[list[Open], list[Choice]]:
        """A stream and a choice for each sample of each prompt."""
        options = asked.options
        requests: list[Open] = []
        choices: list[Choice] = []
        for prompt, budget in zip(asked.prompts, asked.budgets, strict=True):
            for sample in range(options.count):
                requests.append(
                    Open(
                        stream=len(requests) + 1,
                        token_ids=prompt,
                        prompt_length=len(prompt),
                        params=options.sampling,
                        max_tokens=budget,
                        seed=options.seed_of(sample),
                        stop_ids=() if options.ignore_eos else self._info.eos_ids,
                    )
                )
                choices.append(
                    Choice(index=len(choices), decoder=self._vocabulary, prompt_ids=prompt, stops=options.stops)
                )
        return requests, choices


def _refused(call: Call, error: DraftwireError) -> Problem:
    """What was wrong with a call, and counts it: nobody else has seen it."""
    missing = isinstance(error, ModelNotFoundError)
    call.visitor.refused("model_not_found" if missing else Error.of(None, error).code.name.lower())
    return Problem.of(error)
