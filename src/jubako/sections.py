"""The sections of `configuration/server.yaml`: the name, type and bounds of every setting.

The values stand in the file alone, so that a default is stated once. Knows nothing of how they are read or used.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from jubako.vocabulary import Limits

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Name = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=63),
]


class Section(BaseModel):
    """Closed and frozen: an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ReleaseSettings(Section):
    """Which release answers."""

    name: Name
    version: Name


class EngineSettings(Section):
    """Which engine profile, and single options on top of it."""

    profile: Name
    options: dict[str, Any]


def _key_set_source(source: str) -> str:
    if "://" not in source:
        return source
    url = urlsplit(source)
    host = url.hostname or ""
    if url.username is not None or url.password is not None:
        raise ValueError("the URL must not hold a user or a password")
    if not host or url.port == 0 or url.scheme not in ("https", "http"):
        raise ValueError("must be the path of a file or an https URL")
    if url.scheme == "http" and not _is_loopback(host):
        raise ValueError(
            "must be https: whoever can change what http brings can sign tokens (http is for loopback only)"
        )
    return source


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


Text = Annotated[str, Field(min_length=1, max_length=1024)]


class JwtSettings(Section):
    """Which tokens of an identity provider are accepted.

    Claims `iss`, `aud`, `exp`, `sub` and the tenant's are required.
    """

    issuer: Text
    audience: Text
    jwks: Annotated[Text, AfterValidator(_key_set_source)]
    """Path of a file, or an https URL (http is for loopback only)."""
    tenant_claim: Text
    scope_claim: Text | None
    """Space-separated scopes or a list; None: the tenant's policy alone decides."""
    algorithms: Annotated[
        list[Literal["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "EdDSA"]], Field(min_length=1)
    ]
    leeway_seconds: Annotated[float, Field(ge=0, le=300)]
    cache_seconds: Seconds
    """How long keys from a URL are used before they are fetched again."""


class AuthenticationSettings(Section):
    """Where keys and tenants are, and how soon a change of them is seen."""

    keys_file: Path
    tenants_file: Path
    reload_seconds: Annotated[float, Field(gt=0, le=1)]
    """A revoked key fails within twice this."""
    jwt: JwtSettings | None


Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
CountOrNone = Annotated[int, Field(ge=0, le=1_000_000_000)]


class LimitSettings(Section):
    """Hard limits of one request; see `vocabulary.Limits`. A policy may lower each of them, never raise it."""

    body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)]
    body_seconds: Seconds
    json_depth: Annotated[int, Field(ge=4, le=200)]
    json_values: Count
    messages: Count
    message_characters: Count
    prompt_characters: Count
    prompts: Count
    prompt_tokens: Count
    output_tokens: Count
    default_output_tokens: Count
    choices: Count
    sequences: Count
    logprobs: CountOrNone
    stops: CountOrNone
    stop_characters: Count
    tools: CountOrNone
    schema_bytes: CountOrNone
    logit_bias: CountOrNone
    token_ids: CountOrNone
    images: CountOrNone
    image_bytes: Count
    image_pixels: Count

    @property
    def limits(self) -> Limits:
        """The same as a record that every room knows."""
        return Limits(**self.model_dump())


class BodySettings(Section):
    """What request bodies may take of the server's memory."""

    held_bytes: Annotated[int, Field(ge=1 << 16, le=1 << 40)]
    """Of all requests together, while they are read and parsed."""


class GrammarSettings(Section):
    """How much a schema, regular expression or grammar may cost before it reaches the engine."""

    check_seconds: Seconds
    memory_bytes: Annotated[int, Field(ge=1 << 26, le=1 << 36)]


class DeadlineSettings(Section):
    """The longest a request may take, whatever its policy says."""

    seconds: Seconds


class AdmissionSettings(Section):
    """The queue in front of the engine, and the pace that is held behind it."""

    time_per_output_token_seconds: Annotated[float, Field(gt=0, le=60)]
    """How many sequences run at once is found so that this holds."""
    queue_requests: Count
    queue_tokens: Count
    """Estimated tokens of all queued requests together."""
    ageing_seconds: Seconds
    """A queued request moves up one priority each time this passes."""


class BudgetSettings(Section):
    """Where the counts of requests and tokens are kept."""

    store: Literal["sqlite", "redis"]
    sqlite_file: Path
    redis_url: str | None
    """`redis://` or `rediss://`, without a password."""
    redis_password_file: Path | None
    lease_seconds: Annotated[float, Field(ge=1, le=600)]
    """What a process that was killed had reserved is free again after this long."""

    @model_validator(mode="after")
    def _store_has_its_place(self) -> Self:
        if self.store == "redis" and self.redis_url is None:
            raise ValueError("store is redis, and redis_url is null: write redis://host:port/number there")
        return self


class BooksSettings(Section):
    """Where what was used is written down: the audit, and the ledger that follows it."""

    audit_folder: Path
    """Of this server alone."""
    audit_file_bytes: Annotated[int, Field(ge=1 << 16, le=1 << 34)]
    audit_files: Annotated[int, Field(ge=2, le=1_000_000)]
    """How many are kept; those that the ledger has not taken are kept beyond that."""
    audit_standard_output: bool
    """Whether the same lines go to standard output too."""
    ledger_sqlite_file: Path
    ledger_url: str | None
    """`postgresql+psycopg://user@host/database`, without a password; None: the SQLite file."""
    ledger_password_file: Path | None
    ledger_row_days: Annotated[int, Field(ge=1, le=36_500)] | None
    """How long the row of each request is kept; sums by day are kept for ever. None: rows too."""


class SurfaceSettings(Section):
    """Who reaches what is not the API: `open`, `operator` (a key with that scope) or `closed` (404)."""

    metrics: Literal["open", "operator", "closed"]
    documentation: Literal["open", "operator", "closed"]
    """BentoML's own /schema.json and /docs.json."""
    cors_origins: list[Annotated[str, Field(pattern=r"^https?://[a-z0-9.-]+(:[0-9]{1,5})?$")]]
    """Exact origins as browsers send them; there is no wildcard."""


class StreamSettings(Section):
    """When a silent or blocked stream is acted upon."""

    keep_alive_seconds: Seconds
    stalled_reader_seconds: Seconds


class LifeSettings(Section):
    """How long each phase of the server's life may take."""

    start_seconds: Seconds
    drain_seconds: Seconds
    stall_seconds: Seconds
    close_seconds: Seconds


class LogSettings(Section):
    """How log lines look on standard error, and which of Jubako's own are written."""

    format: Literal["auto", "json", "text"]
    """auto: text when standard error is a terminal, JSON otherwise."""
    level: Literal["debug", "info", "warning", "error"]


class TracingSettings(Section):
    """Where spans go. Without an endpoint there are none, and they cost nothing."""

    endpoint: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")] | None
    """Of an OTLP collector. HTTP adds `/v1/traces` if there is no path; gRPC is without TLS for http."""
    protocol: Literal["http", "grpc"]
    ratio: Annotated[float, Field(ge=0, le=1)]
    """Share of requests that are traced, if the caller does not say."""
    headers_file: Path | None
    """One `name: value` a line, for a collector that wants a credential."""


class TelemetrySettings(Section):
    """What the server tells its operators, beside metrics."""

    logs: LogSettings
    tracing: TracingSettings


class ServerSettings(Section):
    """All of `configuration/server.yaml`."""

    release: ReleaseSettings
    engine: EngineSettings
    authentication: AuthenticationSettings
    limits: LimitSettings
    bodies: BodySettings
    grammar: GrammarSettings
    deadline: DeadlineSettings
    admission: AdmissionSettings
    budgets: BudgetSettings
    books: BooksSettings
    surfaces: SurfaceSettings
    stream: StreamSettings
    life: LifeSettings
    telemetry: TelemetrySettings
