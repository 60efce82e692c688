"""The little of HTTP/1.1 and of server-sent events that the load generator reads.

It takes bytes and gives a status, headers and the data of events; it knows nothing of sockets, clocks or requests.
Written for cost: generator and servers share two cores.
"""

from __future__ import annotations

HEAD_BYTES = 65_536
TEXT_BYTES = 65_536


class WireFault(Exception):
    """What came is no HTTP reply that this reader understands."""


class ReplyReader:
    """One reply, fed in pieces of any size.

    `feed` returns the data of the events that each piece completed. The body of a reply that is no event stream is
    kept in `text` instead. `ended` is true once the body is whole.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.text = b""
        self.ended = False
        self._buffer = b""
        self._events = b""
        self._left = 0  # bytes of the current chunk, its line end included, or of the whole body
        self._chunked = False
        self._sized = False
        self._is_stream = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that is whole now."""
        self._buffer += data
        if self.status is None and not self._read_head():
            return []
        body = self._chunks() if self._chunked else self._plain()
        if not body:
            return []
        if not self._is_stream:
            self.text = (self.text + body)[:TEXT_BYTES]
            return []
        return self._split(body)

    def close(self) -> None:
        """The peer ended the connection: only a body without a length ends by that."""
        if self.status is not None and not self._chunked and not self._sized:
            self.ended = True

    def _read_head(self) -> bool:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            if len(self._buffer) > HEAD_BYTES:
                raise WireFault(f"no end of the headers within {HEAD_BYTES} bytes")
            return False
        lines = head.decode("latin-1").split("\r\n")
        parts = lines[0].split(" ", 2)
        if not parts[0].startswith("HTTP/1.") or len(parts) < 2 or not parts[1].isdigit():
            raise WireFault("the first line is no status line of HTTP/1.1")
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self.status = int(parts[1])
        self._buffer = rest
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        self._is_stream = self.headers.get("content-type", "").startswith("text/event-stream")
        if not self._chunked and (length := self.headers.get("content-length")) is not None:
            self._sized, self._left = True, int(length)
            self.ended = self._left == 0
        return True

    def _plain(self) -> bytes:
        body, self._buffer = self._buffer, b""
        if self._sized:
            body = body[: self._left]
            self._left -= len(body)
            self.ended = self._left == 0
        return body

    def _chunks(self) -> bytes:
        """Take whole chunks off the buffer; a chunk that is not whole yet stays there."""
        taken: list[bytes] = []
        while not self.ended:
            size_line, found, rest = self._buffer.partition(b"\r\n")
            if not found:
                break
            try:
                size = int(size_line.partition(b";")[0], 16)
            except ValueError:
                raise WireFault("a chunk's size is no hexadecimal number") from None
            if len(rest) < size + 2:
                break
            if size == 0:
                self.ended = True
            taken.append(rest[:size])
            self._buffer = rest[size + 2 :]
        return b"".join(taken)

    def _split(self, body: bytes) -> list[bytes]:
        """Comments and other fields than `data` are left out, as the standard says."""
        *whole, self._events = (self._events + body).replace(b"\r\n", b"\n").split(b"\n\n")
        data: list[bytes] = []
        for event in whole:
            lines = [line[5:].lstrip(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                data.append(b"\n".join(lines))
        return data
