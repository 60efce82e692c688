"""What the official client gets for a right request: models, chat and completion, whole and streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.corpus import ADAPTER, BASE, SECOND_NAME, says

if TYPE_CHECKING:
    import httpx

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

FRANCE = says("What is the capital of France?")
ROSES = "Roses are red, violets are"
GREEDY: dict[str, Any] = {"model": BASE, "temperature": 0, "max_tokens": 16}
USAGE: Any = {"include_usage": True}


def test_the_models_are_the_aliases_and_the_adapter(client: Any) -> None:
    """All names that may be asked for, and no others."""
    assert [model.id for model in client.models.list()] == [BASE, SECOND_NAME, ADAPTER]


def test_no_model_tells_where_it_lies(client: Any) -> None:
    """No field of any model holds a path of the server's disk."""
    for model in client.models.list():
        assert not [value for value in model.model_dump().values() if "/" in str(value)], model


@pytest.mark.parametrize("name", [BASE, SECOND_NAME, ADAPTER])
def test_each_model_can_be_retrieved(client: Any, name: str) -> None:
    """As it is in the list."""
    listed = {model.id: model.model_dump(exclude={"created", "permission"}) for model in client.models.list()}
    assert client.models.retrieve(name).model_dump(exclude={"created", "permission"}) == listed[name]


def test_chat_answers(client: Any, fingerprint: str) -> None:
    """With the right answer, its usage, and the release that gave it."""
    reply = client.chat.completions.create(messages=FRANCE, **GREEDY)
    assert reply.choices[0].message.content == "The capital of France is Paris."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert (reply.model, reply.system_fingerprint) == (BASE, fingerprint)


def test_completion_answers(client: Any, fingerprint: str) -> None:
    """With text, up to the tokens asked for."""
    reply = client.completions.create(prompt=ROSES, **GREEDY)
    assert reply.choices[0].text
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 16
    assert (reply.model, reply.system_fingerprint) == (BASE, fingerprint)


def counts(usage: Any) -> tuple[int, int, int]:
    """What was used; what of it was cached may differ the second time."""
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def test_a_chat_stream_says_what_the_whole_reply_says(client: Any, fingerprint: str) -> None:
    """The same text, one role, one finish, the usage last, and the release with it."""
    whole = client.chat.completions.create(messages=FRANCE, **GREEDY)
    chunks = list(client.chat.completions.create(messages=FRANCE, stream=True, stream_options=USAGE, **GREEDY))
    deltas = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(one.delta.content or "" for one in deltas) == whole.choices[0].message.content
    assert [one.finish_reason for one in deltas if one.finish_reason] == ["stop"]
    assert [one.delta.role for one in deltas if one.delta.role] == ["assistant"]
    assert [chunk.usage for chunk in chunks if chunk.usage] == [chunks[-1].usage]
    assert counts(chunks[-1].usage) == counts(whole.usage)
    assert chunks[-1].system_fingerprint == fingerprint
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_completion_stream_says_what_the_whole_reply_says(client: Any, fingerprint: str) -> None:
    """The same text, one finish, the usage last, and the release with it."""
    whole = client.completions.create(prompt=ROSES, **GREEDY)
    chunks = list(client.completions.create(prompt=ROSES, stream=True, stream_options=USAGE, **GREEDY))
    parts = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(one.text for one in parts) == whole.choices[0].text
    assert [one.finish_reason for one in parts if one.finish_reason] == ["length"]
    assert counts(chunks[-1].usage) == counts(whole.usage)
    assert chunks[-1].system_fingerprint == fingerprint


def test_no_usage_is_streamed_unasked(client: Any, fingerprint: str) -> None:
    """Clients of old expect a choice in every chunk; the release is told all the same."""
    chunks = list(client.chat.completions.create(messages=FRANCE, stream=True, **GREEDY))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert chunks[-1].system_fingerprint == fingerprint


async def test_the_async_client_gets_the_same(client: Any, async_client: Any) -> None:
    """Chat and completion, whole and streamed."""
    chat = client.chat.completions.create(messages=FRANCE, **GREEDY).choices[0].message.content
    text = client.completions.create(prompt=ROSES, **GREEDY).choices[0].text
    assert [model.id async for model in async_client.models.list()] == [BASE, SECOND_NAME, ADAPTER]
    assert (await async_client.chat.completions.create(messages=FRANCE, **GREEDY)).choices[0].message.content == chat
    assert (await async_client.completions.create(prompt=ROSES, **GREEDY)).choices[0].text == text
    chat_stream = await async_client.chat.completions.create(messages=FRANCE, stream=True, **GREEDY)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in chat_stream]) == chat
    text_stream = await async_client.completions.create(prompt=ROSES, stream=True, **GREEDY)
    assert "".join([chunk.choices[0].text async for chunk in text_stream]) == text


def test_the_stream_helper_of_the_client_works(client: Any) -> None:
    """It accumulates a final message out of events, and is strict about their shape."""
    with client.chat.completions.stream(messages=FRANCE, **GREEDY) as stream:
        stream.until_done()
        assert stream.get_final_completion().choices[0].message.content == "The capital of France is Paris."


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_every_reply_has_its_headers(http: httpx.Client, path: str, *, stream: bool) -> None:
    """The caller's id comes back and the time is told; an id of another shape is replaced."""
    body = {**GREEDY, "max_tokens": 1, "stream": stream} | (
        {"messages": FRANCE} if "chat" in path else {"prompt": ROSES}
    )
    kept = http.post(path, json=body, headers={"x-request-id": "trace-1.a_b"})
    assert kept.headers["x-request-id"] == "trace-1.a_b"
    assert int(kept.headers["openai-processing-ms"]) >= 0
    assert kept.headers["content-type"] == ("text/event-stream; charset=utf-8" if stream else "application/json")
    replaced = http.post(path, json=body, headers={"x-request-id": "not an id"})
    assert len(replaced.headers["x-request-id"]) == 32
    assert kept.text.rstrip().endswith("data: [DONE]") is stream


def test_the_client_shows_the_request_id(client: Any) -> None:
    """`_request_id` is what support is asked with."""
    reply = client.chat.completions.create(messages=FRANCE, extra_headers={"X-Request-Id": "mine"}, **GREEDY)
    assert reply._request_id == "mine"


def test_the_adapter_answers_otherwise(client: Any, fingerprint: str) -> None:
    """Its alias chooses it, whole and streamed, and the release is the same."""
    plain = client.chat.completions.create(messages=FRANCE, **GREEDY)
    adapted = client.chat.completions.create(messages=FRANCE, **GREEDY | {"model": ADAPTER})
    assert adapted.choices[0].message.content != plain.choices[0].message.content
    assert (adapted.model, adapted.system_fingerprint) == (ADAPTER, fingerprint)
    stream = client.chat.completions.create(messages=FRANCE, stream=True, **GREEDY | {"model": ADAPTER})
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == adapted.choices[0].message.content
