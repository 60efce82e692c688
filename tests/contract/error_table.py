"""The table of errors, written out: each code's status, type and advice, and what the official client raises."""

from __future__ import annotations

import openai

INVALID, DENIED = "invalid_request_error", "authentication_error"
FORBIDDEN, LIMITED = "permission_error", "rate_limit_error"
UNAVAILABLE, TIMEOUT, FAULT = "service_unavailable_error", "timeout_error", "server_error"
NO, ONCE, YES = "no", "once", "yes"
ATTEMPTS = {NO: 1, ONCE: 2, YES: 3}
"""What a server sees of one call of a client that may retry twice, its default."""
TABLE: dict[str, tuple[int, str, str, type[openai.APIStatusError]]] = {
    "invalid_header": (400, INVALID, NO, openai.BadRequestError),
    "invalid_json": (400, INVALID, NO, openai.BadRequestError),
    "invalid_value": (400, INVALID, NO, openai.BadRequestError),
    "missing_field": (400, INVALID, NO, openai.BadRequestError),
    "unknown_field": (400, INVALID, NO, openai.BadRequestError),
    "unsupported_value": (400, INVALID, NO, openai.BadRequestError),
    "context_length_exceeded": (400, INVALID, NO, openai.BadRequestError),
    "missing_api_key": (401, DENIED, NO, openai.AuthenticationError),
    "invalid_api_key": (401, DENIED, NO, openai.AuthenticationError),
    "expired_token": (401, DENIED, NO, openai.AuthenticationError),
    "scope_missing": (403, FORBIDDEN, NO, openai.PermissionDeniedError),
    "tenant_suspended": (403, FORBIDDEN, NO, openai.PermissionDeniedError),
    "model_not_found": (404, INVALID, NO, openai.NotFoundError),
    "unknown_url": (404, INVALID, NO, openai.NotFoundError),
    "method_not_allowed": (405, INVALID, NO, openai.APIStatusError),
    "body_timeout": (408, INVALID, NO, openai.APIStatusError),
    "request_too_large": (413, INVALID, NO, openai.APIStatusError),
    "unsupported_media_type": (415, INVALID, NO, openai.APIStatusError),
    "rate_limit_exceeded": (429, LIMITED, YES, openai.RateLimitError),
    "concurrency_exceeded": (429, LIMITED, YES, openai.RateLimitError),
    "queue_full": (429, LIMITED, YES, openai.RateLimitError),
    "wait_too_long": (429, LIMITED, YES, openai.RateLimitError),
    "insufficient_quota": (429, LIMITED, NO, openai.RateLimitError),
    "internal_error": (500, FAULT, ONCE, openai.InternalServerError),
    "not_ready": (503, UNAVAILABLE, YES, openai.InternalServerError),
    "draining": (503, UNAVAILABLE, YES, openai.InternalServerError),
    "engine_unavailable": (503, UNAVAILABLE, YES, openai.InternalServerError),
    "deadline_exceeded": (504, TIMEOUT, YES, openai.InternalServerError),
}
"""Code -> status, type, whether to retry, and what the official client raises."""
