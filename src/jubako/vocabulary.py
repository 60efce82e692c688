"""The records that every room shares. Frozen, without behaviour, without imports from other rooms."""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Callable, Mapping
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


class Scope(enum.StrEnum):
    """What a credential may be used for: one scope a family of routes."""

    MODELS = "models"
    CHAT = "chat"
    COMPLETIONS = "completions"
    OPERATOR = "operator"
    """Metrics and other surfaces of the operator; never implied by another scope."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Hard limits of one request, checked before tokenization but for `prompt_tokens`. All are inclusive maxima."""

    body_bytes: int
    body_seconds: float
    json_depth: int
    json_values: int
    """Keys of objects and items of arrays in the whole body, beside the token ids of one prompt."""
    messages: int
    message_characters: int
    prompt_characters: int
    """Characters of all messages, prompts and tool descriptions together."""
    prompts: int
    """Prompts in one completion request."""
    prompt_tokens: int
    """After rendering, each prompt."""
    output_tokens: int
    """Each choice; what a request may ask for."""
    default_output_tokens: int
    """Each choice of a request that asks for no number."""
    choices: int
    """`n` and `best_of`."""
    sequences: int
    """Choices of all prompts together: what one request takes of the engine at once."""
    logprobs: int
    stops: int
    stop_characters: int
    tools: int
    schema_bytes: int
    """Each JSON schema, regular expression or grammar, as JSON; tools' parameters too."""
    logit_bias: int
    token_ids: int
    """Items of a list of token ids or of words to avoid."""
    images: int
    image_bytes: int
    """Each image, decoded from base64."""
    image_pixels: int
    """Each image, width times height."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be used in a span of time; None is without limit. Tokens are those of prompts and replies together."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    concurrency: int | None = None
    """Requests under way at once, queued ones included."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What a tenant may do, as its operator decided; limits are already the lower of the server's and its own."""

    models: frozenset[str] | None
    """Approved names, adapters included; None: every name that the release serves."""
    scopes: frozenset[Scope]
    weight: float
    """Share of the engine beside other tenants of the same priority."""
    priority: int
    """Lower goes first."""
    deadline_seconds: float
    """From the request's arrival to the reply's end; a caller may lower it."""
    queue_seconds: float
    """The longest wait in the queue."""
    limits: Limits
    tenant_budget: Budget
    key_budget: Budget

    def approves(self, model: str) -> bool:
        """Whether the tenant may use the name."""
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, as the authentication found it; never what the caller claims."""

    tenant: str
    key_id: str
    """Public id of the key, or of the token's subject; safe to log."""
    scopes: frozenset[Scope]
    policy: Policy


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks for, as far as can be told before tokenization."""

    model: str
    prompts: int
    choices: int
    prompt_tokens: int
    """Estimated from characters, all prompts together."""
    output_tokens: int
    """The bound of each choice; the engine is given the same."""
    grammar: bool
    """Whether the reply is constrained by a schema, a regular expression or a grammar."""

    @property
    def sequences(self) -> int:
        """Sequences that run side by side in the engine."""
        return self.prompts * self.choices

    @property
    def tokens(self) -> int:
        """The most that can be used: prompts and every choice to its bound."""
        return self.prompt_tokens + self.sequences * self.output_tokens


@dataclass(frozen=True, slots=True)
class Rate:
    """One limit a minute as a caller is told of it."""

    limit: int
    remaining: int
    reset_seconds: float
    """Until all of it is free again, if nothing more is asked for."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What `x-ratelimit-*` say: the tighter of the tenant's and the key's limits a minute; None where there is none."""

    requests: Rate | None = None
    tokens: Rate | None = None


@dataclass(slots=True)
class Usage:
    """Exact tokens of one request so far. Written by the engine alone, read by everyone; never goes down."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Those of `prompt_tokens` that were found in the cache."""
    generated_tokens: int = 0
    first_token_at: float = 0.0
    """Monotonic seconds; zero until there is one."""
    decode_tokens: int = 0
    """Tokens after the first one of each choice."""
    decode_seconds: float = 0.0
    """From the first to the last token of each choice, all choices added up: side by side they take as long each."""
    cut: bool = False
    """Whether a choice ended because it had as many tokens as it may have."""

    @property
    def tokens(self) -> int:
        """Prompt and generated tokens together: what budgets count."""
        return self.prompt_tokens + self.generated_tokens


@dataclass(frozen=True, slots=True)
class Account:
    """What one request was and used, known at its end: what metric, audit and ledger are told. Never content."""

    ended_at: float
    """Unix seconds."""
    request_id: str
    tenant: str
    """Empty, as is `key_id`, when the caller was not authenticated."""
    key_id: str
    route: str
    """A value of `Route`, or `unknown`."""
    alias: str
    """The approved name that was asked for; empty when the request did not come that far."""
    adapter: bool
    release: str
    """The release digest."""
    stream: bool
    status: int
    outcome: Outcome
    code: str
    """Of the refusal, or empty."""
    priority: int
    usage: Usage
    queue_seconds: float
    first_token_seconds: float
    """From arrival; zero when there was none."""
    total_seconds: float


@dataclass(frozen=True, slots=True)
class Call:
    """One request for the engine.

    `body` is the parsed JSON object, already free of privileged fields. `request_id` is ours: the engine's own ids
    are derived from it, and an abort by it reaches this request alone. `cache_salt` keeps tenants' caches apart.
    """

    route: Route
    request_id: str
    body: Mapping[str, Any]
    principal: Principal
    demand: Demand
    cache_salt: str
    usage: Usage = field(default_factory=Usage)

    @property
    def stream(self) -> bool:
        """Whether the caller asked for server-sent events."""
        return self.body.get("stream") is True


@dataclass(frozen=True, slots=True)
class Document:
    """A whole reply: one JSON document, already encoded as UTF-8."""

    body: bytes
    status: int = 200


Offer = Callable[[bytes], bool]
"""Takes a whole server-sent event and sends it at once, or says that it cannot."""


@dataclass(frozen=True, slots=True)
class Stream:
    r"""A streamed reply.

    `events` yields complete server-sent events (`b"data: …\n\n"`) and ends in `[DONE]`; an error is raised as a
    `Refusal`, never yielded. Closing the iterator aborts the request in the engine.

    `through`, if there is one, may be given an `Offer`. Events that come while `events` is being waited for may then
    go there, from another task and in their order, and are not yielded if it takes them; never the last one.
    """

    events: AsyncGenerator[bytes]
    through: Callable[[Offer], None] | None = None


Reply = Document | Stream


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine, as it was reported. `at` is monotonic seconds.

    `seconds` is the time since the step before, or zero if the engine was idle in between.
    """

    at: float
    seconds: float
    running: int
    """Sequences that the step worked on."""
    prompt_tokens: int
    """Prompt tokens computed in the step; cached ones do not count."""
    generated_tokens: int


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
