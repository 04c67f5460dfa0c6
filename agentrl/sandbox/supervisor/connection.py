"""Frames over a socket in a reactor: what arrives is handed on, what is sent waits for no reader."""

from __future__ import annotations

import socket
from collections.abc import Callable

from agentrl.sandbox.supervisor import frames
from agentrl.sandbox.supervisor.reactor import Reactor

_CHUNK_BYTES = 1 << 18


class Connection:
    """One end of a stream socket. `on_end` is called once, when the other end is gone."""

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        on_frame: Callable[[frames.Header, bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self._socket = sock
        self._frames = frames.FrameBuffer()
        self._on_frame = on_frame
        self._on_end = on_end
        self._out = bytearray()
        self._out_fd: int | None = None
        self._open = True
        sock.setblocking(False)
        reactor.on_readable(sock.fileno(), self._readable)

    def send(self, header: frames.Header, payload: bytes = b"") -> None:
        """Queue one frame; dropped when the connection is closed."""
        if self._open:
            self._out += frames.encode(header, payload)
            self._flush()

    def close(self) -> None:
        """Stop reading and sending; `on_end` is not called."""
        if not self._open:
            return
        self._open = False
        self._stop_writing()
        self._reactor.forget(self._socket.fileno())
        self._socket.close()

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self.close()
            self._on_end()
            return
        for header, payload in self._frames.feed(data):
            self._on_frame(header, payload)

    def _flush(self) -> None:
        try:
            sent = self._socket.send(self._out)
        except BlockingIOError:
            sent = 0
        except ConnectionError:
            return  # the end is read next
        del self._out[:sent]
        if not self._out:
            self._stop_writing()
        elif self._out_fd is None:
            self._out_fd = self._socket.dup().detach()
            self._reactor.on_writable(self._out_fd, self._flush)

    def _stop_writing(self) -> None:
        if self._out_fd is not None:
            self._reactor.forget_and_close(self._out_fd)
            self._out_fd = None
