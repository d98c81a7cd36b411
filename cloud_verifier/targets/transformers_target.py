"""A target that is a transformers model: all streams' tokens in one packed row, one KV slot for each stream."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...protocol.errors import InvalidParameterError, UnsupportedModelError
from .free_memory import free_memory
from .kv_cache import KvBlock, KvCache
from .model_loading import LoadedModel, LoadedTokenizer, load_model, load_tokenizer, parse_device, parse_dtype
from .ragged_attention import LayerProbe, RaggedAttention, active
from .ragged_batch import RaggedBatch
from .self_check import check_against_plain
from .target import Block, SavedKv, TargetInfo, check_blocks

__all__ = ["TransformersTarget"]

logger = logging.getLogger(__name__)


class TransformersTarget:
    """See :class:`~.target.Target`; made by :meth:`load`."""

    def __init__(self, loaded: LoadedModel, tokenizer: LoadedTokenizer, *, kv_memory: int | None = None) -> None:
        self._model = loaded.model
        self._device: torch.device = loaded.model.device
        parameters = inspect.signature(loaded.model.forward).parameters
        self._keeps_rows = "logits_to_keep" in parameters
        if "position_ids" not in parameters:
            raise UnsupportedModelError(f"{loaded.name}: takes no explicit positions, so streams cannot share a batch")
        probe, logits_size = self._probe(loaded.name)
        self._layers = {module: (index, shape) for index, (module, shape) in enumerate(probe.layers.items())}
        self._cache = KvCache(
            list(probe.layers.values()),
            max_length=loaded.max_context,
            dtype=probe.dtype or loaded.model.dtype,
            device=self._device,
            budget=kv_memory,
        )
        if self._cache.max_length < loaded.max_context:
            logger.info(
                "the context is %d tokens, not the model's %d: no more fit into %d bytes of --kv-memory",
                self._cache.max_length,
                loaded.max_context,
                kv_memory,
            )
        self.tokenizer_json = tokenizer.json
        self.chat_template = tokenizer.chat_template
        self.special_tokens = tokenizer.special_tokens
        vocabulary_size = min(logits_size, tokenizer.size)
        eos_ids = {token for token in (*loaded.eos_ids, *tokenizer.eos_ids) if 0 <= token < vocabulary_size}
        self.info = TargetInfo(
            name=loaded.name,
            vocabulary_size=vocabulary_size,
            logits_size=logits_size,
            max_context=self._cache.max_length,
            eos_ids=tuple(sorted(eos_ids)),
            fingerprint=tokenizer.fingerprint,
            dtype=str(loaded.model.dtype).removeprefix("torch."),
            device=str(self._device),
        )

    @classmethod
    def load(
        cls,
        model: str,
        *,
        device: str = "cpu",
        dtype: str = "auto",
        threads: int | None = None,
        kv_memory: int | None = None,
        kv_share: float | None = None,
        trust_remote_code: bool = False,
    ) -> TransformersTarget:
        """Load a model and check that it can be served exactly.

        Args:
            model: hub id, folder, or GGUF file.
            device: ``cpu``, ``cuda``, ``cuda:1``, ...
            dtype: ``float32``, ``bfloat16``, ``float16``, or ``auto`` for that of the checkpoint (a GGUF file is
                unpacked to float32). On CPUs ``bfloat16`` makes drafts cheapest to verify.
            threads: for torch on the CPU, in the whole process; None leaves it as it is.
            kv_memory: bytes for keys and values of all streams, the prefix cache included; None for no limit. It
                limits the context where it does not hold one stream of the model's full length.
            kv_share: where ``kv_memory`` is None, take this part of what is free once the model is loaded, if the
                system tells.
            trust_remote_code: run Python code that comes with the model.

        Raises:
            ModelNotFoundError: no such model.
            UnsupportedModelError: it could not be served exactly; the message says why.
            InvalidParameterError: an option is out of range, ``kv_memory`` too little, or the device is not there.
            MissingDependencyError: reading the file takes a package that is not installed.
        """
        if threads is not None:
            if threads < 1:
                raise InvalidParameterError("threads", f"must be at least 1, not {threads}")
            torch.set_num_threads(threads)
        place, kind = parse_device(device), parse_dtype(dtype)
        loaded = load_model(model, device=place, dtype=kind, trust_remote_code=trust_remote_code)
        tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code)
        free = free_memory(loaded.model.device)
        if kv_memory is None and kv_share is not None and free is not None:
            kv_memory = int(free * kv_share)
        target = cls(loaded, tokenizer, kv_memory=kv_memory)
        if kv_memory is not None and free is not None and kv_memory > free:
            logger.warning(
                "--kv-memory allows %d bytes, but only %d are free once the model is loaded; lower it, or the "
                "verifier may run out of memory under load",
                kv_memory,
                free,
            )
        check_against_plain(target, loaded.model, loaded.name)
        return target

    @property
    def kv_bytes(self) -> int:
        """See :attr:`Target.kv_bytes`."""
        return self._cache.nbytes

    @property
    def kv_budget(self) -> int | None:
        """See :attr:`Target.kv_budget`."""
        return self._cache.budget

    def fits(self, room: int) -> bool:
        """See :meth:`Target.fits`."""
        return self._cache.fits(room)

    def open(self, stream: int, capacity: int, *, room: int = 1) -> None:
        """See :meth:`Target.open`."""
        self._cache.open(stream, capacity, room=room)

    def rollback(self, stream: int, length: int, *, wipe: bool = False) -> None:
        """See :meth:`Target.rollback`."""
        self._cache.rollback(stream, length, wipe=wipe)

    def length(self, stream: int) -> int:
        """See :meth:`Target.length`."""
        return self._cache.length(stream)

    def save(self, stream: int, start: int, end: int) -> KvBlock:
        """See :meth:`Target.save`."""
        return self._cache.save(stream, start, end)

    def restore(self, stream: int, blocks: Sequence[SavedKv]) -> None:
        """See :meth:`Target.restore`."""
        self._cache.restore(stream, [block for block in blocks if isinstance(block, KvBlock)])

    def release(self, block: SavedKv) -> None:
        """See :meth:`Target.release`."""
        if isinstance(block, KvBlock):
            self._cache.release(block)

    def close(self, stream: int) -> None:
        """See :meth:`Target.close`."""
        self._cache.close(stream)

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        if not blocks:
            return []
        cache = self._cache
        check_blocks(blocks, length=cache.length, capacity=cache.capacity, vocabulary_size=self.info.vocabulary_size)
        with torch.inference_mode():
            for block in blocks:
                cache.reserve(block.stream, block.start + len(block.tokens))
            batch = RaggedBatch(blocks, cache, self._device)
            with active(RaggedAttention(batch, self._layers)):
                logits = self._forward(batch.token_ids, batch.positions, batch.logit_rows)
            rows = logits[:, : self.info.vocabulary_size].float().cpu().numpy()
        for block in blocks:
            cache.advance(block.stream, block.start + len(block.tokens))
        ends = np.cumsum([block.rows for block in blocks])
        return np.split(rows, ends[:-1])

    def _forward(self, token_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Logits [rows, logits_size] of the packed row; only the rows wanted go through the head where it can."""
        options: dict[str, Any] = {"logits_to_keep": rows} if self._keeps_rows else {}
        output = self._model(
            input_ids=token_ids[None], position_ids=positions[None], use_cache=False, return_dict=True, **options
        )
        logits: torch.Tensor = output.logits[0]
        return logits if self._keeps_rows else logits.index_select(0, rows)

    def _probe(self, name: str) -> tuple[LayerProbe, int]:
        """Learn the attention layers and the width of the logits from a pass over one token."""
        probe = LayerProbe()
        zero = torch.zeros(1, dtype=torch.int64, device=self._device)
        try:
            with torch.inference_mode(), active(probe):
                logits = self._forward(zero, zero, zero)
        except Exception as error:  # remote code may raise anything
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UnsupportedModelError(f"{name}: cannot be run in ragged batches: {reason}") from error
        config = self._model.config.get_text_config()
        if len(probe.layers) != config.num_hidden_layers or probe.repeated:
            raise UnsupportedModelError(
                f"{name}: {len(probe.layers)} of its {config.num_hidden_layers} layers attend through transformers' "
                "attention interface; recurrent, hybrid and older implementations cannot be served exactly"
            )
        if probe.sinks:
            raise UnsupportedModelError(f"{name}: attention sinks are not supported")
        return probe, logits.shape[-1]
