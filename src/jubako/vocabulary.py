"""The records that every room shares. Frozen, without behaviour, without imports from other rooms."""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any


class Route(enum.StrEnum):
    """The operations a caller may ask for. The value is the label used in logs."""

    MODELS = "models"
    MODEL = "model"
    CHAT = "chat_completions"
    COMPLETIONS = "completions"


class Outcome(enum.StrEnum):
    """How a request ended: one word everywhere it is written down."""

    COMPLETED = "completed"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    REFUSED = "refused"
    FAILED = "failed"


class Phase(enum.StrEnum):
    """Where the server stands in its life. Only `READY` answers requests."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, as the authentication found it; never what the caller claims."""

    tenant: str
    key_id: str


@dataclass(frozen=True, slots=True)
class Call:
    """One request for the engine.

    `body` is the parsed JSON object, already free of privileged fields. `request_id` is ours: the engine's own ids
    are derived from it, and an abort by it reaches this request alone.
    """

    route: Route
    request_id: str
    body: Mapping[str, Any]
    principal: Principal

    @property
    def stream(self) -> bool:
        """Whether the caller asked for server-sent events."""
        return self.body.get("stream") is True


@dataclass(frozen=True, slots=True)
class Document:
    """A whole reply: one JSON document, already encoded as UTF-8."""

    body: bytes
    status: int = 200


@dataclass(frozen=True, slots=True)
class Stream:
    r"""A streamed reply.

    `events` yields complete server-sent events (`b"data: …\n\n"`) and ends in `[DONE]`; an error is raised as a
    `Refusal`, never yielded. Closing the iterator aborts the request in the engine.
    """

    events: AsyncGenerator[bytes]


Reply = Document | Stream


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the server may take traffic, and if not, why not, in words for an operator."""

    phase: Phase
    reason: str = ""

    @property
    def ready(self) -> bool:
        """True only in the ready phase."""
        return self.phase is Phase.READY


@dataclass(frozen=True, slots=True)
class ServedRelease:
    """What the engine needs to know of the release: folders on disk, names, digest."""

    digest: str
    model_folder: str
    aliases: tuple[str, ...]
    dtype: str
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Adapter alias to the folder that holds its files."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Engine options that belong to the model: chat template, parsers."""
