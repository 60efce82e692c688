"""How long a caller is willing to wait: a header that lowers the deadline of its policy, never raises it."""

from __future__ import annotations

from jubako.errors import InvalidRequest

HEADER = "x-request-timeout-ms"
_DIGITS = 9


def seconds(header: str | None, ceiling_seconds: float) -> float:
    """The request's deadline in seconds from its arrival; raises `InvalidRequest` for what is no positive integer."""
    if header is None:
        return ceiling_seconds
    text = header.strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS and int(text) > 0):
        raise InvalidRequest(f"{HEADER}: expected a positive number of milliseconds.", param=HEADER)
    return min(int(text) / 1000, ceiling_seconds)
