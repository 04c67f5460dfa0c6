"""Frames on the supervisor's socket: a JSON header and raw bytes. Written and read by both ends."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

Header = dict[str, Any]

PREFIX = struct.Struct("<II")
"""Bytes of the header, bytes of the payload."""
MAX_PAYLOAD_BYTES = 256 << 20


def encode(header: Header, payload: bytes = b"") -> bytes:
    """One frame. Raises ValueError if the payload is over MAX_PAYLOAD_BYTES."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"{len(payload)} bytes do not fit one frame ({MAX_PAYLOAD_BYTES} at most)")
    text = json.dumps(header, separators=(",", ":")).encode()
    return PREFIX.pack(len(text), len(payload)) + text + payload


class FrameBuffer:
    """Bytes in, frames out."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Header, bytes]]:
        """Take bytes as they came; yield every frame that is now complete."""
        self._data += data
        while len(self._data) >= PREFIX.size:
            num_text, num_payload = PREFIX.unpack_from(self._data)
            end = PREFIX.size + num_text + num_payload
            if len(self._data) < end:
                return
            text = bytes(self._data[PREFIX.size : PREFIX.size + num_text])
            payload = bytes(self._data[PREFIX.size + num_text : end])
            del self._data[:end]
            yield json.loads(text), payload
