"""Tenants and their policies: `tenants.yaml` as records.

Owns the file's form and every check of it: names, bounds, and that a policy lowers the server's limits and never raises
them. Knows nothing of keys and tokens, nor of when the file is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
)

from jubako import documents
from jubako.errors import StartupFault
from jubako.sections import Count, LimitSettings, Seconds, Section
from jubako.settings import Settings
from jubako.vocabulary import Budget, Limits, Policy, Scope


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who a credential stands for."""

    name: str
    policy: Policy
    suspended: bool


Tenants = Mapping[str, Tenant]


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What the file is held against while it is checked."""

    limits: Limits
    served: frozenset[str] | None
    policies: frozenset[str]


def _bounds(info: ValidationInfo) -> _Bounds:
    if not isinstance(info.context, _Bounds):  # pragma: no cover - `parse` always gives them
        raise TypeError("tenants are read with their bounds")
    return info.context


# As text in the file too: `1` and `"1"` would be two keys there, and one tenant here.
_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=63)]


def _served(name: str, info: ValidationInfo) -> str:
    served = _bounds(info).served
    if served is not None and name not in served:
        near = documents.nearest(name, served)
        raise ValueError(f"{name!r} is not served" + (f" (did you mean {near}?)" if near else _listed(served)))
    return name


def _known_policy(name: str, info: ValidationInfo) -> str:
    policies = _bounds(info).policies
    if name not in policies:
        near = documents.nearest(name, policies)
        raise ValueError(f"no policy {name!r}" + (f" (did you mean {near}?)" if near else _listed(policies)))
    return name


def _listed(names: frozenset[str]) -> str:
    return f"; there are: {', '.join(sorted(names)[:10]) or 'none'}"


def _all_or_list(value: Any) -> Any:
    """`all` becomes None; null itself is refused, as nobody can tell whether it means all or none."""
    if value == "all":
        return None
    if not isinstance(value, list):
        raise ValueError("write all, or a list of served names")  # noqa: TRY004 - pydantic takes ValueError only
    return value


class _Limits(Section):
    """Limits of a policy, by the names of server.yaml; the fields are taken from there."""

    @field_validator("*")
    @classmethod
    def _not_above_the_server_s(cls, value: float, info: ValidationInfo) -> float:
        name = str(info.field_name)
        highest = getattr(_bounds(info).limits, name)
        if value > highest:
            raise ValueError(
                f"{value:g} is above the server's limit of {highest:g}; raise limits.{name} in server.yaml"
            )
        return value


_LimitOverrides = create_model(
    "_LimitOverrides",
    __base__=_Limits,
    **{name: (info.rebuild_annotation(), None) for name, info in LimitSettings.model_fields.items()},  # type: ignore[call-overload]
)


class _Budget(Section):
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    tokens_per_day: Count | None = None
    tokens_per_month: Count | None = None
    concurrency: Count | None = None


class _Policy(Section):
    models: Annotated[list[Annotated[str, AfterValidator(_served)]] | None, BeforeValidator(_all_or_list)]
    scopes: list[Scope]
    weight: Annotated[float, Field(gt=0, le=1_000_000)]
    priority: Annotated[int, Field(ge=0, le=9)]
    deadline_seconds: Seconds
    queue_seconds: Seconds
    limits: _LimitOverrides
    tenant_budget: _Budget
    key_budget: _Budget


class _Tenant(Section):
    policy: Annotated[str, AfterValidator(_known_policy)]
    suspended: bool


class _File(Section):
    policies: dict[_Name, _Policy]
    tenants: dict[_Name, _Tenant]


def load(path: Path, *, limits: Limits, deadline_seconds: float, served: frozenset[str] | None) -> Tenants:
    """The tenants of the file; raises `StartupFault` with every fault at once, each with its line.

    `limits` and `deadline_seconds` are the server's: a policy's limit above them is a fault, a longer deadline is cut.
    `served` are the names that the release serves; None if that is not known.
    """
    return parse(documents.read(path), limits=limits, deadline_seconds=deadline_seconds, served=served)


def of(settings: Settings, served: frozenset[str] | None) -> Tenants:
    """Like `load`, for the file and the bounds of these settings."""
    server = settings.server
    return load(
        settings.tenants_file, limits=server.limits.limits, deadline_seconds=server.deadline.seconds, served=served
    )


def parse(
    document: documents.Document, *, limits: Limits, deadline_seconds: float, served: frozenset[str] | None
) -> Tenants:
    """Like `load`, for a document that has been read."""
    named = document.data.get("policies") if isinstance(document.data, dict) else None
    known = frozenset(name for name in named if isinstance(name, str)) if isinstance(named, dict) else frozenset()
    bounds = _Bounds(limits, served, known)
    try:
        file = _File.model_validate(document.data, context=bounds)
    except ValidationError as error:
        raise StartupFault("\n".join(documents.faults(document, error, _File))) from None
    policies = {name: _record(policy, limits, deadline_seconds) for name, policy in file.policies.items()}
    return {name: Tenant(name, policies[one.policy], one.suspended) for name, one in file.tenants.items()}


def known(name: str, tenants: Tenants) -> Tenant:
    """The tenant of that name; raises `StartupFault` with the nearest name if there is none."""
    if (tenant := tenants.get(name)) is None:
        near = documents.nearest(name, tenants)
        hint = f"did you mean {near}?" if near else "Add it to tenants.yaml first."
        raise StartupFault(f"no tenant {name!r}; {hint}")
    return tenant


def _record(policy: _Policy, limits: Limits, deadline_seconds: float) -> Policy:
    return Policy(
        models=None if policy.models is None else frozenset(policy.models),
        scopes=frozenset(policy.scopes),
        weight=policy.weight,
        priority=policy.priority,
        deadline_seconds=min(policy.deadline_seconds, deadline_seconds),
        queue_seconds=policy.queue_seconds,
        limits=_lowered(limits, policy.limits.model_dump(exclude_unset=True)),
        tenant_budget=Budget(**policy.tenant_budget.model_dump()),
        key_budget=Budget(**policy.key_budget.model_dump()),
    )


def _lowered(limits: Limits, overrides: Mapping[str, Any]) -> Limits:
    values = {field.name: getattr(limits, field.name) for field in fields(limits)} | dict(overrides)
    # A policy that allows fewer tokens than the default means that default too.
    values["default_output_tokens"] = min(values["default_output_tokens"], values["output_tokens"])
    return Limits(**values)
