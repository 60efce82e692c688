"""The messages of a chat request: their shape, their characters, their images.

Knows what stands inside a message; knows nothing of the rest of the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jubako.boundary import fields, images
from jubako.boundary.fields import Table, sift
from jubako.boundary.reasons import TOO_LONG, too_many, unsupported, wrong_type
from jubako.vocabulary import Limits

_TEXTS = ("role", "name", "reasoning", "reasoning_content", "refusal", "tool_call_id")
_MEDIA = frozenset(
    {
        *("audio_embeds", "audio_url", "file", "image_embeds", "image_pil", "input_audio", "input_file", "input_image"),
        *("prompt_embeds", "tool_reference", "video_embeds", "video_url"),
    }
)
"""Kinds of content that vLLM or OpenAI know and this server does not take."""


@dataclass(slots=True)
class Tally:
    """What was counted so far."""

    characters: int = 0
    text_bytes: int = 0
    images: int = 0
    pixels: int = 0

    def add(self, text: str) -> None:
        """Count one text."""
        self.characters += len(text)
        self.text_bytes += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def check(messages: Any, limits: Limits, tally: Tally, *, media_salt: str) -> list[dict[str, Any]]:
    """The messages as the engine gets them, counted into `tally`; raises `InvalidRequest`."""
    if not isinstance(messages, list):
        raise wrong_type("messages", "list")
    if len(messages) > limits.messages:
        raise too_many("messages", "messages", limits.messages, len(messages))
    checked = []
    for index, message in enumerate(messages):
        before = tally.characters
        checked.append(_message(message, f"messages.{index}", limits, tally, media_salt))
        found = tally.characters - before
        if found > limits.message_characters:
            param = f"messages.{index}"
            raise too_many(param, "characters of a message", limits.message_characters, found, code=TOO_LONG)
    return checked


def _message(message: Any, param: str, limits: Limits, tally: Tally, media_salt: str) -> dict[str, Any]:
    kept = _object(message, fields.MESSAGE, param)
    for name in _TEXTS:
        if (text := kept.get(name)) is not None:
            if not isinstance(text, str):
                raise wrong_type(f"{param}.{name}", "string")
            tally.add(text)
    content = kept.get("content")
    if isinstance(content, str):
        tally.add(content)
    elif isinstance(content, list):
        kept["content"] = [
            _part(part, f"{param}.content.{index}", limits, tally, media_salt) for index, part in enumerate(content)
        ]
    elif isinstance(content, dict):
        # vLLM would take the keys for parts.
        raise wrong_type(f"{param}.content", "string or list")
    if (calls := kept.get("tool_calls")) is not None:
        kept["tool_calls"] = _tool_calls(calls, f"{param}.tool_calls", tally)
    return kept


def _part(part: Any, param: str, limits: Limits, tally: Tally, media_salt: str) -> str | dict[str, Any]:
    if isinstance(part, str):
        tally.add(part)
        return part
    if not isinstance(part, dict):
        raise wrong_type(param, "object")
    kind = part.get("type")
    if kind == "image_url":
        return _image(part, param, limits, tally, media_salt)
    table = fields.TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if table is None:
        name = f"{kind} parts are" if isinstance(kind, str) and kind in _MEDIA else "This kind of content is"
        raise unsupported(f"{param}.type", f"{name} not supported. Send text or image_url.")
    kept = sift(table, part, f"{param}.")
    for name, value in kept.items():
        if isinstance(value, str) and name != "type":
            tally.add(value)
        elif name not in {"type", "closed"} and value is not None:
            raise wrong_type(f"{param}.{name}", "string")
    return kept


def _image(part: Mapping[str, Any], param: str, limits: Limits, tally: Tally, media_salt: str) -> dict[str, Any]:
    kept = sift(fields.IMAGE_PART, part, f"{param}.")
    holder = kept.get("image_url")
    where = f"{param}.image_url.url"
    if isinstance(holder, dict):
        holder = sift(fields.IMAGE_URL, holder, f"{param}.image_url.").get("url")
    if not isinstance(holder, str):
        raise wrong_type(where, "string")
    tally.images += 1
    if tally.images > limits.images:
        raise too_many("messages", "images", limits.images, tally.images)
    image = images.measure(holder, limits, salt=media_salt, param=where)
    tally.pixels += image.pixels
    return {"type": "image_url", "image_url": {"url": holder}, "uuid": image.cache_key}


def _tool_calls(calls: Any, param: str, tally: Tally) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise wrong_type(param, "list")
    checked = []
    for index, call in enumerate(calls):
        where = f"{param}.{index}"
        kept = _object(call, fields.TOOL_CALL, where)
        kept["function"] = _object(kept.get("function"), fields.CALLED_FUNCTION, f"{where}.function")
        for holder, name in ((kept, "id"), (kept["function"], "name"), (kept["function"], "arguments")):
            if isinstance(text := holder.get(name), str):
                tally.add(text)
            elif text is not None:
                raise wrong_type(f"{where}.{name}", "string")
        checked.append(kept)
    return checked


def _object(value: Any, table: Table, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(param, "object")
    return sift(table, value, f"{param}.")
