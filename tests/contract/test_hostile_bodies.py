"""Whoever sends what nobody wants still hears why: no connection ends without its reply."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.contract.wire import CHAT, SECONDS, SERVER, Wire, serving
from tests.hostile import HOSTILE, MODEL
from tests.hostile_sender import STALL_SECONDS, faults_of
from tests.scripted_engine import ScriptedEngine, says

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A server whose engine answers everything."""
    engine = ScriptedEngine(says({"choices": ["x"]}))
    with serving(Wire(tmp_path_factory.mktemp("wire"), engine, SERVER.admission)) as one:
        yield one


def test_every_hostile_body_has_its_reply(wire: Wire) -> None:
    """All of them at a real socket, with the status that the corpus says."""
    name = wire.engine.names[0].encode()
    corpus = [dataclasses.replace(one, body=one.body.replace(MODEL.encode(), name)) for one in HOSTILE]
    headers = {"authorization": f"Bearer {wire.key('patient')}"}
    url = wire.url.removesuffix("/v1")
    with httpx.Client(base_url=url, headers=headers, timeout=STALL_SECONDS) as client:
        faults = faults_of(client, corpus)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("key", ["wrong", ""], ids=["stranger", "tenant"])
@pytest.mark.parametrize("sent", [0, 8 * MEGABYTE], ids=["nothing", "everything"])
def test_a_body_that_is_not_read_costs_no_reply(wire: Wire, key: str, sent: int) -> None:
    """Also a caller who sends all of it before it reads; one who sends none is not waited for."""
    head = f"POST {CHAT} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key or wire.key()}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {8 * MEGABYTE}\r\n\r\n"
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", wire.port), timeout=SECONDS) as connection:
            connection.sendall(head.encode() + b" " * sent)
            received = b""
            while part := connection.recv(65536):
                received += part
        first, _, body = received.partition(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 401" if key else b"HTTP/1.1 413")
        assert b"connection: close" in first.lower()
        assert json.loads(body)["error"]["code"] == ("invalid_api_key" if key else "request_too_large")
