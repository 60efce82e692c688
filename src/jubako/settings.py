"""What an operator turned: `configuration/server.yaml`, an engine profile, and the environment on top.

Owns how they are read, merged and explained; `sections` has their names, types and bounds. Knows nothing of what the
settings are used for.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from jubako import documents
from jubako.errors import StartupFault
from jubako.sections import Section, ServerSettings

PREFIX = "JUBAKO__"
ADDRESS_VARIABLE = "JUBAKO_ADDRESS"
"""Set by `jubako serve` for the worker: which address its ready message names. Not a setting."""
class EngineProfile(Section):
    """One file of `configuration/engines/`: vLLM's own option names and environment variables."""

    environment: dict[str, str | int | float | bool]
    options: dict[str, Any]

    @property
    def digest(self) -> str:
        """sha256 of the profile's canonical form: JSON with sorted keys and no whitespace."""
        canonical = json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()


class Settings(BaseModel):
    """Everything that was read, with the profile merged and relative paths made absolute."""

    model_config = ConfigDict(frozen=True)

    root: Path
    server: ServerSettings
    profile: EngineProfile

    @property
    def configuration(self) -> Path:
        """The folder that holds server.yaml, engines/ and releases/."""
        return self.root / "configuration"

    @property
    def first_byte_seconds(self) -> float:
        """The longest that a reply's first byte can take by our own limits, from the request's first byte."""
        limits = self.server.limits
        return limits.body_seconds + max(limits.reply_seconds, self.server.stream.keep_alive_seconds)

    @property
    def key_file(self) -> Path:
        """Absolute path of the API key's file."""
        return self.root / self.server.authentication.key_file.expanduser()

    @property
    def engine_options(self) -> dict[str, Any]:
        """The profile's options with the single ones on top."""
        return {**self.profile.options, **self.server.engine.options}

    @property
    def engine_digest(self) -> str:
        """The digest of the profile as it is in force, single options included."""
        return self.profile.model_copy(update={"options": self.engine_options}).digest


def load(root: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Read and check all settings under `root`, the folder that holds `configuration/`.

    Raises `StartupFault` with every fault at once, each with file and line or environment variable.
    """
    environ = os.environ if environment is None else environment
    path = root / "configuration" / "server.yaml"
    document = documents.read(path)
    data = document.data
    found: list[str] = []
    try:
        ServerSettings.model_validate(data)
    except ValidationError as error:
        found += documents.faults(document, error, ServerSettings)
    overlaid, variables, unreadable = _overlay(data, environ)
    found += unreadable
    try:
        server = ServerSettings.model_validate(overlaid)
    except ValidationError as error:
        found += _environment_faults(error, variables)
        raise StartupFault("\n".join(found)) from None
    if found:
        # The environment may mend a key of the file, but a file that is wrong by itself is refused all the same:
        # the next process may run without that variable.
        raise StartupFault("\n".join(found))
    return Settings(root=root, server=server, profile=_profile(root, server.engine.profile))


def profiles(configuration: Path) -> dict[str, EngineProfile]:
    """Every engine profile below `configuration`, by name."""
    return {path.stem: _read_profile(path) for path in sorted((configuration / "engines").glob("*.yaml"))}


def _profile(root: Path, name: str) -> EngineProfile:
    folder = root / "configuration" / "engines"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in folder.glob("*.yaml"))
        near = documents.nearest(name, known)
        hint = f"; did you mean {near}?" if near else ""
        raise StartupFault(f"engine.profile: no file {path}; profiles here: {', '.join(known) or 'none'}{hint}")
    return _read_profile(path)


def _read_profile(path: Path) -> EngineProfile:
    document = documents.read(path)
    try:
        return EngineProfile.model_validate(document.data)
    except ValidationError as error:
        raise StartupFault("\n".join(documents.faults(document, error, EngineProfile))) from None


def _overlay(data: Any, environ: Mapping[str, str]) -> tuple[Any, dict[tuple[str, ...], str], list[str]]:
    """Put `JUBAKO__SECTION__KEY` variables on top of `data`; values are read as YAML."""
    if not isinstance(data, dict):
        return data, {}, []
    merged: dict[str, Any] = {k: dict(v) if isinstance(v, dict) else v for k, v in data.items()}
    variables: dict[tuple[str, ...], str] = {}
    unreadable: list[str] = []
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        path = tuple(part.lower() for part in variable.removeprefix(PREFIX).split("__"))
        try:
            value = yaml.safe_load(environ[variable])
        except (yaml.YAMLError, ValueError, RecursionError):
            unreadable.append(f"environment: {variable}: the value is not YAML; quote it")
            continue
        at: Any = merged
        for part in path[:-1]:
            following = at.get(part)
            at[part] = dict(following) if isinstance(following, dict) else {}
            at = at[part]
        at[path[-1]] = value
        variables[path] = variable
    return merged, variables, unreadable


def _environment_faults(error: ValidationError, variables: Mapping[tuple[str, ...], str]) -> list[str]:
    known = [PREFIX + "__".join(path).upper() for path in _paths(ServerSettings)]
    lines = []
    for fault in error.errors(include_url=False, include_input=False):
        location = tuple(str(part) for part in fault["loc"])
        for path, variable in variables.items():
            if path[: len(location)] != location and location[: len(path)] != path:
                continue
            if fault["type"] == "extra_forbidden":
                near = documents.nearest(variable, known)
                hint = f"; did you mean {near}?" if near else ""
                lines.append(f"environment: {variable}: no such setting{hint}")
            else:
                lines.append(f"environment: {variable}: {fault['msg'].lower()}")
    return lines


def _paths(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, info in model.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += _paths(inner, (*prefix, name))
        else:
            found.append((*prefix, name))
    return found


def explain(settings: Settings) -> str:
    """Every setting in force, one `section.key = value` a line, secrets' files by path only."""
    lines = []
    for path in _paths(ServerSettings):
        value: Any = settings.server
        for part in path:
            value = getattr(value, part)
        lines.append(f"{'.'.join(path)} = {value}")
    lines += [f"engine option {name} = {value}" for name, value in sorted(settings.engine_options.items())]
    lines += [f"engine environment {name} = {value}" for name, value in sorted(settings.profile.environment.items())]
    return "\n".join(lines)
