"""The sentences of refused fields: which field, which limit, what was found; numbers only, never what was sent."""

from __future__ import annotations

from jubako.errors import InvalidRequest

TOO_LONG = "context_length_exceeded"
UNSUPPORTED = "unsupported_value"


def too_many(param: str, what: str, limit: int, found: int, *, code: str = UNSUPPORTED) -> InvalidRequest:
    """More than the limit allows."""
    return InvalidRequest(f"{param}: at most {limit} {what} may be sent; found {found}.", code=code, param=param)


def too_high(param: str, limit: float) -> InvalidRequest:
    """A number above its bound; it is not repeated, as it may have thousands of digits."""
    return InvalidRequest(f"{param}: must be at most {limit}.", code=UNSUPPORTED, param=param)


def wrong_type(param: str, wanted: str) -> InvalidRequest:
    """A value of another type than the field takes."""
    return InvalidRequest(f"{param}: Input should be a valid {wanted}.", param=param)


def unsupported(param: str, sentence: str) -> InvalidRequest:
    """A value that is valid elsewhere."""
    return InvalidRequest(f"{param}: {sentence}", code=UNSUPPORTED, param=param)
