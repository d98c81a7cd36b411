"""Reading: how each frame becomes a message. A reader starts after the first byte and the stream id."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from .codes import (
    COMMIT_ECHO,
    COMMIT_TOKEN,
    DRAFT_CONTINUES,
    DRAFT_PARENTS,
    DRAFT_SOURCE,
    DRAFT_SPARSE_Q,
    ERROR_RETRY,
    HELLO_FINGERPRINT,
    MAX_AGENT_BYTES,
    MAX_ERROR_BYTES,
    MAX_SPECIAL_IDS,
    MAX_TARGET_BYTES,
    OPEN_DRAFTING,
    OPEN_PREFIX,
    OPEN_RETAIN,
    SAMPLING_MODES,
    SAMPLING_REALS,
    Capability,
    EndReason,
    MessageType,
    Policy,
)
from .errors import ErrorCode
from .fingerprint import FINGERPRINT_BYTES
from .messages import Cancel, Commit, Draft, End, Error, Hello, Limits, Message, Open, Opened, Prefix, Welcome
from .sampling import SamplingParams
from .sparse_q import MAX_SUPPORT, SparseQ
from .wire import Reader

__all__ = ["READERS"]


def _read_commit(reader: Reader, flags: int, _: Limits | None) -> Commit:
    return Commit(
        stream=reader.stream or 0,
        path=reader.varint(),
        accepted=reader.varint(),
        token=reader.ids(1)[0] if flags & COMMIT_TOKEN else None,
        echo=reader.u16() if flags & COMMIT_ECHO else None,
        queued=reader.varint(),
        computed=reader.varint(),
    )


def _read_draft(reader: Reader, flags: int, limits: Limits | None) -> Draft:
    path, start, sent_at, count = reader.varint(), reader.varint(), reader.u16(), reader.varint()
    if limits is not None:
        limits.check_draft(count, reader.stream)
    token_ids = reader.ids(count)
    sparse_q = tuple(_read_sparse_q(reader) for _ in range(count)) if flags & DRAFT_SPARSE_Q else None
    confidences = tuple(reader.raw(count)) if sparse_q is None else ()
    parents = tuple(reader.varint() for _ in range(count)) if flags & DRAFT_PARENTS else None
    source = reader.u8() if flags & DRAFT_SOURCE else 0
    if flags & DRAFT_SOURCE and not source:
        raise reader.malformed("source 0 is written as no source")
    return Draft(
        stream=reader.stream or 0,
        path=path,
        start=start,
        token_ids=token_ids,
        confidences=confidences,
        sent_at=sent_at,
        continues=bool(flags & DRAFT_CONTINUES),
        sparse_q=sparse_q,
        parents=parents,
        source=source,
    )


def _read_sparse_q(reader: Reader) -> SparseQ:
    count = reader.varint()
    if not 1 <= count <= MAX_SUPPORT:
        raise reader.malformed(f"a draft distribution over {count} tokens; 1 to {MAX_SUPPORT} are allowed")
    return SparseQ(reader.ids(count), tuple(reader.raw(count)))


def _read_open(reader: Reader, flags: int, limits: Limits | None) -> Open:
    prefix = Prefix(stream=reader.varint(), length=reader.varint()) if flags & OPEN_PREFIX else None
    prompt_length, max_tokens, policy, seed = reader.varint(), reader.varint(), reader.u8(), reader.u64()
    params = _read_params(reader)
    stop_ids = _read_special_ids(reader)
    count = reader.varint()
    if limits is not None:
        limits.check_sequence(count + (prefix.length if prefix is not None else 0), max_tokens, reader.stream)
    if policy not in (Policy.LATENCY, Policy.COST):
        raise reader.malformed(f"policy {policy} is unknown")
    return Open(
        stream=reader.stream or 0,
        token_ids=reader.ids(count),
        prompt_length=prompt_length,
        params=params,
        max_tokens=max_tokens,
        seed=seed,
        policy=Policy(policy),
        stop_ids=stop_ids,
        prefix=prefix,
        drafting=bool(flags & OPEN_DRAFTING),
        retain=bool(flags & OPEN_RETAIN),
        extensions=_read_extensions(reader),
    )


def _read_params(reader: Reader) -> SamplingParams:
    mode = reader.u8()
    if mode >= len(SAMPLING_MODES):
        raise reader.malformed(f"verification mode {mode} is unknown")
    reals = {name: reader.f64() for name in SAMPLING_REALS}
    top_k, count = reader.varint(), reader.varint()
    tokens = reader.ids(count)
    if any(left >= right for left, right in pairwise(tokens)):
        raise reader.malformed("logit biases out of order")
    biases = tuple((token, reader.f64()) for token in tokens)
    return SamplingParams(mode=SAMPLING_MODES[mode], top_k=top_k, logit_bias=biases, **reals)


def _read_special_ids(reader: Reader) -> tuple[int, ...]:
    count = reader.varint()
    if count > MAX_SPECIAL_IDS:
        raise reader.malformed(f"{count} special ids, at most {MAX_SPECIAL_IDS} are allowed")
    return reader.ids(count)


def _read_cancel(reader: Reader, _: int, __: Limits | None) -> Cancel:
    return Cancel(stream=reader.stream or 0)


def _read_opened(reader: Reader, _: int, __: Limits | None) -> Opened:
    return Opened(stream=reader.stream or 0, cached=reader.varint())


def _read_end(reader: Reader, _: int, __: Limits | None) -> End:
    reason = reader.u8()
    if reason not in EndReason.__members__.values():
        raise reader.malformed(f"end reason {reason} is unknown")
    return End(
        stream=reader.stream or 0,
        reason=EndReason(reason),
        prompt_tokens=reader.varint(),
        committed_tokens=reader.varint(),
        drafted_tokens=reader.varint(),
        accepted_tokens=reader.varint(),
        target_passes=reader.varint(),
        run_ahead_tokens=reader.varint(),
    )


def _read_error(reader: Reader, flags: int, _: Limits | None) -> Error:
    code = reader.u8()
    return Error(
        stream=reader.stream or 0,
        # Later releases may say more precisely what failed; to this one it is a failure all the same.
        code=ErrorCode(code) if code in ErrorCode.__members__.values() else ErrorCode.INTERNAL,
        retry_after_ms=reader.varint() if flags & ERROR_RETRY else None,
        message=reader.text(MAX_ERROR_BYTES),
    )


def _read_hello(reader: Reader, flags: int, _: Limits | None) -> Hello:
    return Hello(
        version=reader.u8(),
        capabilities=Capability(reader.varint()),
        fingerprint=reader.raw(FINGERPRINT_BYTES) if flags & HELLO_FINGERPRINT else None,
        agent=reader.text(MAX_AGENT_BYTES),
        extensions=_read_extensions(reader),
    )


def _read_welcome(reader: Reader, _: int, __: Limits | None) -> Welcome:
    version, capabilities = reader.u8(), Capability(reader.varint())
    fingerprint, target = reader.raw(FINGERPRINT_BYTES), reader.text(MAX_TARGET_BYTES)
    vocabulary_size = reader.varint()
    if not 2 <= vocabulary_size < 1 << 31:
        raise reader.malformed(f"a vocabulary of {vocabulary_size} tokens")
    reader.vocabulary_size = vocabulary_size
    return Welcome(
        version=version,
        capabilities=capabilities,
        fingerprint=fingerprint,
        target=target,
        vocabulary_size=vocabulary_size,
        eos_ids=_read_special_ids(reader),
        limits=Limits(
            max_context=reader.varint(),
            max_streams=reader.varint(),
            max_message_bytes=reader.varint(),
            max_draft_tokens=reader.varint(),
            max_backlog=reader.varint(),
        ),
        extensions=_read_extensions(reader),
    )


def _read_extensions(reader: Reader) -> tuple[tuple[int, bytes], ...]:
    extensions = []
    while reader.remaining:
        tag, size = reader.varint(), reader.varint()
        extensions.append((tag, reader.raw(size)))
    return tuple(extensions)


READERS: dict[MessageType, Callable[[Reader, int, Limits | None], Message]] = {
    MessageType.HELLO: _read_hello,
    MessageType.OPEN: _read_open,
    MessageType.DRAFT: _read_draft,
    MessageType.CANCEL: _read_cancel,
    MessageType.WELCOME: _read_welcome,
    MessageType.OPENED: _read_opened,
    MessageType.COMMIT: _read_commit,
    MessageType.ERROR: _read_error,
    MessageType.END: _read_end,
}
