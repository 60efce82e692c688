"""From a YAML file to plain data that still knows its lines, and from validation errors to sentences.

Owns: reading YAML safely (no tags beyond plain data, no duplicate keys), the line of every value, and the wording of
every fault in a document. Knows nothing of what the documents mean: settings and manifests bring their own models.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

import yaml
from pydantic import BaseModel, ValidationError
from yaml._yaml import CParser
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from jubako.errors import StartupFault

Location = tuple[int | str, ...]

_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp"))

MAX_BYTES = 4 * 1024 * 1024
"""A configuration file larger than this is a mistake, and parsing it would only take memory."""


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data read from `path`, with the 1-based line of every key and item."""

    data: Any
    path: Path
    lines: Mapping[Location, int] = field(default_factory=dict)

    def line_of(self, location: Location) -> int:
        """The line of `location`, or of the nearest enclosing value that is in the file; never fails."""
        for end in range(len(location), 0, -1):
            if (line := self.lines.get(tuple(location[:end]))) is not None:
                return line
        return self.lines.get((), 1)


class _Loader(Composer, CParser, SafeConstructor, Resolver):
    """PyYAML's safe loader without anchors' aliases: they hide values and can grow a small file without bound.

    Scanning is libyaml's, which is many times faster; composing is Python's, whose recursion has a limit.
    """

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next node, unless it is an alias."""
        if self.check_event(yaml.AliasEvent):
            event: Any = self.get_event()
            problem = "aliases (*name) are not allowed; write the value out"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)


_Faults = list[tuple[int, str]]
"""Line and message of what is wrong with the YAML itself."""


def read(path: Path) -> Document:
    """Read `path` as one YAML document of plain data.

    Raises `StartupFault` with every fault as `file:line: …`: unreadable, not UTF-8, too large, malformed, duplicate
    keys, tags, anchors. An empty file is an empty mapping.
    """
    return parse(text(path), path)


def parse(content: str, path: Path) -> Document:
    """Like `read`, for text that is already at hand; `path` is used in messages only."""
    try:
        loader = _Loader(content)
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise StartupFault(f"{path}: not valid YAML: {error}") from None
    try:
        node = loader.get_single_node()
        faults: _Faults = []
        lines: dict[Location, int] = {}
        data = {} if node is None else _plain(loader, node, (), lines, faults)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise StartupFault(f"{path}:{line}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise StartupFault(f"{path}: not valid YAML: {error}") from None
    finally:
        loader.dispose()
    if faults:
        raise StartupFault("\n".join(f"{path}:{line}: {message}" for line, message in faults))
    return Document(data=data, path=path, lines=lines)


def text(path: Path) -> str:
    """The file's text; raises `StartupFault` if it is no regular file, too large, not UTF-8 or unreadable."""
    try:
        if not path.is_file():
            raise StartupFault(f"{path}: " + ("not a regular file" if path.exists() else "no such file"))
        if (size := path.stat().st_size) > MAX_BYTES:
            raise StartupFault(f"{path}: {size} bytes; a configuration file has at most {MAX_BYTES}")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StartupFault(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise StartupFault(f"{path}: cannot be read: {error.strerror}") from None


def _plain(loader: _Loader, node: yaml.Node, at: Location, lines: dict[Location, int], faults: _Faults) -> Any:
    """Plain data of `node`; fills `lines`, and appends to `faults` instead of raising so that all are reported."""
    line = node.start_mark.line + 1
    lines.setdefault(at, line)
    if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
        return _mapping(loader, node, at, lines, faults)
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [_plain(loader, item, (*at, index), lines, faults) for index, item in enumerate(node.value)]
    if not isinstance(node, yaml.ScalarNode) or node.tag not in _PLAIN_TAGS:
        faults.append((line, f"the tag {node.tag!r} is not allowed; write plain values"))
        return None
    if node.tag.endswith("timestamp"):  # a date is text to us: `version: 2026-01-31` must not become an object
        return node.value
    try:
        return loader.construct_object(node)
    except (ValueError, yaml.YAMLError):
        faults.append((line, f"{node.value!r} is not a value YAML knows; put it in quotes"))
        return None


def _mapping(
    loader: _Loader, node: yaml.MappingNode, at: Location, lines: dict[Location, int], faults: _Faults
) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if key_node.tag == "tag:yaml.org,2002:merge":
            faults.append((line, "merge keys (<<) are not allowed; write the values out"))
            continue
        key = _plain(loader, key_node, (*at, "?"), {}, faults)
        if not isinstance(key, (str, int)):
            faults.append((line, "a key must be plain text"))
            continue
        if key in result:
            first = lines[(*at, key)]
            faults.append((line, f"{_dotted((*at, key))}: the key is given twice (first on line {first})"))
            continue
        lines[(*at, key)] = line
        result[key] = _plain(loader, value_node, (*at, key), lines, faults)
    return result


def faults(document: Document, error: ValidationError, model: type[BaseModel], *, quote: bool = True) -> list[str]:
    """One `file:line: key: message` for each pydantic error, in the order of the lines.

    An unknown key is told with the nearest key that `model` has at that place. Without `quote`, no value of the
    document is repeated: for documents that may hold secrets by mistake.
    """
    found: list[tuple[int, str]] = []
    for item in error.errors(include_url=False):
        location = _in_document(document.data, item["loc"])
        line = document.line_of(location)
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            near = nearest(str(item["loc"][-1]), known_keys(model, item["loc"][:-1]))
            message = "unknown key" + (f" (did you mean {near}?)" if near else "")
        elif item["type"] == "missing":
            message = "is required"
        elif item["type"] == "string_type" and isinstance(item["input"], (int, float)):
            message = f"must be text: put {item['input']!r} in quotes" if quote else "must be text"
        elif (
            quote
            and item["type"] not in ("value_error", "assertion_error")
            and isinstance(item["input"], (str, int, float))
        ):
            message += f" (found {item['input']!r})"
        found.append((line, f"{document.path}:{line}: {_dotted(location) or 'document'}: {message}"))
    return [text for _, text in sorted(dict.fromkeys(found))]


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known key most like `key`, if any is like it at all."""
    matches = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def known_keys(model: type[BaseModel], location: Location) -> list[str]:
    """The keys that `model` accepts at `location`; empty where it is not a model."""
    candidates: list[Any] = [model]
    for step in location:
        following: list[Any] = []
        for candidate in candidates:
            following.extend(_step(candidate, step))
        candidates = following or candidates  # pydantic inserts union tags into the location: no step for those
    return [key for candidate in candidates if _is_model(candidate) for key in _keys(candidate)]


def _step(candidate: type[BaseModel], step: int | str) -> list[Any]:
    """The models that may stand under `step` of `candidate`; a union's tag picks its own members again."""
    for name, info in candidate.model_fields.items():
        if step in (name, info.alias):
            return _models_in(info.annotation)
    kind = candidate.model_fields.get("kind")
    return [candidate] if kind is not None and step in typing.get_args(kind.annotation) else []


def _models_in(annotation: Any) -> list[Any]:
    if _is_model(annotation):
        return [annotation]
    nested = typing.get_args(annotation) if typing.get_origin(annotation) is not None else ()
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is Union:
        nested = typing.get_args(annotation)
    return [model for item in nested for model in _models_in(item)]


def _is_model(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, BaseModel)


def _keys(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


def _in_document(data: Any, location: Location) -> Location:
    """`location` without the steps that pydantic adds for unions: those that the data does not have."""
    kept: list[int | str] = []
    for index, step in enumerate(location):
        last = index == len(location) - 1
        inside_list = isinstance(data, list) and isinstance(step, int) and 0 <= step < len(data)
        if inside_list or (isinstance(data, Mapping) and step in data):
            data = data[step]
        elif not (last and isinstance(data, Mapping)) or step == "[key]":  # pydantic's word for a mapping's key itself
            continue
        kept.append(step)
    return tuple(kept)


def _dotted(location: Iterable[object]) -> str:
    """`adapters[0].alias`: how a place in a document is written in messages."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text
