"""AsyncEdgeClient: the SDK's front door. The sync client drives this one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from ..protocol.errors import (
    ConnectionLostError,
    DrafterError,
    DraftwireError,
    FingerprintMismatchError,
    InvalidParameterError,
)
from ..protocol.messages import Prefix, Welcome
from .attempt import Setup
from .client_settings import ClientSettings, GenerationArguments, LossPolicy
from .connection import VerifierConnection
from .device import Device
from .events import Result
from .gamma.figures import Figures
from .lifeline import RECONNECT_SECONDS, Lifeline, Tell
from .onnx_runtime import DEFAULT_PROVIDERS
from .options import GenerationOptions
from .prompt import Prompt, Vocabulary
from .resumption import Resumption
from .retained import RetainedContext
from .solo import Solo
from .stream import AsyncStream
from .vocabulary_source import VocabularySource

__all__ = ["AsyncEdgeClient", "Status"]

AGENT = "draftwire-python/0.1"


@dataclass(frozen=True, slots=True)
class Status:
    """How the client generates now. ``reason`` is one line for people where a draft was asked for and is not used."""

    mode: Literal["drafting", "loading", "cloud-only"]
    reason: str | None = None


class AsyncEdgeClient:
    """Generates with a verifier, guessed ahead by a draft on this device.

    Args:
        url: the verifier, such as ``wss://verifier.example`` or ``ws://127.0.0.1:8300``; or several of one target, in
            order of preference: where one is lost or refuses, the next takes over.
        draft: folder of a draft bundle; None is cloud-only.
        tokenizer: folder or file of the target's ``tokenizer.json``, for clients without a draft; by default the
            verifier hands it out.
        api_key: sent as a bearer token in a header.
        threads: cores the draft may use; by default half of them.
        providers: onnxruntime execution providers, in order of preference.
        pause_drafting: asked before every drafting step; while it returns True the device does not draft.
        require_draft: raise instead of going on cloud-only when the draft cannot be used.
        retain_context: ask the verifier to keep the last stream's context, so that the next prompt that starts with
            it, as in a chat, sends only what is new.
        timeout: seconds for connecting.
        reconnect_seconds: how long a lost verifier is searched for while answers wait, and a busy one waited for. By
            default 30 once a connection has been made, but a first one fails after one look at each address. A number
            is for both; with 0 an answer ends with its connection.
        wait_when_busy: wait for a verifier that has no room; otherwise BusyError is raised at once.
        on_verifier_loss: when no verifier is found in that time, ``raise``, or go on with the draft alone
            (``draft_only``): its tokens are marked as unverified in every event and in the result, as they are not the
            target's. An answer that has begun to go on alone does so to its end; the next one looks for a verifier.
        figures: what this device measured before, as ``client.figures.dump()`` gave it; only a start, never needed.
        defaults: options of every generation unless given there; see :meth:`stream`.

    Use it as an async context manager, or call :meth:`close`. One connection serves all its streams; it is opened by
    the first one. When it is lost, running streams go on from what has been committed on another one: greedy and
    coupled text is what it would have been, to the last token.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        draft: str | PathLike[str] | None = None,
        tokenizer: str | PathLike[str] | None = None,
        api_key: str | None = None,
        threads: int | None = None,
        providers: Sequence[str] = DEFAULT_PROVIDERS,
        pause_drafting: Callable[[], bool] | None = None,
        require_draft: bool = False,
        retain_context: bool = False,
        timeout: float = 10.0,
        reconnect_seconds: float | None = None,
        wait_when_busy: bool = True,
        on_verifier_loss: LossPolicy = "raise",
        figures: Mapping[str, Any] | None = None,
        **defaults: Unpack[GenerationArguments],
    ) -> None:
        self._settings = ClientSettings.of(
            url,
            draft=draft,
            tokenizer=tokenizer,
            api_key=api_key,
            threads=threads,
            providers=providers,
            pause_drafting=pause_drafting,
            require_draft=require_draft,
            retain_context=retain_context,
            timeout=timeout,
            reconnect_seconds=reconnect_seconds,
            wait_when_busy=wait_when_busy,
            on_verifier_loss=on_verifier_loss,
        )
        self._defaults = defaults
        GenerationOptions.of(defaults, {})  # what is given wrong is told here
        self._lock = asyncio.Lock()
        self._streams: set[AsyncStream] = set()
        self._device: Device | None = None
        self._figures = Figures() if figures is None else Figures.load(figures)
        self._device_fault: str | None = None
        self._lifeline = Lifeline(
            self._settings.urls, self._connect, reconnect_seconds=self._settings.reconnect_seconds
        )
        self._vocabularies = VocabularySource(
            self._settings.tokenizer, headers=self._settings.headers, timeout=self._settings.timeout
        )
        self._retained = RetainedContext()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- generating ---------------------------------------------------------------------------------------------

    def stream(self, prompt: Prompt, **options: Unpack[GenerationArguments]) -> AsyncStream:
        """Start a generation when entered: ``async with client.stream(prompt) as stream``.

        Args:
            prompt: text, chat messages, or token ids.
            options: ``max_tokens``, ``seed``, ``controller``, ``look_ahead``, ``policy``, ``ignore_eos``
                (:class:`~.options.GenerationOptions`), and every sampling parameter
                (:class:`~draftwire.protocol.sampling.SamplingParams`) by its own name.

        Raises:
            InvalidParameterError: at once, for an option out of range or unknown.
        """
        return AsyncStream(_Preparation(self, prompt), GenerationOptions.of(self._defaults, options), self._streams)

    async def generate(self, prompt: Prompt, **options: Unpack[GenerationArguments]) -> Result:
        """Generate to the end; arguments as for :meth:`stream`."""
        async with self.stream(prompt, **options) as stream:
            return await stream.get_final_result()

    async def connect(self) -> Welcome:
        """Connect now rather than with the first generation. Returns what the verifier said of itself."""
        return (await self._ready()).welcome

    async def wait_for_draft(self) -> Status:
        """Wait until the draft is loaded, or known to be unusable."""
        await self._ready()
        if self._device is not None:
            try:
                await self._device.drafter()
            except DraftwireError as error:
                self._device_fault = str(error)
        return self.status

    async def ping(self) -> float:
        """One round trip to the verifier, in seconds."""
        return await (await self._ready()).ping()

    @property
    def device(self) -> Device | None:
        """The draft on this device, once :meth:`connect` or a generation has opened it."""
        return self._device

    @property
    def figures(self) -> Figures:
        """What this device has measured. Kept with ``figures.dump()``, it gives the next client a better start."""
        return self._figures

    @property
    def status(self) -> Status:
        """Whether the draft is in use, and if not, why."""
        reason = self._degraded_reason()
        if self._settings.draft is None or reason is not None:
            return Status("cloud-only", reason)
        if self._device is None or not self._device.loaded:
            return Status("loading")
        return Status("drafting")

    async def close(self) -> None:
        """Close the connection and free the draft. Streams still open end with ConnectionLostError."""
        self._closed = True
        reason = ConnectionLostError("the client was closed; what was committed has been delivered")
        await asyncio.gather(*(stream.close(reason) for stream in list(self._streams)))
        await self._lifeline.close()
        async with self._lock:  # whoever is loading now has it to hand over
            if self._device is not None:
                await self._device.close()

    # --- getting ready ------------------------------------------------------------------------------------------

    async def _ready(self, tell: Tell = lambda _: None) -> VerifierConnection:
        """A usable connection; before it the draft's bundle, whose fingerprint the handshake sends."""
        async with self._lock:
            if self._closed:
                raise InvalidParameterError("client", "is closed; make a new one")
            if self._settings.draft is not None and self._device is None and self._device_fault is None:
                await self._open_device(self._settings.draft)
        return await self._lifeline.connection(tell)

    async def _connect(self, url: str) -> VerifierConnection:
        return await VerifierConnection.connect(
            url,
            fingerprint=self._device.bundle.tokenizer.fingerprint if self._device is not None else None,
            agent=AGENT,
            headers=self._settings.headers,
            timeout=self._settings.timeout,
        )

    async def _open_device(self, folder: Path) -> None:
        try:
            self._device = await Device.open(folder, threads=self._settings.threads, providers=self._settings.providers)
            if self._settings.require_draft:  # then nothing may be generated before it is known to work
                await self._device.drafter()
        except InvalidParameterError:
            raise
        except DraftwireError as error:
            if self._settings.require_draft:
                raise
            self._device_fault = str(error)

    async def _vocabulary_for(self, connection: VerifierConnection) -> Vocabulary:
        """The bundle's vocabulary where it is the target's; else one given; else the one the verifier hands out."""
        if self._device is not None and connection.drafting_allowed:
            return Vocabulary(self._device.bundle.tokenizer, self._device.bundle.chat_template)
        return await self._vocabularies.of(connection)

    def _degraded_reason(self) -> str | None:
        """Why the draft that was asked for is not used; None when it is, or may yet be."""
        if self._device_fault is not None:
            return self._device_fault
        if self._device is not None and self._device.fault is not None:
            return str(self._device.fault)
        connection = self._lifeline.last
        if self._device is not None and connection is not None and not connection.drafting_allowed:
            return _mismatch(self._device.bundle.manifest.name, connection.welcome.target)
        return None

    def _draft_error(self, reason: str) -> DraftwireError:
        if self._device is not None and isinstance(self._device.fault, DraftwireError):
            return self._device.fault
        if self._device is None or self._device.fault is not None:
            return DrafterError(reason)
        return FingerprintMismatchError(reason)

    async def _solo_device(self) -> Device | None:
        """The draft, loaded, where it may write by itself and shares the vocabulary of what was written so far."""
        if self._settings.on_verifier_loss != "draft_only" or self._device is None:
            return None
        try:
            await self._device.drafter()
        except DraftwireError:
            return None
        return self._device if self._degraded_reason() is None else None


class _Preparation:
    """What the streams of one prompt need of the client; see :class:`.stream.Source`."""

    def __init__(self, client: AsyncEdgeClient, prompt: Prompt) -> None:
        self._client = client
        self._prompt = prompt
        self._encoded: tuple[Vocabulary, list[int]] | None = None
        self._prefix: tuple[VerifierConnection, Prefix | None] | None = None

    async def connect(self, tell: Tell) -> VerifierConnection:
        return await self._client._ready(tell)

    async def setup(self, connection: VerifierConnection) -> Setup:
        client, settings = self._client, self._client._settings
        if self._encoded is None:
            vocabulary = await client._vocabulary_for(connection)
            self._encoded = (vocabulary, vocabulary.encode(self._prompt, size=connection.welcome.vocabulary_size))
        vocabulary, prompt_ids = self._encoded
        if self._prefix is None:
            self._prefix = (connection, client._retained.take(connection, prompt_ids))
        degraded = client._degraded_reason() if settings.draft is not None else None
        if degraded is not None and settings.require_draft:
            raise client._draft_error(degraded)
        return Setup(
            connection=connection,
            vocabulary=vocabulary,
            prompt_ids=prompt_ids,
            prefix=self._prefix[1] if self._prefix[0] is connection else None,
            retain=settings.retain_context,
            device=client._device if degraded is None else None,
            degraded=degraded,
            figures=client._figures,
            paused=settings.paused,
            finished=lambda stream, sequence: self._finished(connection, stream, sequence),
        )

    def drop_prefix(self) -> None:
        if self._prefix is not None:
            self._prefix = (self._prefix[0], None)

    async def solo(self) -> Solo | None:
        device = await self._client._solo_device()
        if device is None:
            return None
        manifest = device.bundle.manifest
        if self._encoded is None:
            vocabulary = Vocabulary(device.bundle.tokenizer, device.bundle.chat_template)
            self._encoded = (vocabulary, vocabulary.encode(self._prompt, size=manifest.vocabulary.size))
        return Solo(
            device=device,
            vocabulary=self._encoded[0],
            prompt_ids=self._encoded[1],
            eos_ids=manifest.vocabulary.eos_ids,
            paused=self._client._settings.paused,
        )

    def resumption(self) -> Resumption:
        settings = self._client._settings
        seconds = RECONNECT_SECONDS if settings.reconnect_seconds is None else settings.reconnect_seconds
        return Resumption(seconds=seconds, wait_when_busy=settings.wait_when_busy)

    def _finished(self, connection: VerifierConnection, stream: int, sequence: list[int]) -> None:
        if self._client._settings.retain_context:
            self._client._retained.keep(connection, stream, sequence)


def _mismatch(draft: str, target: str) -> str:
    return (
        f"the draft {draft} does not share the vocabulary of the target {target}; "
        "export a draft of the target's own family"
    )
