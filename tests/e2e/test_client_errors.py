"""Each way to ask wrongly, as the official client raises it, or over plain HTTP where the client cannot ask so."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from tests.contract.corpus import BASE, CHAT, COMPLETIONS, TOO_LONG, says

if TYPE_CHECKING:
    from tests.project import Served

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

HELLO = says("hello")
PRIVILEGED_FIELDS = (
    "cache_salt",
    "data_parallel_rank",
    "ec_transfer_params",
    "kv_transfer_params",
    "media_io_kwargs",
    "mm_payload",
    "mm_processor_kwargs",
    "priority",
    "request_id",
    "return_mm_kwargs",
    "return_token_offsets",
    "routed_experts_prompt_start",
    "session_id",
    "stream_interval",
    "vllm_xargs",
    "watermarking",
)
LIMIT_BYTES = 4 * 1024 * 1024
INVALID = "invalid_request_error"


def told(error: openai.APIStatusError) -> tuple[Any, Any, Any]:
    """Type, code and param, and the request's id with them."""
    assert error.request_id
    assert error.response.headers["x-should-retry"] == "false"
    assert error.body
    return error.type, error.code, error.param


@pytest.mark.parametrize("key", ["wrong", "wrong-but-as-long-as-a-key-of-ours-would-be"])
def test_an_invalid_key_is_an_authentication_error(client: Any, key: str) -> None:
    """Whatever is asked for."""
    stranger = client.with_options(api_key=key)
    for ask in (stranger.models.list, lambda: stranger.chat.completions.create(model=BASE, messages=HELLO)):
        with pytest.raises(openai.AuthenticationError) as raised:
            ask()
        assert told(raised.value) == ("authentication_error", "invalid_api_key", None)
        assert raised.value.response.headers["www-authenticate"] == "Bearer"


def test_a_missing_key_is_an_authentication_error(client: Any) -> None:
    """With a code of its own."""
    with pytest.raises(openai.AuthenticationError) as raised:
        client.models.list(extra_headers={"Authorization": openai.Omit()})
    assert told(raised.value) == ("authentication_error", "missing_api_key", None)


def test_an_unknown_model_is_not_found(client: Any) -> None:
    """On every route, whole and streamed."""
    asks: list[Callable[[], Any]] = [
        lambda: client.models.retrieve("gpt-4"),
        lambda: client.chat.completions.create(model="gpt-4", messages=HELLO),
        lambda: client.chat.completions.create(model="gpt-4", messages=HELLO, stream=True),
        lambda: client.completions.create(model="../../etc/passwd", prompt="x"),
    ]
    for ask in asks:
        with pytest.raises(openai.NotFoundError) as raised:
            ask()
        assert told(raised.value) == (INVALID, "model_not_found", "model")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"n": 0}, None),
        ({"max_tokens": -1}, "max_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": "hello"}, "messages"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_value_is_a_bad_request(client: Any, fields: dict[str, Any], param: str | None) -> None:
    """That names the field in `param`, where the engine says which it is, and in any case in words."""
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**{"model": BASE, "messages": HELLO} | fields)
    kind, code, _ = told(raised.value)
    assert (kind, code) in {(INVALID, "invalid_value"), (INVALID, "unsupported_value")}  # the engine's, or the limits'
    assert (raised.value.param or "").partition("[")[0].partition(".")[0] == (param or "")
    assert param or next(iter(fields)) in raised.value.message


@pytest.mark.parametrize("name", PRIVILEGED_FIELDS)
def test_a_privileged_field_is_a_bad_request(client: Any, name: str) -> None:
    """A caller cannot set what is the server's."""
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=BASE, messages=HELLO, extra_body={name: "x"})
    assert told(raised.value) == (INVALID, "unknown_field", name)


@pytest.mark.parametrize("stream", [False, True])
def test_too_long_a_prompt_is_a_bad_request(client: Any, *, stream: bool) -> None:
    """With the code that clients shorten their history for."""
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=BASE, messages=says(TOO_LONG), stream=stream)
    assert told(raised.value)[:2] == (INVALID, "context_length_exceeded")
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=BASE, prompt=TOO_LONG, stream=stream)
    assert told(raised.value)[:2] == (INVALID, "context_length_exceeded")


@pytest.mark.parametrize(
    "fields",
    [{"prompt": [99999999]}, {"logit_bias": {"99999999": 1}}, {"temperature": -1}],
    ids=lambda fields: next(iter(fields)),
)
def test_what_the_engine_finds_wrong_in_a_stream_is_a_status(client: Any, fields: dict[str, Any]) -> None:
    """And not a 200 with an error in it, which clients take for a cut answer."""
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(**{"model": BASE, "prompt": "hello", "stream": True} | fields)
    assert told(raised.value)[:2] == (INVALID, "invalid_value")


def error_of(reply: httpx.Response) -> tuple[Any, Any]:
    """Type and code of a refusal, in the one shape."""
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    assert int(reply.headers["openai-processing-ms"]) >= 0
    assert reply.json().keys() == {"error"}
    assert reply.json()["error"].keys() == {"message", "type", "param", "code"}
    return reply.json()["error"]["type"], reply.json()["error"]["code"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"temperature": NaN}', b'{"a": "\\ud800"}', b"[" * 100_000])
def test_what_is_no_json_object_is_refused(http: httpx.Client, body: bytes) -> None:
    """However wrong, with one code."""
    reply = http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert error_of(reply) == (INVALID, "invalid_json")


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_that_does_not_say_it_is_json_is_refused(http: httpx.Client, media_type: str) -> None:
    """415, even if it is JSON."""
    reply = http.post(CHAT, content=b'{"model": "x"}', headers={"content-type": media_type} if media_type else {})
    assert reply.status_code == 415
    assert error_of(reply) == (INVALID, "unsupported_media_type")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/",
        "/v1/models/",
        "/nope",
        "/docs.json",
        "/v1/embeddings",
        "/tokenize",
        "/v1/chat",
        "//v1/models",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_path_is_ours_to_refuse(jubako_server: Served, path: str, method: str) -> None:
    """BentoML's pages are not shown, whoever asks."""
    reply = httpx.request(method, jubako_server.url + path, timeout=120)
    assert reply.status_code == 404
    assert error_of(reply) == (INVALID, "unknown_url")


@pytest.mark.parametrize(
    ("path", "allowed"), [("/v1/models", "GET"), (f"/v1/models/{BASE}", "GET"), (CHAT, "POST"), (COMPLETIONS, "POST")]
)
@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"])
def test_another_method_is_refused(http: httpx.Client, path: str, allowed: str, method: str) -> None:
    """With the method that there is."""
    reply = http.request(method, path)
    assert (reply.status_code, reply.headers["allow"]) == (405, allowed)
    if method == "HEAD":
        assert reply.content == b""
    else:
        assert error_of(reply) == (INVALID, "method_not_allowed")


class Raw:
    """A connection whose bytes are the test's."""

    def __init__(self, server: Served, *headers: str, path: str = CHAT, key: str | None = None) -> None:
        address = urlsplit(server.url)
        self.socket = socket.create_connection((address.hostname, address.port), timeout=120)
        lines = [f"POST {path} HTTP/1.1", "host: test", f"authorization: Bearer {key or server.key}"]
        lines += ["content-type: application/json", *headers]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())

    def reply(self) -> tuple[int, dict[str, Any], bool]:
        """Status and error object, and whether the server then closed the connection."""
        received = b""
        while True:
            try:
                part = self.socket.recv(65536)
            except ConnectionResetError:
                part = b""
            if not part:
                break
            received += part
        head, _, body = received.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)["error"], b"connection: close" in head.lower()


@pytest.fixture
def raw(jubako_server: Served) -> Iterator[Any]:
    """Opens connections, and closes them at the end."""
    opened: list[Raw] = []

    def connect(*headers: str, **options: str) -> Raw:
        opened.append(Raw(jubako_server, *headers, **options))
        return opened[-1]

    yield connect
    for one in opened:
        one.socket.close()


def test_a_body_that_declares_too_much_is_refused_unread(raw: Any) -> None:
    """413 before a byte of it is sent, and the connection ends."""
    status, error, closed = raw(f"content-length: {LIMIT_BYTES + 1}").reply()
    assert (status, error["type"], error["code"], closed) == (413, INVALID, "request_too_large", True)


def test_a_body_that_grows_too_large_is_refused_when_it_does(raw: Any) -> None:
    """413 though its end is never sent."""
    connection = raw("transfer-encoding: chunked")
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    for _ in range(LIMIT_BYTES // 65536 + 1):
        connection.socket.sendall(chunk)
    status, error, closed = connection.reply()
    assert (status, error["code"], closed) == (413, "request_too_large", True)


def test_the_client_is_told_of_too_large_a_body(client: Any) -> None:
    """Though the server does not read what the client still sends."""
    with pytest.raises(openai.APIStatusError) as raised:
        client.chat.completions.create(model=BASE, messages=says("x" * (3 * LIMIT_BYTES)))
    assert raised.value.status_code == 413
    assert told(raised.value) == (INVALID, "request_too_large", None)


def test_a_body_that_does_not_come_is_refused(raw: Any) -> None:
    """408, and the connection ends."""
    connection = raw("content-length: 100")
    connection.socket.sendall(b'{"model"')
    status, error, closed = connection.reply()
    assert (status, error["type"], error["code"], closed) == (408, INVALID, "body_timeout", True)


def test_a_stranger_s_body_is_not_waited_for(jubako_server: Served, raw: Any) -> None:
    """401 before the body, and the connection ends."""
    connection = raw("content-length: 1000", key="wrong")
    status, error, closed = connection.reply()
    assert (status, error["code"], closed) == (401, "invalid_api_key", True)
