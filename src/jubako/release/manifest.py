"""The manifest of a release: its fields, its canonical form, and the digest that is the release's identity.

Owns what a manifest may say and how it is read and written. Knows nothing of where files are fetched from or stored.
A manifest never changes: a change is a new version.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from jubako import documents
from jubako.errors import StartupFault

TagPart = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-._a-z0-9]*[a-z0-9])?$", max_length=63)]
"""BentoML's own rule for the name and the version of a tag."""
Alias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""What callers send as `model`; also a folder name for adapters, hence no slash."""
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Text = Annotated[str, StringConstraints(min_length=1)]
Dtype = Literal["bfloat16", "float16", "float32"]

HEADER = "# Written by `jubako release create`. Immutable: a change is a new version.\n"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class PinnedFile(_Record):
    """One file: `path` is relative and posix, `size` is in bytes."""

    path: Text
    size: Annotated[int, Field(ge=0, strict=True)]
    sha256: Sha256

    @field_validator("path")
    @classmethod
    def _inside(cls, path: str) -> str:
        parts = PurePosixPath(path).parts
        if path.startswith("/") or "\\" in path or "\0" in path or ".." in parts or str(PurePosixPath(*parts)) != path:
            raise ValueError(f"{path!r} is not a plain relative path with forward slashes")
        return path


class HubSource(_Record):
    """A repository of the model hub at one commit; `requested` is what was typed: branch, tag or commit."""

    kind: Literal["hub"]
    repository: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?$")]
    revision: Commit
    requested: Text


class PackageSource(_Record):
    """One file inside the wheel of a Python package."""

    kind: Literal["package"]
    package: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
    version: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.!+_-]+$")]
    wheel_sha256: Sha256
    file: Text
    file_sha256: Sha256


class FolderSource(_Record):
    """Files somebody had at hand; the note says whence. No path: another machine would not have it."""

    kind: Literal["folder"]
    note: Text


Source = Annotated[HubSource | PackageSource | FolderSource, Field(discriminator="kind")]


class Conversion(_Record):
    """How the source's file became safetensors. The tool's version is part of the bytes, so it is pinned."""

    from_: Annotated[Literal["gguf"], Field(alias="from")]
    tool: Literal["transformers"]
    tool_version: Text
    dtype: Dtype


class Licence(_Record):
    """The licence and who may rely on it; a refused one is never fetched."""

    spdx: Text
    decision: Literal["approved", "refused"]
    reason: Text


class EngineVersion(_Record):
    """The engine the release was tested with: vLLM's version, and per profile the sha256 of its canonical options."""

    version: Text
    options: dict[str, Sha256] = {}


class Adapter(_Record):
    """A LoRA adapter, pinned like the model."""

    alias: Alias
    source: Source
    files: Annotated[tuple[PinnedFile, ...], Field(min_length=1)]
    rank: Annotated[int, Field(ge=1)] | None = None

    _files = field_validator("files")(lambda files: _sorted_unique(files))  # noqa: PLW0108 - defined below


class Message(_Record):
    """One turn of a smoke conversation."""

    role: Literal["system", "user", "assistant"]
    content: Text


class SmokePrompt(_Record):
    """A greedy request whose whole answer is known; exactly one of `messages` and `prompt`."""

    name: Text
    messages: tuple[Message, ...] | None = None
    prompt: Text | None = None
    max_tokens: Annotated[int, Field(ge=1, le=4096)]
    expected: Text

    @model_validator(mode="after")
    def _one_input(self) -> SmokePrompt:
        if bool(self.messages) == bool(self.prompt):
            raise ValueError("exactly one of messages and prompt is needed")
        return self


class Evaluation(_Record):
    """An evaluation set and the least score that lets the release through."""

    name: Text
    threshold: float


class Serving(_Record):
    """Engine options that belong to the model, not to the machine. `chat_template` names one of the pinned files."""

    chat_template: Text | None = None
    tool_call_parser: Text | None = None
    enable_auto_tool_choice: bool = False
    reasoning_parser: Text | None = None


class Manifest(_Record):
    """Everything that makes a release what it is. Its canonical form's sha256 is the release digest."""

    schema_version: Literal[1]
    name: TagPart
    version: TagPart
    aliases: Annotated[tuple[Alias, ...], Field(min_length=1)]
    source: Source
    conversion: Conversion | None = None
    files: Annotated[tuple[PinnedFile, ...], Field(min_length=1)]
    architecture: Text
    tokenizer_sha256: Sha256
    chat_template_sha256: Sha256 | None = None
    dtype: Dtype
    quantization: Text = "none"
    licence: Licence
    engine: EngineVersion
    base_image: Annotated[str, StringConstraints(pattern=r"^(\S+@)?sha256:[0-9a-f]{64}$")] | None = None
    adapters: tuple[Adapter, ...] = ()
    smoke: tuple[SmokePrompt, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    predecessor: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][-._a-z0-9]*/[a-z0-9][-._a-z0-9]*$")] | None = None
    serving: Serving = Serving()

    _files = field_validator("files")(lambda files: _sorted_unique(files))  # noqa: PLW0108 - defined below

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        _unique("alias", [*self.aliases, *(adapter.alias for adapter in self.adapters)])
        _unique("smoke prompt", [smoke.name for smoke in self.smoke])
        _unique("evaluation", [evaluation.name for evaluation in self.evaluations])
        pins = {file.path: file.sha256 for file in self.files}
        if pins.get("tokenizer.json", self.tokenizer_sha256) != self.tokenizer_sha256:
            raise ValueError("tokenizer_sha256 is not the sha256 that files gives for tokenizer.json")
        if self.serving.chat_template is not None and self.serving.chat_template not in pins:
            raise ValueError(f"serving.chat_template {self.serving.chat_template!r} is not one of the pinned files")
        if self.predecessor == self.reference:
            raise ValueError("predecessor is this release itself")
        return self

    @property
    def reference(self) -> str:
        """`name/version`: what an operator types."""
        return f"{self.name}/{self.version}"

    @property
    def digest(self) -> str:
        """The release digest: sha256 of the canonical form, 64 hexadecimal digits."""
        return hashlib.sha256(self.canonical()).hexdigest()

    @property
    def tag(self) -> str:
        """The BentoML model tag: the name and the first 16 digits of the release digest."""
        return f"{self.name}:{self.digest[:16]}"

    @property
    def size_bytes(self) -> int:
        """Bytes of all files, adapters included."""
        return sum(file.size for files in self.layout().values() for file in files)

    def layout(self) -> dict[str, tuple[PinnedFile, ...]]:
        """Folder below the release's root -> the files in it: `model`, and `adapters/<alias>` for each adapter."""
        return {"model": self.files} | {f"adapters/{adapter.alias}": adapter.files for adapter in self.adapters}

    def canonical(self) -> bytes:
        """JSON of every field, defaults included: sorted keys, no whitespace, UTF-8."""
        data = self.model_dump(mode="json", by_alias=True)
        return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def load(path: Path) -> Manifest:
    """Read a manifest. Raises `StartupFault` with every fault of the file, each with its line."""
    document = documents.read(path)
    try:
        return Manifest.model_validate(document.data)
    except ValidationError as error:
        raise StartupFault("\n".join(documents.faults(document, error, Manifest))) from None


def dump(manifest: Manifest) -> str:
    """YAML that `load` reads back as an equal manifest; the same text for the same manifest."""
    data: dict[str, Any] = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
    return HEADER + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


def _sorted_unique(files: tuple[PinnedFile, ...]) -> tuple[PinnedFile, ...]:
    paths = [file.path for file in files]
    _unique("path", paths)
    if paths != sorted(paths):
        raise ValueError("the files must be sorted by path")
    folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    if clash := sorted(folders & set(paths)):
        raise ValueError(f"{clash[0]!r} is given as a file and as a folder")
    return files


def _unique(what: str, names: list[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{what} given twice: {', '.join(twice)}")
