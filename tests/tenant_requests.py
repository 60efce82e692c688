"""What tests ask as a tenant: one completion with a key, the names that it sees, and the error that it gets."""

from __future__ import annotations

from typing import Any

import httpx
import openai

from tests.contract.corpus import BASE
from tests.project import Served

PROMPT = {"model": BASE, "prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}


def ask(server: Served, key: str, **fields: Any) -> httpx.Response:
    """One completion."""
    headers = {"authorization": f"Bearer {key}", **fields.pop("headers", {})}
    return httpx.post(
        f"{server.url}/v1/completions", headers=headers, json=PROMPT | {"max_tokens": 4} | fields, timeout=300
    )


def error_of(reply: httpx.Response) -> tuple[int, str]:
    """Status and code."""
    return reply.status_code, reply.json()["error"]["code"]


def names(server: Served, key: str) -> list[str]:
    """What `/v1/models` lists."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key) as client:
        return [model.id for model in client.models.list()]


def error_of_or_none(reply: httpx.Response) -> tuple[int, str] | None:
    """Status and code, if it is an error."""
    return None if reply.status_code == httpx.codes.OK else error_of(reply)
