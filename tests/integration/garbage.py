"""What a hostile or broken client may send: frames, WebSocket bytes and HTTP that are nearly right, or not at all.

Everything comes from one random source, so a seed brings it all back.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

from draftwire.protocol.codes import SUBPROTOCOL
from draftwire.protocol.frames import encode
from draftwire.protocol.messages import Cancel, Capability, Draft, Hello, Message, Open, Policy, Prefix
from draftwire.protocol.sampling import SamplingParams

__all__ = ["Garbage"]

_GOLDEN = Path(__file__).parent.parent / "protocol" / "golden_frames.json"
_CAPABILITIES = Capability.SPARSE_Q | Capability.PREFIXES


class Garbage:
    """A source of it.

    Args:
        seed: of all choices.
        vocabulary_size, fingerprint: of the target, so that some of it gets far.
    """

    def __init__(self, seed: int, *, vocabulary_size: int, fingerprint: bytes) -> None:
        self.random = random.Random(seed)
        self._vocabulary_size = vocabulary_size
        self._fingerprint = fingerprint
        golden = json.loads(_GOLDEN.read_text(encoding="utf-8"))["frames"]
        self._golden = [bytes.fromhex(entry["hex"]) for entry in golden.values()]

    # --- frames -------------------------------------------------------------------------------------------------

    def conversation(self) -> list[bytes]:
        """Frames of one client from HELLO on, most of them sensible, some of them not."""
        frames = [self._frame(Hello(capabilities=_CAPABILITIES, fingerprint=self._fingerprint, agent="garbage"))]
        streams = self.random.randrange(1, 5)
        for stream in range(1, streams + 1):
            frames += [self._frame(message) for message in self._stream(stream)]
        for _ in range(self.random.randrange(4)):
            self._spoil(frames)
        return frames

    def _frame(self, message: Message) -> bytes:
        return encode(message, self._vocabulary_size)

    def _stream(self, stream: int) -> list[Message]:
        pick = self.random
        prompt = tuple(pick.randrange(self._vocabulary_size) for _ in range(pick.choice([1, 3, 40])))
        kinds = [
            SamplingParams(),
            SamplingParams(temperature=0.9),
            SamplingParams(temperature=0.9, mode="rejection"),
            SamplingParams(temperature=1.5, top_p=0.1, min_p=0.5, repetition_penalty=5.0, frequency_penalty=-2.0),
        ]
        opening = Open(
            stream=stream,
            token_ids=prompt,
            prompt_length=pick.randrange(1, len(prompt) + 1),
            params=pick.choice(kinds),
            max_tokens=pick.choice([1, 5, 100, 3000, 1 << 20]),
            seed=pick.getrandbits(64),
            policy=pick.choice(list(Policy)),
            stop_ids=tuple(pick.randrange(self._vocabulary_size) for _ in range(pick.choice([0, 0, 3]))),
            drafting=pick.random() < 0.8,
            retain=pick.random() < 0.3,
        )
        if stream > 1 and pick.random() < 0.3:
            prefix = Prefix(stream=pick.randrange(1, stream), length=pick.choice([1, 2, 10, 1 << 20]))
            opening = Open(
                stream=stream,
                token_ids=prompt,
                prompt_length=1,
                params=SamplingParams(),
                max_tokens=5,
                seed=1,
                prefix=prefix,
            )
        messages: list[Message] = [opening]
        position, path = len(prompt), 1
        for _ in range(pick.randrange(6)):
            tokens = tuple(pick.randrange(self._vocabulary_size) for _ in range(pick.randrange(10)))
            position, path = pick.choice([(position, path), (len(prompt), path + 1), (pick.randrange(1, 99), path)])
            messages.append(
                Draft(
                    stream=stream,
                    path=path,
                    start=position,
                    token_ids=tokens,
                    confidences=(pick.randrange(256),) * len(tokens),
                    sent_at=pick.randrange(1 << 16),
                    continues=pick.random() < 0.5,
                )
            )
            position += len(tokens)
        if pick.random() < 0.3:
            messages.append(Cancel(stream=stream))
        return messages

    def _spoil(self, frames: list[bytes]) -> None:
        """One thing goes wrong, somewhere."""
        pick = self.random
        at = pick.randrange(len(frames))
        spoil: Callable[[], object] = pick.choice(
            [
                lambda: frames.__setitem__(at, self.spoilt(frames[at])),
                lambda: frames.__setitem__(at, self.spoilt(frames[at])),
                lambda: frames.insert(at, frames[pick.randrange(len(frames))]),
                lambda: frames.insert(at, pick.choice(self._golden)),
                lambda: frames.insert(at, self.spoilt(pick.choice(self._golden))),
                lambda: frames.insert(at, pick.randbytes(pick.choice([0, 1, 2, 9, 60, 3000]))),
                lambda: frames.__setitem__(at, b""),
                lambda: pick.shuffle(frames),
                lambda: frames.reverse(),
            ]
        )
        spoil()

    def spoilt(self, frame: bytes) -> bytes:
        """A frame with bits flipped, cut short, run on, or with a piece doubled."""
        pick, data = self.random, bytearray(frame)
        for _ in range(pick.randrange(1, 4)):
            at = pick.randrange(len(data) + 1)
            match pick.randrange(5):
                case 0 | 1 if data:
                    data[at % len(data)] ^= 1 << pick.randrange(8)
                case 2:
                    del data[at:]
                case 3:
                    data[at:at] = pick.randbytes(pick.randrange(1, 12))
                case _:
                    data[at:at] = data[: pick.randrange(len(data) + 1)]
        return bytes(data)

    # --- below the frames ---------------------------------------------------------------------------------------

    def handshake(self, path: str = "/v1/verify") -> bytes:
        """A good request for a WebSocket."""
        return (
            f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
        ).encode()

    def websocket_bytes(self) -> bytes:
        """What follows a handshake: WebSocket frames, of which not all are well formed."""
        pick = self.random
        frames = [self._websocket_frame(frame) for frame in self.conversation()]
        data = b"".join(frames)
        return self.spoilt(data) if pick.random() < 0.7 else data + pick.randbytes(pick.randrange(200))

    def _websocket_frame(self, payload: bytes) -> bytes:
        pick = self.random
        opcode = pick.choice([2] * 8 + [0, 1, 8, 9, 10, 3, 11])
        first = (
            opcode | (0x80 if pick.random() < 0.9 else 0) | (pick.choice([0x40, 0x20]) if pick.random() < 0.05 else 0)
        )
        masked = 0x80 if pick.random() < 0.95 else 0
        length = len(payload) if pick.random() < 0.97 else pick.choice([126, 65535, 1 << 40, (1 << 63) + 1])
        if length < 126:
            head = struct.pack("!BB", first, masked | length)
        elif length < 1 << 16:
            head = struct.pack("!BBH", first, masked | 126, length)
        else:
            head = struct.pack("!BBQ", first, masked | 127, length)
        return head + (bytes(4) if masked else b"") + payload

    def request(self) -> bytes:
        """HTTP, more or less."""
        pick = self.random
        method = pick.choice(["GET", "POST", "OPTIONS", "HEAD", "PUT", "G\x00T", "PRI", "CONNECT", ""])
        path = pick.choice(["/v1/verify", "/v1/models", "/v1/echo", "/healthz", "*", "/%ff%00", "/../..", "http://x/"])
        path += pick.choice(["", "?api_key=x", "?" + "a=b&" * pick.randrange(50), "#x", "/" * 5000])
        fields = ["Host: x", *self._fields()]
        body = pick.randbytes(pick.choice([0, 0, 20, 5000]))
        text = f"{method} {path} HTTP/{pick.choice(['1.1', '1.0', '2.0', '9', 'x'])}\r\n" + "\r\n".join(fields)
        data = text.encode("latin-1", "replace") + b"\r\n\r\n" + body
        return self.spoilt(data) if pick.random() < 0.5 else data

    def _fields(self) -> list[str]:
        pick = self.random
        known = [
            "Content-Length: 10",
            "Content-Length: -1",
            "Content-Length: 99999999999999999999",
            "Transfer-Encoding: chunked",
            "Transfer-Encoding: chunked, gzip",
            "Content-Encoding: gzip",
            "Expect: 100-continue",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Upgrade: h2c",
            "Sec-WebSocket-Version: 99",
            "Sec-WebSocket-Key: short",
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL}",
            "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=99",
            "Origin: null",
            "Origin: http://[",
            "Authorization: Bearer " + "x" * 100,
            "Authorization: \xff",
            "X-Request-Id: \x1b[31m",
            "X-Long: " + "y" * pick.choice([10, 9000]),
            "Cookie: " + "a=b; " * 100,
            ": no name",
            " folded",
        ]
        return [pick.choice(known) for _ in range(pick.randrange(6))]
