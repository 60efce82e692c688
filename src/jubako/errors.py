"""Every way Jubako says no.

A `Refusal` is said to a caller: its class decides status, type, code and retry advice, and nothing else in the code
states them again. A `StartupFault` is said to an operator: it ends the process with exit status 1 and one message.
This module knows nothing of HTTP libraries, of vLLM or of BentoML.
"""

from __future__ import annotations

from typing import ClassVar

from jubako.vocabulary import Rates

MAXIMUM_RETRY_AFTER_SECONDS = 120.0
"""The official SDK does not retry at all when it is told to wait longer."""


class Refusal(Exception):
    """A request that gets no answer, with the reason the caller is told.

    `message` is plain English that a caller can act on; it never contains prompt or completion text of others and is
    never logged. `param` names the request field at fault, if one is.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str] = "internal_error"
    retry: ClassVar[bool] = False
    retry_once: ClassVar[bool] = False
    """Whether one more try is the last that helps."""
    retry_after_seconds: float = 1.0
    rates: Rates | None = None
    """The caller's limits a minute at that moment, where a budget refused."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        if retry_after_seconds is not None:
            self.retry_after_seconds = min(max(retry_after_seconds, 0.0), MAXIMUM_RETRY_AFTER_SECONDS)


class InvalidRequest(Refusal):
    """The request can never succeed as it stands."""

    status = 400
    type = "invalid_request_error"
    default_code = "invalid_value"


class Unauthenticated(Refusal):
    """No key, or none that we know."""

    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"


class Forbidden(Refusal):
    """Known, but not allowed to do this: `scope_missing` or `tenant_suspended`."""

    status = 403
    type = "permission_error"
    default_code = "scope_missing"


class NotFound(Refusal):
    """No such path or model; a model that is not approved for the caller looks the same."""

    status = 404
    type = "invalid_request_error"
    default_code = "unknown_url"


class MethodNotAllowed(Refusal):
    """The path exists, the method does not."""

    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class BodyTimeout(Refusal):
    """The caller did not send its body in time."""

    status = 408
    type = "invalid_request_error"
    default_code = "body_timeout"


class RequestTooLarge(Refusal):
    """More bytes than the boundary reads."""

    status = 413
    type = "invalid_request_error"
    default_code = "request_too_large"


class UnsupportedMediaType(Refusal):
    """A body that does not say it is JSON."""

    status = 415
    type = "invalid_request_error"
    default_code = "unsupported_media_type"


class Busy(Refusal):
    """No room now, with a computed time to come back.

    The tenant's own limits: `rate_limit_exceeded`, `concurrency_exceeded`; the server's: `queue_full`, `wait_too_long`.
    """

    status = 429
    type = "rate_limit_error"
    default_code = "rate_limit_exceeded"
    retry = True


class NeverFits(Busy):
    """More than the caller's limit a minute allows at once: no wait helps, a smaller request does."""

    retry = False


class QuotaExhausted(Refusal):
    """A budget of a day or a month is used up: coming back soon does not help."""

    status = 429
    type = "rate_limit_error"
    default_code = "insufficient_quota"


class Unavailable(Refusal):
    """The server cannot answer now: `not_ready`, `draining` or `engine_unavailable`. Another replica may."""

    status = 503
    type = "service_unavailable_error"
    default_code = "not_ready"
    retry = True


class DeadlineExceeded(Refusal):
    """The request's time is up."""

    status = 504
    type = "timeout_error"
    default_code = "deadline_exceeded"
    retry = True


class InternalError(Refusal):
    """A fault of ours. The cause is in the log under the request id, not in the message.

    What failed twice is no accident: a third try would do the same harm again.
    """

    retry = True
    retry_once = True


class ClientGone(Exception):
    """The caller closed the connection; nobody is left to answer."""


class StartupFault(Exception):
    """Something that must be mended before the server can start: configuration, files, port, disk.

    The message says what was wrong, where, and what to do; several faults are joined by newlines.
    """
