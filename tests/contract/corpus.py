"""The requests of the parity contract, as data. A name says what its request promises; the lists are in the order sent.

It knows the OpenAI API and vLLM's additions to it, and nothing of how a request is sent or compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BASE = "smollm2-135m-instruct"
SECOND_NAME = "smollm2"
ADAPTER = "smollm2-tiny-lora"
CONTEXT_TOKENS = 8192
"""As long as the model takes: a stream that a test cuts must outlast whatever holds the test up meanwhile."""
ENDLESS_TOKENS = 8000
"""Of such a stream: minutes. A machine may stop one process for most of one while the engine goes on."""
LONGEST_SECONDS = 86_400
PATIENT = {"JUBAKO__DEADLINE__SECONDS": str(LONGEST_SECONDS)}
"""For a server of such streams: one that is expected to outlast its deadline is refused if it has to wait."""
UNHURRIED = {**PATIENT, "JUBAKO__ADMISSION__TIME_PER_OUTPUT_TOKEN_SECONDS": "5"}
"""For several at once: on a busy machine few would run for the sake of their pace."""

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Request:
    """One request: `body` is sent as JSON, `raw` as it is; `notes` tell what is not plain from the name."""

    name: str
    path: str
    body: Mapping[str, Any] | None = None
    method: str = "POST"
    raw: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    authorized: bool = True
    notes: str = ""

    def content(self) -> bytes | None:
        """The bytes to send, if any."""
        if self.raw is not None:
            return self.raw
        return None if self.body is None else json.dumps(self.body).encode()


def says(text: str) -> list[dict[str, Any]]:
    """A conversation of one user message."""
    return [{"role": "user", "content": text}]


def chat(name: str, notes: str = "", /, **fields: Any) -> Request:
    """A chat request: greedy and short unless the fields say otherwise; a field that is None is left out."""
    standard = {"model": BASE, "messages": says("What is the capital of France?"), "max_tokens": 12, "temperature": 0}
    return Request(name, CHAT, _present(standard | fields), notes=notes)


def complete(name: str, notes: str = "", /, **fields: Any) -> Request:
    """A completion request: greedy and short unless the fields say otherwise; a field that is None is left out."""
    standard = {"model": BASE, "prompt": "Roses are red, violets are", "max_tokens": 12, "temperature": 0}
    return Request(name, COMPLETIONS, _present(standard | fields), notes=notes)


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def schema_format(schema: Any) -> dict[str, Any]:
    """The response format for a JSON schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NAMED_TOOL = {"type": "function", "function": {"name": "weather"}}
TOOLS: dict[str, Any] = {"messages": says("What is the weather in Paris?"), "tools": [WEATHER], "max_tokens": 64}
USAGE = {"include_usage": True}
EACH_USAGE = {"include_usage": True, "continuous_usage_stats": True}
TOO_LONG = "word " * (CONTEXT_TOKENS + 100)

CHATS = (
    chat("chat answers"),
    chat("chat streams", stream=True),
    chat("chat streams with usage at the end", stream=True, stream_options=USAGE),
    chat("chat streams with usage in each event", stream=True, stream_options=EACH_USAGE),
    chat("chat takes max_completion_tokens", max_tokens=None, max_completion_tokens=5),
    chat("chat streams to max_completion_tokens", max_tokens=None, max_completion_tokens=5, stream=True),
    chat("chat takes the second name of the model", model=SECOND_NAME),
    chat("chat takes no model at all", "vLLM then answers with its first model", model=None),
    chat(
        "chat takes a system message and turns",
        messages=[
            {"role": "system", "content": "You are terse."},
            {"role": "user", "content": "Say one."},
            {"role": "assistant", "content": "One."},
            {"role": "user", "content": [{"type": "text", "text": "Say two."}]},
        ],
    ),
    chat(
        "chat continues the last message",
        messages=[*says("Count."), {"role": "assistant", "content": "One, two,"}],
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    chat("chat answers with the adapter", model=ADAPTER),
    chat("chat streams with the adapter", model=ADAPTER, stream=True),
    chat("chat gives n answers", n=2, temperature=0.8, seed=7, max_tokens=6),
    chat("chat streams n answers", n=2, temperature=0.8, seed=7, max_tokens=6, stream=True, stream_options=USAGE),
    chat("chat repeats itself under a seed", temperature=0.9, seed=11, top_p=0.9, top_k=40),
    chat("chat gives logprobs", logprobs=True, top_logprobs=3, max_tokens=5),
    chat("chat streams logprobs", logprobs=True, top_logprobs=2, max_tokens=5, stream=True),
    chat("chat gives prompt logprobs", prompt_logprobs=1, max_tokens=2),
    chat("chat gives token ids", return_token_ids=True, max_tokens=4),
    chat("chat streams token ids", return_token_ids=True, max_tokens=4, stream=True),
    chat("chat stops at a string", stop=[" France"], max_tokens=16),
    chat("chat streams up to a stop string and shows it", stop=" France", include_stop_str_in_output=True, stream=True),
    chat("chat reaches the end of its answer", messages=says("Say only: yes."), max_tokens=16),
    chat("chat ignores the end of its answer", ignore_eos=True, max_tokens=16),
    chat("chat takes penalties", repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.5),
    chat("chat takes a logit bias", logit_bias={"28": 100}, max_tokens=3),
    chat("chat takes bad words and allowed tokens", bad_words=["Paris"], min_p=0.1, max_tokens=8),
    chat("chat keeps to a JSON schema", response_format=schema_format(PERSON), max_tokens=32),
    chat("chat streams to a JSON schema", response_format=schema_format(PERSON), max_tokens=32, stream=True),
    chat("chat keeps to a JSON object", response_format={"type": "json_object"}, max_tokens=16),
    chat("chat takes the text format", response_format={"type": "text"}, max_tokens=4),
    chat("chat keeps to a regular expression", structured_outputs={"regex": "[A-Z][a-z]{3,5}[.]"}),
    chat("chat keeps to a choice", structured_outputs={"choice": ["Paris", "Rome"]}),
    chat("chat streams to a choice", structured_outputs={"choice": ["Paris", "Rome"]}, stream=True),
    chat("chat may call a tool", tool_choice="auto", **(TOOLS | {"max_tokens": 16})),
    chat("chat streams and may call a tool", tool_choice="auto", stream=True, **(TOOLS | {"max_tokens": 16})),
    chat("chat must call a tool", tool_choice="required", **TOOLS),
    chat("chat streams a tool it must call", tool_choice="required", stream=True, **TOOLS),
    chat("chat calls the named tool", tool_choice=NAMED_TOOL, **TOOLS),
    chat("chat streams the named tool", tool_choice=NAMED_TOOL, stream=True, stream_options=USAGE, **TOOLS),
    chat("chat takes tools it must not call", tool_choice="none", **(TOOLS | {"max_tokens": 6})),
    chat(
        "chat takes a tool's answer",
        messages=[
            *says("What is the weather in Paris?"),
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
        ],
    ),
)

COMPLETION_REQUESTS = (
    complete("completion answers"),
    complete("completion streams", stream=True),
    complete("completion streams with usage at the end", stream=True, stream_options=USAGE),
    complete("completion streams with usage in each event", stream=True, stream_options=EACH_USAGE),
    complete("completion takes its default of 16 tokens", max_tokens=None),
    complete("completion answers several prompts", prompt=["One, two,", "Red, green,"], max_tokens=6),
    complete("completion streams several prompts", prompt=["One, two,", "Red, green,"], max_tokens=6, stream=True),
    complete("completion takes token ids", prompt=[504, 3575, 282, 4649, 314], max_tokens=6),
    complete("completion takes several prompts of token ids", prompt=[[504, 3575], [282, 4649, 314]], max_tokens=6),
    complete("completion echoes its prompt", echo=True, max_tokens=4),
    complete("completion echoes its prompt with logprobs", echo=True, logprobs=2, max_tokens=3),
    complete("completion streams the echo", echo=True, max_tokens=3, stream=True),
    complete("completion scores its prompt alone", echo=True, logprobs=1, max_tokens=0),
    complete("completion gives logprobs", logprobs=3, max_tokens=4),
    complete("completion streams logprobs", logprobs=1, max_tokens=4, stream=True),
    complete("completion gives prompt logprobs", prompt_logprobs=2, max_tokens=2),
    complete("completion gives n answers", n=2, temperature=0.8, seed=3, max_tokens=6),
    complete("completion stops at a token id", stop_token_ids=[28], max_tokens=16),
    complete("completion writes its least tokens", min_tokens=10, stop=["."], max_tokens=16),
    complete("completion answers with the adapter", model=ADAPTER),
    complete("completion keeps to a choice", structured_outputs={"choice": [" blue", " red"]}),
)

BODY = {"model": BASE, "messages": says("What is the capital of France?"), "max_tokens": 4, "temperature": 0}
NULLS = dict.fromkeys(("n", "stop", "stream", "tools", "logprobs", "seed", "logit_bias", "user"))

EDGES = (
    chat("chat ends at once", "token 2 ends an answer", logit_bias={"2": 100}),
    chat("chat streams an answer that ends at once", logit_bias={"2": 100}, stream=True),
    chat("chat streams one token", max_tokens=1, stream=True, stream_options=USAGE),
    chat(
        "chat streams without the usage it declines", stream=True, stream_options={"include_usage": False}, max_tokens=3
    ),
    chat("chat streams more than ASCII", structured_outputs={"choice": ["日本語 🍱 é€"]}, max_tokens=32, stream=True),
    chat(
        "chat streams more than ASCII with logprobs",
        "a character of several tokens has no text until its last",
        structured_outputs={"choice": ["🍱é"]},
        logprobs=True,
        stream=True,
        stream_options=EACH_USAGE,
    ),
    chat("chat streams what JSON escapes", structured_outputs={"regex": r'"\\\n\t<&>\x7f'}, max_tokens=16, stream=True),
    chat(
        "chat streams the adapter's logprobs", model=ADAPTER, logprobs=True, top_logprobs=1, max_tokens=3, stream=True
    ),
    chat("chat streams to the number of least tokens", min_tokens=6, stop=["."], max_tokens=8, stream=True),
    chat("chat streams if stream is one", 'vLLM takes 1 and "true" for true', stream=1, max_tokens=3),
    chat("chat answers if stream is the word false", stream="false", max_tokens=3),
    chat("chat takes an empty model name", model="", max_tokens=3),
    chat(
        "chat takes a developer's message",
        max_tokens=4,
        messages=[{"role": "developer", "content": "Be terse."}, *says("Say one.")],
    ),
    Request("chat takes nulls for what is optional", CHAT, BODY | NULLS),
    Request(
        "chat takes JSON with a character set", CHAT, BODY, headers={"content-type": "application/json; charset=utf-8"}
    ),
    Request("chat takes a query it has no use for", f"{CHAT}?a=b", BODY),
    complete("completion ends at once", logit_bias={"2": 100}, echo=True),
    complete("completion streams an answer that ends at once", logit_bias={"2": 100}, stream=True),
    complete("completion streams the echo with logprobs", echo=True, logprobs=1, max_tokens=2, stream=True),
    complete("completion streams the score of its prompt alone", echo=True, logprobs=1, max_tokens=0, stream=True),
    complete("completion streams n answers", n=2, temperature=0.8, seed=3, max_tokens=5, stream=True),
    complete("completion streams more than ASCII", structured_outputs={"choice": ["日本 🍱"]}, stream=True),
)

OTHER_ROUTES = (
    Request("models are listed", "/v1/models", method="GET"),
    Request("one model is shown", f"/v1/models/{BASE}", method="GET"),
    Request("a model that does not exist is not shown", "/v1/models/gpt-4", method="GET"),
    Request("a path that does not exist is refused", "/v1/nothing", method="GET"),
    Request("a method that does not exist is refused", CHAT, method="GET"),
    Request("a request without a key is asked for one", COMPLETIONS, complete("", max_tokens=1).body, authorized=False),
)
