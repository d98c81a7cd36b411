"""Writing: how each message becomes bytes. Limits are the business of frames.py."""

from __future__ import annotations

from .codes import (
    COMMIT_ECHO,
    COMMIT_TOKEN,
    DRAFT_CONTINUES,
    DRAFT_PARENTS,
    DRAFT_SOURCE,
    DRAFT_SPARSE_Q,
    ERROR_RETRY,
    HELLO_FINGERPRINT,
    OPEN_DRAFTING,
    OPEN_PREFIX,
    OPEN_RETAIN,
    SAMPLING_MODES,
    SAMPLING_REALS,
    MessageType,
)
from .messages import (
    Cancel,
    Commit,
    Draft,
    End,
    Error,
    Hello,
    Message,
    Open,
    Opened,
    Welcome,
)
from .sampling import SamplingParams
from .wire import Writer

__all__ = ["write_message"]


def write_message(message: Message, vocabulary_size: int | None) -> bytes:
    """Encode a message whose limits have been checked."""
    match message:
        case Commit():
            return _write_commit(message, vocabulary_size)
        case Draft():
            return _write_draft(message, vocabulary_size)
        case Open():
            return _write_open(message, vocabulary_size)
        case Cancel():
            return _start(message.type, 0, message.stream).frame()
        case Opened():
            writer = _start(message.type, 0, message.stream)
            writer.varint(message.cached)
            return writer.frame()
        case End():
            return _write_end(message)
        case Error():
            return _write_error(message)
        case Hello():
            return _write_hello(message)
        case Welcome():
            return _write_welcome(message)


def _start(kind: MessageType, flags: int, stream: int, vocabulary_size: int | None = None) -> Writer:
    writer = Writer(kind | flags, vocabulary_size)
    writer.varint(stream)
    return writer


def _write_commit(message: Commit, vocabulary_size: int | None) -> bytes:
    flags = (COMMIT_TOKEN if message.token is not None else 0) | (COMMIT_ECHO if message.echo is not None else 0)
    writer = _start(message.type, flags, message.stream, vocabulary_size)
    writer.varint(message.path)
    writer.varint(message.accepted)
    if message.token is not None:
        writer.ids("token", (message.token,))
    if message.echo is not None:
        writer.u16(message.echo)
    writer.varint(message.queued)
    writer.varint(message.computed)
    return writer.frame()


def _write_draft(message: Draft, vocabulary_size: int | None) -> bytes:
    flags = (
        (DRAFT_CONTINUES if message.continues else 0)
        | (DRAFT_SPARSE_Q if message.sparse_q is not None else 0)
        | (DRAFT_PARENTS if message.parents is not None else 0)
        | (DRAFT_SOURCE if message.source else 0)
    )
    writer = _start(message.type, flags, message.stream, vocabulary_size)
    writer.varint(message.path)
    writer.varint(message.start)
    writer.u16(message.sent_at)
    writer.varint(len(message.token_ids))
    writer.ids("token_ids", message.token_ids)
    if message.sparse_q is None:
        writer.raw(bytes(message.confidences))
    else:
        for q in message.sparse_q:
            writer.varint(len(q.ids))
            writer.ids("sparse_q.ids", q.ids)
            writer.raw(bytes(q.weights))
    for parent in message.parents or ():
        writer.varint(parent)
    if message.source:
        writer.u8(message.source)
    return writer.frame()


def _write_open(message: Open, vocabulary_size: int | None) -> bytes:
    flags = (
        (OPEN_PREFIX if message.prefix is not None else 0)
        | (OPEN_DRAFTING if message.drafting else 0)
        | (OPEN_RETAIN if message.retain else 0)
    )
    writer = _start(message.type, flags, message.stream, vocabulary_size)
    if message.prefix is not None:
        writer.varint(message.prefix.stream)
        writer.varint(message.prefix.length)
    writer.varint(message.prompt_length)
    writer.varint(message.max_tokens)
    writer.u8(message.policy)
    writer.u64(message.seed)
    _write_params(writer, message.params)
    writer.varint(len(message.stop_ids))
    writer.ids("stop_ids", message.stop_ids)
    writer.varint(len(message.token_ids))
    writer.ids("token_ids", message.token_ids)
    _write_extensions(writer, message.extensions)
    return writer.frame()


def _write_params(writer: Writer, params: SamplingParams) -> None:
    writer.u8(SAMPLING_MODES.index(params.mode))
    for name in SAMPLING_REALS:
        writer.f64(getattr(params, name))
    writer.varint(params.top_k)
    writer.varint(len(params.logit_bias))
    writer.ids("logit_bias", [token for token, _ in params.logit_bias])
    for _, bias in params.logit_bias:
        writer.f64(bias)


def _write_end(message: End) -> bytes:
    writer = _start(message.type, 0, message.stream)
    writer.u8(message.reason)
    writer.varint(message.prompt_tokens)
    writer.varint(message.committed_tokens)
    writer.varint(message.drafted_tokens)
    writer.varint(message.accepted_tokens)
    writer.varint(message.target_passes)
    writer.varint(message.run_ahead_tokens)
    return writer.frame()


def _write_error(message: Error) -> bytes:
    writer = _start(message.type, ERROR_RETRY if message.retry_after_ms is not None else 0, message.stream)
    writer.u8(message.code)
    if message.retry_after_ms is not None:
        writer.varint(message.retry_after_ms)
    writer.text(message.message)
    return writer.frame()


def _write_hello(message: Hello) -> bytes:
    writer = Writer(message.type | (HELLO_FINGERPRINT if message.fingerprint is not None else 0))
    writer.u8(message.version)
    writer.varint(message.capabilities)
    writer.raw(message.fingerprint or b"")
    writer.text(message.agent)
    _write_extensions(writer, message.extensions)
    return writer.frame()


def _write_welcome(message: Welcome) -> bytes:
    writer = Writer(message.type, message.vocabulary_size)
    writer.u8(message.version)
    writer.varint(message.capabilities)
    writer.raw(message.fingerprint)
    writer.text(message.target)
    writer.varint(message.vocabulary_size)
    writer.varint(len(message.eos_ids))
    writer.ids("eos_ids", message.eos_ids)
    writer.varint(message.limits.max_context)
    writer.varint(message.limits.max_streams)
    writer.varint(message.limits.max_message_bytes)
    writer.varint(message.limits.max_draft_tokens)
    writer.varint(message.limits.max_backlog)
    _write_extensions(writer, message.extensions)
    return writer.frame()


def _write_extensions(writer: Writer, extensions: tuple[tuple[int, bytes], ...]) -> None:
    for tag, content in extensions:
        writer.varint(tag)
        writer.varint(len(content))
        writer.raw(content)
