"""Requests with a canary in every text that a caller can send, on ways that end well and ways that do not.

It knows the API's fields and plain HTTP; it knows nothing of where a canary must not be heard.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import httpx

from tests.contract.corpus import ADAPTER, BASE, CHAT, COMPLETIONS, ENDLESS_TOKENS, says

CANARY = "xcanaryx"
"""In every text, in lower case; a search of whatever is told ignores case."""
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Canaries:
    """One caller at one server. Ids of its requests begin with `silence-`."""

    def __init__(self, url: str, key: str) -> None:
        self._client = httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=120)
        self._numbers = itertools.count()
        self._others: list[bytes] = []
        self.successes = 0
        self.refusals = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def sing(self) -> None:
        """Send all of them; between them, what somebody else would send."""
        for path, body in (*_answered(), *_doubtful()):
            for stream in (False, True):
                reply = self._post(path, {"model": BASE, "max_tokens": 6} | body | {"stream": stream})
                if reply.status_code == httpx.codes.OK:
                    self.successes += 1
                else:
                    self.refusals += 1
            self._others.append(self._post(CHAT, {"messages": says("Hello"), "max_tokens": 2}).content)
            self._others.append(self._post(CHAT, {"messages": says("Hello"), "n": -1}).content)
        self._leave()
        for method, path, options in _malformed():
            headers = {"authorization": self._client.headers["authorization"]} | options.pop("headers", {})
            # Not through the client, whose other headers would come along.
            url = str(self._client.base_url.join(path))
            assert httpx.request(method, url, headers=headers, **options, timeout=120).is_error
            self.refusals += 1

    def answers_of_others(self) -> bytes:
        """What was answered to requests without a canary."""
        return b"\n".join(self._others)

    def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        headers = {"x-request-id": f"silence-{next(self._numbers)}", "user-agent": CANARY, "baggage": f"a={CANARY}"}
        headers |= {"tracestate": f"a={CANARY}", "traceparent": CANARY, "cookie": CANARY, "referer": CANARY}
        return self._client.post(f"{path}?q={CANARY}", json=body, headers=headers)

    def _leave(self) -> None:
        """One caller goes in the middle of an answer, and one is late."""
        body = {
            "model": BASE,
            "messages": says(f"Tell me of {CANARY}."),
            "max_tokens": ENDLESS_TOKENS,
            "ignore_eos": True,
        }
        with self._client.stream("POST", CHAT, json=body | {"stream": True}) as reply:
            next(reply.iter_text())
        self._client.post(CHAT, json=body, headers={"x-request-timeout-ms": "300"})


def _answered() -> Iterator[tuple[str, dict[str, Any]]]:
    """What the model answers: the canary is in the prompt, in the completion, or in how the two are made."""
    person = {"type": "object", "properties": {CANARY: {"type": "boolean"}}, "required": [CANARY]}
    tool = {"name": CANARY, "description": CANARY, "parameters": person | {"description": CANARY}}
    tools = {"messages": says(f"Call {CANARY}"), "tools": [{"type": "function", "function": tool}], "max_tokens": 40}
    named = {"type": "function", "function": {"name": CANARY}}
    called = {"id": CANARY, "type": "function", "function": {"name": CANARY, "arguments": f'{{"{CANARY}": true}}'}}
    yield CHAT, {"messages": says(CANARY)}
    yield CHAT, {"messages": [{"role": "system", "content": CANARY, "name": CANARY}, *says(CANARY)], "model": ADAPTER}
    yield CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": CANARY}]}]}
    yield (
        CHAT,
        {"messages": [*says("hi"), {"role": "assistant", "content": CANARY, "tool_calls": [called]}, *says("?")]},
    )
    yield CHAT, {"messages": says("Say it"), "structured_outputs": {"choice": [CANARY]}, "max_tokens": 20}
    yield (
        CHAT,
        {"messages": says("Say it"), "structured_outputs": {"regex": CANARY}, "max_tokens": 20, "logprobs": True},
    )
    yield (
        CHAT,
        {"messages": says("Say it"), "structured_outputs": {"grammar": f'root ::= "{CANARY}"'}, "max_tokens": 20},
    )
    named_schema = {"name": CANARY, "description": CANARY, "schema": person}
    response_format = {"type": "json_schema", "json_schema": named_schema}
    yield CHAT, {"messages": says("Say it"), "response_format": response_format, "max_tokens": 30}
    yield CHAT, tools | {"tool_choice": named}
    yield CHAT, tools | {"tool_choice": "required"}
    yield CHAT, tools | {"tool_choice": "auto"}
    yield CHAT, {"messages": says("hi"), "stop": [CANARY], "user": CANARY, "metadata": {CANARY: CANARY}}
    yield CHAT, {"messages": says("hi"), "documents": [{"title": CANARY, "text": CANARY}]}
    yield CHAT, {"messages": says("hi"), "chat_template_kwargs": {"note": CANARY}}
    yield CHAT, {"messages": says(CANARY), "return_prompt_text": True}
    yield COMPLETIONS, {"prompt": CANARY, "echo": True}
    yield COMPLETIONS, {"prompt": CANARY, "logprobs": 2}
    yield COMPLETIONS, {"prompt": [CANARY, f"{CANARY} again"], "n": 2, "temperature": 1.0}
    yield COMPLETIONS, {"prompt": "hi", "bad_words": [CANARY]}


def _doubtful() -> Iterator[tuple[str, dict[str, Any]]]:
    """What is refused, or fails, at each of the places that look at it: some tell the caller what they did not like."""
    image = {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;name={CANARY};base64,{PIXEL}", "detail": CANARY},
    }
    yield CHAT, {"messages": says(CANARY), CANARY: CANARY}
    yield COMPLETIONS, {"prompt": CANARY, "echo": True, "logprobs": 2}
    yield CHAT, {"messages": says(CANARY), "model": CANARY}
    yield CHAT, {"messages": says(CANARY), "top_k": 10**30}
    yield CHAT, {"messages": says(CANARY), "n": CANARY}
    yield CHAT, {"messages": says(CANARY), "temperature": CANARY}
    yield CHAT, {"messages": says(CANARY), "cache_salt": CANARY}
    yield CHAT, {"messages": says(CANARY), "logit_bias": {CANARY: 1}}
    yield CHAT, {"messages": says(CANARY), "tool_choice": {"type": "function", "function": {"name": CANARY}}}
    yield CHAT, {"messages": says(CANARY), "tools": [{"type": CANARY}]}
    yield (
        CHAT,
        {"messages": says(CANARY), "tools": [{"type": "function", "function": {"name": CANARY, "parameters": 1}}]},
    )
    yield CHAT, {"messages": says(CANARY), "response_format": {"type": CANARY}}
    yield CHAT, {"messages": says(CANARY), "structured_outputs": {"regex": f"({CANARY}"}}
    yield CHAT, {"messages": says(CANARY), "structured_outputs": {"grammar": f"root ::= {CANARY}"}}
    yield CHAT, {"messages": says(CANARY), "structured_outputs": {"json": {"type": CANARY}}}
    yield CHAT, {"messages": says(CANARY), "structured_outputs": {"json": {"$ref": f"#/$defs/{CANARY}"}}}
    yield CHAT, {"messages": says(CANARY), "structured_outputs": {"json": CANARY}}
    yield CHAT, {"messages": says(CANARY), "structured_outputs": {"structural_tag": CANARY}}
    yield CHAT, {"messages": [{"role": CANARY, "content": CANARY}]}
    yield CHAT, {"messages": [{"role": "user", "content": [{"type": CANARY, CANARY: CANARY}]}]}
    yield CHAT, {"messages": [{"role": "user", "content": [image]}]}
    yield (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"http://{CANARY}"}}]}]},
    )
    yield CHAT, {"messages": [{"role": "tool", "content": CANARY, "tool_call_id": CANARY}]}
    yield CHAT, {"messages": f"{CANARY}"}
    yield CHAT, {"messages": says(f"{CANARY} " * 1500)}
    yield CHAT, {"messages": [*says("hi"), {"role": "assistant", "content": None, "tool_calls": [{"id": CANARY}]}]}
    arguments = {"id": "a", "type": "function", "function": {"name": CANARY, "arguments": f"{{{CANARY}"}}
    yield CHAT, {"messages": [*says("hi"), {"role": "assistant", "content": CANARY, "tool_calls": [arguments]}]}
    yield CHAT, {"messages": says("hi"), "chat_template_kwargs": {"tokenize": CANARY, "chat_template": CANARY}}
    yield COMPLETIONS, {"prompt": [CANARY] * 100}
    yield COMPLETIONS, {"prompt": {CANARY: CANARY}}
    yield COMPLETIONS, {"prompt": f"{CANARY} " * 1500}
    yield COMPLETIONS, {"prompt": CANARY, "logprobs": 10**6}
    yield COMPLETIONS, {"prompt": CANARY, "suffix": CANARY}


def _malformed() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What never becomes a request."""
    json_type = {"content-type": "application/json"}
    yield "POST", CHAT, {"headers": json_type | {"authorization": f"Bearer {CANARY}"}, "content": CANARY}
    yield "POST", CHAT, {"headers": json_type | {"authorization": CANARY}, "content": CANARY}
    yield "POST", CHAT, {"headers": {"authorization": f"Bearer jbk_{CANARY}_{CANARY}", "content-type": CANARY}}
    yield "POST", CHAT, {"headers": json_type | {"x-request-id": f"{CANARY} {CANARY}"}, "content": f'{{"{CANARY}'}
    yield "POST", f"/v1/{CANARY}", {"headers": json_type, "content": CANARY}
    yield "GET", f"/v1/models/{CANARY}", {}
    yield "GET", f"/{CANARY}", {}
    yield "DELETE", f"{CHAT}?{CANARY}", {}
    yield "GET", f"/metrics/{CANARY}", {}
