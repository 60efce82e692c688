"""One reader of long streams beside the load, in turns a slow one and a quick one.

The slow one takes a few bytes a second until it is cut, and comes again. The quick one asks for the same and takes it
at once: what a stream costs others is there in both turns, so that what differs is the reader's pace alone.
Knows HTTP by its first line.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Literal

from tests.bench.speed.scenarios import CHAT
from tests.contract.corpus import BASE, says

Pace = Literal["slow", "quick"]
TOKENS = 6000
BODY = {
    "model": BASE,
    "messages": says("Tell me a very long story."),
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
}
SEGMENT_BYTES, WINDOW_BYTES = 536, 4096
"""As over a poor line: with the loopback's own, the kernel would take some megabytes before the server notices."""
SLOW_BYTES, SLOW_SECONDS = 8, 1.0
AGAIN_SECONDS = 0.5
PATIENCE_SECONDS = 5.0


@dataclass
class Turn:
    """Some seconds at one pace. Times are the machine's monotonic clock."""

    pace: Pace
    begun: float
    ended: float = 0.0
    streams: int = 0
    cut: int = 0
    """Streams that the server broke off before their end."""
    whole: int = 0
    refused: int = 0
    bytes: int = 0
    seconds_to_cut: list[float] = field(default_factory=list)


class Reader(threading.Thread):
    """Takes `turns`, pairs of a pace and seconds, one after the other; what came of each is in `done`."""

    def __init__(self, port: int, key: str, turns: list[tuple[Pace, float]]) -> None:
        super().__init__(name="reader", daemon=True)
        self.done: list[Turn] = []
        self._port, self._key, self._turns = port, key, turns

    def run(self) -> None:
        """All turns."""
        for pace, seconds in self._turns:
            turn = Turn(pace, time.monotonic())
            self.done.append(turn)
            ends_at = turn.begun + seconds
            while time.monotonic() < ends_at:
                self._stream(turn, ends_at)
                time.sleep(AGAIN_SECONDS)
            turn.ended = time.monotonic()

    def _stream(self, turn: Turn, ends_at: float) -> None:
        begun = time.monotonic()
        turn.streams += 1
        try:
            with _connect(self._port, self._key) as connection:
                if not _head(connection):
                    turn.refused += 1
                elif _read(connection, turn, ends_at):
                    turn.whole += 1
        except ConnectionError:
            turn.cut += 1
            turn.seconds_to_cut.append(time.monotonic() - begun)
        except TimeoutError:
            turn.refused += 1


def _connect(port: int, key: str) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW_BYTES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", port))
    content = json.dumps(BODY).encode()
    lines = [f"POST {CHAT} HTTP/1.1", "host: soak", f"authorization: Bearer {key}", "connection: close"]
    lines += ["content-type: application/json", f"content-length: {len(content)}", "", ""]
    connection.sendall("\r\n".join(lines).encode() + content)
    return connection


def _head(connection: socket.socket) -> bool:
    return connection.recv(12) == b"HTTP/1.1 200"


def _read(connection: socket.socket, turn: Turn, ends_at: float) -> bool:
    """Until the stream's end, which is true, or that of the turn; raises `ConnectionError` if it is broken off."""
    tail = b""
    connection.settimeout(PATIENCE_SECONDS)
    while time.monotonic() < ends_at:
        if turn.pace == "slow":
            time.sleep(SLOW_SECONDS)
        try:
            data = connection.recv(SLOW_BYTES if turn.pace == "slow" else 65536)
        except TimeoutError:
            continue
        if not data:
            if tail.endswith(b"0\r\n\r\n"):
                return True
            raise ConnectionAbortedError
        turn.bytes += len(data)
        tail = (tail + data)[-16:]
    return False
