"""The requests of the parity contract that a client got wrong, as data, and the whole corpus.

A fault in a stream is named as such: the engine finds some of them only after a server may have sent its status.
"""

from __future__ import annotations

import json

from tests.contract.corpus import (
    BODY,
    CHAT,
    CHATS,
    COMPLETION_REQUESTS,
    CONTEXT_TOKENS,
    EDGES,
    NAMED_TOOL,
    OTHER_ROUTES,
    TOO_LONG,
    TOOLS,
    WEATHER,
    Request,
    chat,
    complete,
    says,
    schema_format,
)

_JSON = {"content-type": "application/json"}

FAULTS = (
    Request("a body that is not JSON is refused", CHAT, raw=b'{"model": "smollm2-135m-instruct",', headers=_JSON),
    Request("an empty body is refused", CHAT, raw=b"", headers=_JSON),
    Request("a body that is not an object is refused", CHAT, raw=b"[1, 2]", headers=_JSON),
    Request("a body that is not UTF-8 is refused", CHAT, raw=b'{"model": "\xff"}', headers=_JSON),
    Request("a body that is nested too deep is refused", CHAT, raw=b"[" * 100_000, headers=_JSON),
    Request(
        "a number that JSON does not have is refused",
        CHAT,
        headers=_JSON,
        raw=json.dumps(BODY | {"top_p": float("nan")}).encode(),
    ),
    Request(
        "a number beyond all bounds is refused",
        CHAT,
        headers=_JSON,
        raw=json.dumps(BODY).replace(": 4", ": 1e999").encode(),
    ),
    Request("half a character is refused", CHAT, BODY | {"messages": says("\ud83c")}),
    Request(
        "a body that does not say it is JSON is refused", CHAT, raw=b"hello", headers={"content-type": "text/plain"}
    ),
    Request("JSON of another kind is refused", CHAT, BODY, headers={"content-type": "application/vnd.api+json"}),
    Request("JSON that says it is text is refused", CHAT, BODY, headers={"content-type": "text/plain"}),
    chat("chat without messages is refused", messages=None),
    chat("chat with an empty list of messages is refused", messages=[]),
    chat("chat with text for messages is refused", messages="hello"),
    chat("chat with a message without a role is refused", messages=[{"content": "hello"}]),
    chat("chat takes a role nobody knows", messages=[{"role": "wizard", "content": "hello"}], max_tokens=4),
    chat("chat with a number for content is refused", messages=[{"role": "user", "content": 3}]),
    chat(
        "chat with an unknown kind of content is refused",
        messages=[{"role": "user", "content": [{"type": "smell", "smell": "rose"}]}],
    ),
    chat(
        "chat with an image for a model of text is refused",
        messages=[
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}],
            }
        ],
    ),
    chat("chat with an unknown model is refused", model="gpt-4"),
    chat("a stream of an unknown model is refused", model="gpt-4", stream=True),
    chat("chat with a number for model is refused", model=5),
    chat("chat with a negative temperature is refused", temperature=-1),
    chat("a stream with a negative temperature is refused", temperature=-1, stream=True),
    chat("chat with text for temperature is refused", temperature="hot"),
    chat("chat with top_p above one is refused", top_p=1.5),
    chat("chat with n of zero is refused", n=0),
    chat("chat with greedy n of two is refused", n=2),
    chat("chat with max_tokens of zero is refused", max_tokens=0),
    chat("chat with negative max_tokens is refused", max_tokens=-1),
    chat("chat with text for max_tokens is refused", max_tokens="many"),
    chat("chat with more max_tokens than context is refused", max_tokens=CONTEXT_TOKENS + 1),
    chat("chat with too long a prompt is refused", messages=says(TOO_LONG)),
    chat("a stream of too long a prompt is refused", messages=says(TOO_LONG), stream=True),
    chat("chat with a tool choice but no tools is refused", tool_choice="auto"),
    chat("chat that must call one of no tools is refused", tool_choice="required"),
    chat("chat with an unknown tool choice is refused", **(TOOLS | {"tool_choice": "perhaps"})),
    chat(
        "chat with a named tool that is not there is refused",
        **(TOOLS | {"tool_choice": {"type": "function", "function": {"name": "news"}}}),
    ),
    chat("chat with a named tool but no tools is refused", tool_choice=NAMED_TOOL),
    chat("chat with an empty list of tools is refused", tools=[], max_tokens=4),
    chat("chat with a tool without a name is refused", tools=[{"type": "function", "function": {}}]),
    chat(
        "chat takes a tool of a bad schema",
        tool_choice="required",
        tools=[WEATHER | {"function": {"name": "weather", "parameters": {"type": "nonsense"}}}],
    ),
    chat("chat with a schema that is not one is refused", response_format=schema_format({"type": "nonsense"})),
    chat(
        "a stream to a schema that is not one is refused",
        response_format=schema_format({"type": "nonsense"}),
        stream=True,
    ),
    chat("chat with text for a schema is refused", response_format=schema_format("nonsense")),
    chat("chat with a schema left out is refused", response_format={"type": "json_schema"}),
    chat("chat with an unknown format is refused", response_format={"type": "yaml"}),
    chat("chat with a broken regular expression is refused", structured_outputs={"regex": "[a"}),
    chat("a stream to a broken regular expression is refused", structured_outputs={"regex": "[a"}, stream=True),
    chat("chat with an empty choice is refused", structured_outputs={"choice": []}),
    chat("chat with two constraints is refused", structured_outputs={"choice": ["a"], "regex": "a"}),
    chat("chat with stream options but no stream is refused", stream_options={"include_usage": True}),
    chat("chat with too many top_logprobs is refused", logprobs=True, top_logprobs=21),
    chat("a stream of too many top_logprobs is refused", logprobs=True, top_logprobs=21, stream=True),
    chat("chat with top_logprobs but no logprobs is refused", top_logprobs=2),
    chat("a stream of prompt logprobs is refused", prompt_logprobs=1, stream=True),
    chat("chat with an empty stop string is refused", stop=[""]),
    chat("chat with a bias for an unknown token is refused", logit_bias={"99999999": 1}),
    chat("a stream with a bias for an unknown token is refused", logit_bias={"99999999": 1}, stream=True),
    chat("chat with a bias for a word is refused", logit_bias={"word": 1}),
    chat("chat with least tokens above most is refused", min_tokens=20),
    chat("chat with a repetition penalty of zero is refused", repetition_penalty=0),
    chat("chat with a presence penalty of three is refused", presence_penalty=3),
    chat("chat ignores a field nobody knows", colour="red"),
    chat("chat with a privileged field is refused", priority=3),
    chat("chat with its own template is refused", chat_template="{{ messages }}"),
    chat("chat with its own cache salt is refused", cache_salt="mine"),
    chat("chat with a seed beyond all bounds is refused", seed=2**70),
    chat("chat with logprobs that is a number is refused", logprobs=5),
    chat("a stream with text for n is refused", n="two", stream=True),
    complete("completion with max_tokens of zero is refused", max_tokens=0),
    complete("a stream with negative max_tokens is refused", max_tokens=-1, stream=True),
    complete("completion with an empty prompt is refused", prompt=""),
    complete("completion with an empty list of prompts is refused", prompt=[]),
    complete("completion without a prompt is refused", prompt=None),
    complete("completion with an unknown token id is refused", prompt=[99999999]),
    complete("a stream of an unknown token id is refused", prompt=[99999999], stream=True),
    complete("completion with a number for a prompt is refused", prompt=5),
    complete("completion with too long a prompt is refused", prompt=TOO_LONG),
    complete("a stream of too long a completion is refused", prompt=TOO_LONG, stream=True),
    complete("completion with an unknown model is refused", model="gpt-3"),
    complete("completion with too many logprobs is refused", logprobs=21),
    complete("a completion stream of too many logprobs is refused", logprobs=21, stream=True),
    complete("completion with a suffix is refused", suffix="."),
    complete("completion with n of zero is refused", n=0),
    complete("completion with stream options but no stream is refused", stream_options={"include_usage": True}),
)

REQUESTS = (*CHATS, *COMPLETION_REQUESTS, *EDGES, *OTHER_ROUTES, *FAULTS)
