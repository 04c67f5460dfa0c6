"""The wire between an owner and its supervisor, and the loop that serves it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentrl
from agentrl.sandbox.supervisor import frames
from agentrl.sandbox.supervisor.connection import Connection
from agentrl.sandbox.supervisor.reactor import Reactor

MESSAGES = st.lists(st.tuples(st.dictionaries(st.text(), st.text() | st.integers()), st.binary()), max_size=5)


@given(messages=MESSAGES, cuts=st.lists(st.integers(1, 50)))
def test_frames_survive_any_cutting(messages: list[tuple[frames.Header, bytes]], cuts: list[int]) -> None:
    stream = b"".join(frames.encode(header, payload) for header, payload in messages)
    buffer, found = frames.FrameBuffer(), []
    for size in [*cuts, len(stream) + 1]:
        found += list(buffer.feed(stream[:size]))
        stream = stream[size:]
    assert found == messages


def test_a_frame_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD_BYTES", 10)
    assert frames.encode({}, b"x" * 10)
    with pytest.raises(ValueError, match="11 bytes"):
        frames.encode({}, b"x" * 11)


def test_timers_run_in_order_and_can_be_cancelled() -> None:
    reactor, ran = Reactor(), []
    reactor.call_later(0.002, lambda: ran.append("second"))
    reactor.call_later(0.001, lambda: ran.append("first"))
    reactor.call_later(0.0005, lambda: ran.append("never")).cancel()
    reactor.call_later(0.003, reactor.stop)
    reactor.run()
    assert ran == ["first", "second"]


def test_a_callback_may_drop_a_descriptor_that_is_ready_too() -> None:
    reactor, ran = Reactor(), []
    pipes = [os.pipe() for _ in range(2)]
    for read_end, write_end in pipes:
        os.write(write_end, b"x")

        def once(mine: int = read_end) -> None:
            ran.append(mine)
            for fd, _ in pipes:
                reactor.forget(fd)
            reactor.stop()

        reactor.on_readable(read_end, once)
    reactor.run()
    assert len(ran) == 1


def test_a_slow_reader_gets_everything() -> None:
    reactor = Reactor()
    one, other = socket.socketpair()
    received: list[int] = []
    sender = Connection(reactor, one, lambda header, payload: None, lambda: None)

    def take(header: frames.Header, payload: bytes) -> None:
        received.append(len(payload))
        if len(received) == 3:
            reactor.stop()

    for _ in range(3):
        sender.send({}, b"x" * 3_000_000)  # far more than the socket holds
    Connection(reactor, other, take, reactor.stop)
    reactor.run()
    assert received == [3_000_000] * 3


def test_the_other_ends_close_is_told_once() -> None:
    reactor = Reactor()
    one, other = socket.socketpair()
    ended: list[bool] = []

    def end() -> None:
        ended.append(True)
        reactor.stop()

    connection = Connection(reactor, one, lambda header, payload: None, end)
    other.close()
    reactor.run()
    connection.send({"dropped": 1})
    assert ended == [True]


def test_the_supervisor_loads_little_and_nothing_of_others() -> None:
    """Each command forks it: what it maps costs time, what it imports could hold a thread."""
    script = "import sys\nsys.path.insert(0, sys.argv[1])\nimport agentrl.sandbox.supervisor.main\nprint(*sys.modules)"
    root = str(Path(agentrl.__file__).parents[1])
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script, root], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    heavy = {"asyncio", "subprocess", "ssl", "logging", "threading", "numpy", "msgspec", "tarfile", "shutil"}
    assert not heavy & loaded
    foreign = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert foreign - {"__main__", "__mp_main__", "agentrl"} == set()
