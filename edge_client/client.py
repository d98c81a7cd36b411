"""AsyncEdgeClient: the SDK's front door. The sync client drives this one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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
from .client_settings import ClientSettings, GenerationArguments
from .connection import VerifierConnection
from .device import Device
from .events import Result
from .gamma.figures import Figures
from .onnx_runtime import DEFAULT_PROVIDERS
from .options import GenerationOptions
from .prompt import Prompt, Vocabulary
from .stream import AsyncStream, Setup
from .vocabulary_source import fetch_vocabulary, read_vocabulary

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
        url: the verifier, such as ``wss://verifier.example`` or ``ws://127.0.0.1:8300``.
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
        figures: what this device measured before, as ``client.figures.dump()`` gave it; only a start, never needed.
        defaults: options of every generation unless given there; see :meth:`stream`.

    Use it as an async context manager, or call :meth:`close`. One connection serves all its streams; it is opened by
    the first one, and opened again after it was lost.
    """

    def __init__(
        self,
        url: str,
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
        )
        self._defaults = defaults
        GenerationOptions.of(defaults, {})  # what is given wrong is told here
        self._lock = asyncio.Lock()
        self._streams: set[AsyncStream] = set()
        self._device: Device | None = None
        self._figures = Figures() if figures is None else Figures.load(figures)
        self._device_fault: str | None = None
        self._connection: VerifierConnection | None = None
        self._vocabulary: Vocabulary | None = None
        self._retained: tuple[VerifierConnection, int, list[int]] | None = None
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
        return AsyncStream(lambda: self._setups(prompt), GenerationOptions.of(self._defaults, options), self._streams)

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
        async with self._lock:  # whoever is connecting or loading now has it to hand over
            if self._connection is not None:
                await self._connection.close()
            if self._device is not None:
                await self._device.close()

    # --- getting ready ------------------------------------------------------------------------------------------

    async def _setups(self, prompt: Prompt) -> AsyncIterator[Setup]:
        """What a stream needs; a second time, without the prefix, where the verifier no longer holds it."""
        connection = await self._ready()
        vocabulary = await self._vocabulary_for(connection)
        prompt_ids = vocabulary.encode(prompt, size=connection.welcome.vocabulary_size)
        prefix = self._prefix(connection, prompt_ids)
        for attempt in [prefix, None] if prefix is not None else [None]:
            yield self._setup(connection, vocabulary, prompt_ids, attempt)

    def _setup(
        self,
        connection: VerifierConnection,
        vocabulary: Vocabulary,
        prompt_ids: list[int],
        prefix: Prefix | None,
    ) -> Setup:
        degraded = self._degraded_reason() if self._settings.draft is not None else None
        if degraded is not None and self._settings.require_draft:
            raise self._draft_error(degraded)
        return Setup(
            connection=connection,
            vocabulary=vocabulary,
            prompt_ids=prompt_ids,
            prefix=prefix,
            retain=self._settings.retain_context,
            device=self._device if degraded is None else None,
            degraded=degraded,
            figures=self._figures,
            paused=self._settings.paused,
            finished=lambda stream, sequence: self._remember(connection, stream, sequence),
        )

    async def _ready(self) -> VerifierConnection:
        """The connection, opened if need be; with it the draft's bundle, whose fingerprint the handshake sends."""
        async with self._lock:
            if self._closed:
                raise InvalidParameterError("client", "is closed; make a new one")
            if self._settings.draft is not None and self._device is None and self._device_fault is None:
                await self._open_device(self._settings.draft)
            if self._connection is None or not self._connection.usable:
                bundle = self._device.bundle if self._device is not None else None
                self._connection = await VerifierConnection.connect(
                    self._settings.url,
                    fingerprint=bundle.tokenizer.fingerprint if bundle is not None else None,
                    agent=AGENT,
                    headers=self._settings.headers,
                    timeout=self._settings.timeout,
                )
            return self._connection

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
        if self._vocabulary is None:
            welcome = connection.welcome
            if self._settings.tokenizer is not None:
                vocabulary = await asyncio.to_thread(read_vocabulary, self._settings.tokenizer)
                if vocabulary.tokenizer.fingerprint != welcome.fingerprint:
                    raise FingerprintMismatchError(
                        f"the tokenizer at {self._settings.tokenizer} is not that of {welcome.target}; "
                        "leave it out to use the verifier's"
                    )
                self._vocabulary = vocabulary
            else:
                self._vocabulary = await asyncio.to_thread(
                    fetch_vocabulary, self._settings.url, headers=self._settings.headers, timeout=self._settings.timeout
                )
        return self._vocabulary

    def _degraded_reason(self) -> str | None:
        """Why the draft that was asked for is not used; None when it is, or may yet be."""
        if self._device_fault is not None:
            return self._device_fault
        if self._device is not None and self._device.fault is not None:
            return str(self._device.fault)
        if self._device is not None and self._connection is not None and not self._connection.drafting_allowed:
            return _mismatch(self._device.bundle.manifest.name, self._connection.welcome.target)
        return None

    def _draft_error(self, reason: str) -> DraftwireError:
        if self._device is not None and isinstance(self._device.fault, DraftwireError):
            return self._device.fault
        if self._device is None or self._device.fault is not None:
            return DrafterError(reason)
        return FingerprintMismatchError(reason)

    # --- what an earlier stream left behind ---------------------------------------------------------------------

    def _remember(self, connection: VerifierConnection, stream: int, sequence: list[int]) -> None:
        if self._settings.retain_context:
            self._retained = (connection, stream, sequence)

    def _prefix(self, connection: VerifierConnection, prompt_ids: list[int]) -> Prefix | None:
        """The retained stream, as far as the prompt starts with it; at least one token must be new."""
        retained, self._retained = self._retained, None
        if retained is None or retained[0] is not connection:
            return None
        shared = 0
        for mine, held in zip(prompt_ids[:-1], retained[2], strict=False):
            if mine != held:
                break
            shared += 1
        return Prefix(stream=retained[1], length=shared) if shared else None


def _mismatch(draft: str, target: str) -> str:
    return (
        f"the draft {draft} does not share the vocabulary of the target {target}; "
        "export a draft of the target's own family"
    )
