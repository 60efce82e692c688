"""The ASGI application that the service mounts: from ASGI's scope to a handler that sees an `Exchange`.

A bare callable on purpose: under BentoML a mounted Starlette application lets unknown paths fall through to BentoML's
own pages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from jubako.boundary.exchange import Exchange, Message, Receive, Send

Handler = Callable[[Exchange], Awaitable[None]]


class Application:
    """ASGI over one handler, which is expected to answer every exchange and to raise nothing."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection; WebSockets are closed, as no route speaks them."""
        if scope["type"] == "http":
            await self._handler(Exchange(scope, receive, send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
