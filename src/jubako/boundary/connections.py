"""The connection behind an ASGI `send`, where uvicorn is the server: what ASGI has no message for.

A connection that is closed first hands over what was written to it, and stays for as long as its reader takes nothing:
a descriptor and a full buffer for each. Knows uvicorn's objects and TCP; knows nothing of requests. Behind another
server nothing is found, and nothing done.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
"""Linux has it: how long bytes may be on their way, or a reader's window shut, until the kernel gives up."""


_LAYERS = 16
"""More middleware than stands around us."""


def innermost(send: Any) -> Any:
    """The server's own `send` behind that of middleware; `send` itself if that cannot be known.

    Middleware gives its own `send` to whom it calls, a function inside a function that calls the `send` which it was
    given itself. So do Starlette's and BentoML's, and they say in no other way what is behind.
    """
    inner = send
    for _ in range(_LAYERS):
        names = getattr(getattr(inner, "__code__", None), "co_freevars", ())
        if "send" not in names:
            break
        inner = inner.__closure__[names.index("send")].cell_contents
    return inner if hasattr(getattr(inner, "__self__", None), "transport") else send


def transport(send: Any) -> Any | None:
    """The transport that `send` writes to; None if it cannot be known."""
    return getattr(getattr(innermost(send), "__self__", None), "transport", None)


def bound(send: Any, seconds: float) -> None:
    """Let the kernel break the connection off once its peer takes nothing for so long, also when all is written."""
    found = transport(send)
    if found is None or _USER_TIMEOUT is None or found.is_closing():
        return
    connection = found.get_extra_info("socket")
    if connection is not None and connection.family in {socket.AF_INET, socket.AF_INET6}:
        with suppress(OSError):  # a connection that was reset meanwhile needs no bound
            connection.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, max(1, round(seconds * 1000)))


def break_off(send: Any) -> bool:
    """End the connection now, with whatever was written and not taken; false if that cannot be done."""
    found = transport(send)
    if found is None:
        return False
    found.abort()
    return True
