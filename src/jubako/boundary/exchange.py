"""One HTTP request and its one reply, over raw ASGI.

Owns the reading of the body within its bounds, the watch for a caller who leaves, and the writing of the reply. Knows
nothing of models, keys or engines. Raw ASGI rather than a framework's request and response, because the reply's first
bytes, the silence between them and the reader's pace are what this module is about, and each streamed token passes
here.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import suppress
from typing import Any

from jubako.boundary import connections, problems
from jubako.errors import BodyTimeout, ClientGone, InvalidRequest, Refusal, RequestTooLarge, UnsupportedMediaType
from jubako.vocabulary import Document

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Coroutine[Any, Any, None]]

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
CLIENT_CLOSED = 499
"""For the log alone, by custom: nobody is there to read it."""
MAXIMUM_HEADERS = 100
"""As many as Apache takes by default; SDKs and proxies together send about thirty. uvicorn's parser counts none."""
MAXIMUM_HEADER_BYTES = 32_768
"""Names and values together: what nginx takes by default. A token of an identity provider has two to eight thousand."""
LINGER_SECONDS = 5.0
"""How long a body that nobody wants is taken after the reply; no longer than LINGER_SILENT_SECONDS if nothing comes."""
LINGER_SILENT_SECONDS = 0.5
_JSON = (b"content-type", b"application/json")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_EVERY_REPLY = {b"x-content-type-options": b"nosniff", b"cache-control": b"no-store"}
_SINGLE = frozenset({b"authorization", b"content-type", b"content-encoding", b"x-request-id"})
"""Of two such headers, one program reads the first and another the last."""


class Exchange:
    """One request and its reply.

    `reply_started` is true once the status line is on its way; after that an error can only be told in the stream.
    """

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._send_event = send
        """For what is in the middle of a stream: middleware around us is done with a reply once it has begun."""
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._received: list[tuple[bytes, bytes]] = list(scope["headers"])
        self._headers: dict[bytes, bytes] = dict(self._received)
        self._added: Callable[[], problems.Headers] = list
        self.started_at = time.monotonic()
        inbound = self.header("x-request-id") or ""
        kept = _REQUEST_ID.fullmatch(inbound) is not None
        self.request_id = inbound if kept else secrets.token_hex(16)
        # Two callers may send one id: what the engine does for one must never touch the other.
        self.unique_id = f"{inbound}-{secrets.token_hex(8)}" if kept else self.request_id
        self.reply_started = False
        self.reply_ended = False
        self._all_written = False
        self.status = 0
        self.last_write_at = self.started_at
        self.writing_since = 0.0
        self._status_line_sent = asyncio.Event()
        self._body_unread = self.header("content-length") not in {None, "0"} or (
            self.header("transfer-encoding") is not None
        )

    def header(self, name: str) -> str | None:
        """One request header by its lower-case name, latin-1 as HTTP has it."""
        value = self._headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    def require_sound_headers(self) -> None:
        """Refuse headers that no part of the server should have to interpret. To be called first, before any is read.

        Raises `InvalidRequest`, or `UnsupportedMediaType` for a compressed body: its size is not what was counted.
        """
        if len(self._received) > MAXIMUM_HEADERS:
            raise _bad_header(f"At most {MAXIMUM_HEADERS} headers may be sent; found {len(self._received)}.")
        size = sum(len(name) + len(value) for name, value in self._received)
        if size > MAXIMUM_HEADER_BYTES:
            raise _bad_header(f"At most {MAXIMUM_HEADER_BYTES} bytes of headers may be sent; found {size}.")
        seen: set[bytes] = set()
        for name, _ in self._received:
            if name in _SINGLE and name in seen:
                raise _bad_header(f"The header {name.decode()} may be sent only once.")
            seen.add(name)
        if (self.header("content-encoding") or "identity").strip().lower() != "identity":
            raise UnsupportedMediaType("The request body must not be compressed: send it without Content-Encoding.")

    def add_headers(self, headers: Callable[[], problems.Headers]) -> None:
        """Send `headers`, as they are then, with whatever reply follows; those of a refusal go before them."""
        self._added = headers

    async def body(
        self, *, limit_bytes: int, limit_seconds: float, require_room: Callable[[int], None] = lambda _: None
    ) -> bytes:
        """The whole request body; raises `RequestTooLarge`, `BodyTimeout` or `ClientGone`.

        `require_room` is told how many bytes there will be as soon as that is known, or are so far, before they are
        kept; what it raises passes through.
        """
        too_large = RequestTooLarge(f"The request body is larger than {limit_bytes} bytes.")
        declared = self.header("content-length")
        if declared is not None and declared.isdecimal():
            if (announced := int(declared[:20])) > limit_bytes:
                raise too_large
            require_room(announced)
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limit_seconds):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if size > limit_bytes:
                        raise too_large
                    require_room(size)
                    chunks.append(chunk)
                    if not message.get("more_body", False):
                        self._body_unread = False
                        return b"".join(chunks)
        except TimeoutError:
            raise BodyTimeout(f"The request body did not arrive within {limit_seconds:g} seconds.") from None

    async def gone(self) -> None:
        """Return when the caller has closed the connection. To be awaited after the body was read, by one task."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def document(self, document: Document) -> None:
        """Send a whole JSON reply."""
        await self._whole(document.status, document.body, [])

    async def page(self, body: bytes, content_type: str) -> None:
        """Send a whole reply that is no JSON."""
        await self._whole(200, body, [(b"content-type", content_type.encode())])

    async def refuse(self, refusal: Refusal) -> None:
        """Tell the caller no: with its status if none was sent yet, else as the last event of the stream."""
        if self.reply_ended:
            return
        if self.reply_started:
            await self._write(problems.event(refusal), more=False)
        else:
            # The official SDKs count their attempts in this header; what it says changes nothing but the advice.
            retried = self.header("x-stainless-retry-count") not in {None, "0"}
            await self._whole(refusal.status, problems.body(refusal), problems.headers(refusal, retried=retried))

    def bound_reader(self, stalled_seconds: float) -> None:
        """Hold nothing for a reader who takes nothing this long, be it the end of a reply that is all written."""
        connections.bound(self._send, stalled_seconds)

    async def abandon(self) -> None:
        """End the exchange of a caller who is gone, or takes nothing: what was written to it is not held any longer.

        Unless something is sent, middleware around us waits for it.
        """
        if not self.reply_started:
            await self._whole(CLIENT_CLOSED, b"", [])
        elif not self._all_written and connections.break_off(self._send):
            # Nobody gets this end: it tells the server that the reply was not forgotten.
            await self._write(b"", more=False)

    async def open_stream(self) -> None:
        """Send the status line and headers of an event stream, once."""
        if not self.reply_started:
            await self._start(200, [_EVENTS, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")])
            self._send_event = connections.innermost(self._send)

    async def event(self, event: bytes) -> None:
        """Send one whole server-sent event, or several joined."""
        self.writing_since = self.last_write_at = time.monotonic()
        if not self._status_line_sent.is_set():
            # The keep-alive task may be sending it at this moment, to a socket that is not taking it.
            await self._status_line_sent.wait()
        await self._send_event({"type": "http.response.body", "body": event, "more_body": True})
        self.writing_since = 0.0

    def offer(self, event: bytes) -> bool:
        """Send one whole server-sent event without waiting; false, and nothing is sent, if that would have to wait.

        From any task, in mid-stream, as long as the one that sends the events has sent all that came before. What this
        saves is that task's turn, for each token of each stream.
        """
        if self.writing_since or not self.reply_started or not self._status_line_sent.is_set():
            return False
        sending = self._send_event({"type": "http.response.body", "body": event, "more_body": True})
        try:
            sending.send(None)
        except StopIteration:
            self.last_write_at = time.monotonic()
            return True
        except Exception:  # noqa: BLE001 - the stream's own task will meet it; whoever offers works for all streams
            return False
        # The socket takes no more. uvicorn waits before it writes, so nothing of this event is on its way.
        sending.close()
        return False

    async def close_stream(self) -> None:
        """End an event stream that has said all."""
        await self._write(b"", more=False)

    async def _whole(self, status: int, body: bytes, extra: problems.Headers) -> None:
        await self._start(status, [_JSON, (b"content-length", str(len(body)).encode()), *extra])
        if self._body_unread:
            await self._write(body, more=True)
            await self._discard_body()
            body = b""
        await self._write(body, more=False)

    async def _discard_body(self) -> None:
        """Take what the caller still sends, for a while, and keep nothing of it.

        A connection that is closed on unread bytes is reset, and the reply, which the caller has yet to read, is lost.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while True:
                    async with asyncio.timeout(LINGER_SILENT_SECONDS):
                        message = await self._receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return

    async def _start(self, status: int, headers: problems.Headers) -> None:
        added = dict(self._added())
        # Set before the first await: the keep-alive task looks at it.
        self.reply_started = True
        self.status = status
        self.writing_since = self.last_write_at = time.monotonic()
        elapsed_ms = round((time.monotonic() - self.started_at) * 1000)
        sent = {**_EVERY_REPLY, **added, **dict(headers)}
        sent[b"x-request-id"] = self.request_id.encode()
        sent[b"openai-processing-ms"] = str(elapsed_ms).encode()
        if self._body_unread:
            # A body that nobody wants would be read to its end for the sake of the connection.
            sent[b"connection"] = b"close"
        try:
            await self._send({"type": "http.response.start", "status": status, "headers": list(sent.items())})
        finally:
            self._status_line_sent.set()
        self.writing_since = 0.0

    async def _write(self, body: bytes, *, more: bool) -> None:
        self.writing_since = self.last_write_at = time.monotonic()
        if not more:
            self.reply_ended = True
        await self._status_line_sent.wait()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._all_written = not more
        self.writing_since = 0.0


def _bad_header(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_header")
