"""One line of the audit: the contract's fields and no others, as JSON with a hash that anyone can check."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jubako.books.line import MAX_BYTES, encode, fields, link
from jubako.vocabulary import Outcome, Usage
from tests.accounts import account, lines, opened, written

pytestmark = pytest.mark.usefixtures("no_ticks")


def test_a_line_holds_the_contract_s_fields_and_no_others(tmp_path: Path) -> None:
    """In JSON that anything can read, chained to the line before."""
    written(tmp_path, 2)
    first, second = (json.loads(line) for line in lines(tmp_path))
    assert first == {
        "time": "2026-09-21T14:13:20.000Z",
        "journal": first["journal"],
        "sequence": 1,
        "previous": "0" * 64,
        "request_id": "request-0",
        "tenant": "alpha",
        "key_id": "key-1",
        "alias": "tiny",
        "adapter": False,
        "release": "d" * 64,
        "route": "chat_completions",
        "stream": True,
        "status": 200,
        "outcome": "completed",
        "code": "",
        "priority": 1,
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "generated_tokens": 0,
        "queue_seconds": 0.001,
        "first_token_seconds": 0.2,
        "total_seconds": 1.5,
        "hash": first["hash"],
    }
    assert second["previous"] == first["hash"]
    assert second["time"] == "2026-09-21T14:13:20.250Z"


def test_the_hash_is_that_of_the_line_without_it(tmp_path: Path) -> None:
    """So that an auditor can check it with any tool."""
    written(tmp_path, 1)
    (line,) = lines(tmp_path)
    told = json.loads(line)["hash"]
    without = line.rstrip(b"\n").replace(f',"hash":"{told}"'.encode(), b"")
    assert hashlib.sha256(without).hexdigest() == told


@given(text=st.text(st.characters(), max_size=300), seconds=st.floats(), tokens=st.integers(0, 1 << 62))
def test_whatever_an_id_holds_the_line_is_one_line_of_json(text: str, seconds: float, tokens: int) -> None:
    """Ids out of an identity provider's tokens are not ours to choose."""
    made = account(tenant=text, key_id=text, alias=text, code=text, total_seconds=seconds, usage=Usage(tokens))
    line, digest = encode(made, "2026-09-21T14:13:20.000Z", "0" * 16, 1, "0" * 64)
    assert link(line).hash == digest
    assert line.count(b"\n") == 1
    assert len(line) <= MAX_BYTES
    assert fields(line)["key_id"] == text[:256]
    assert fields(line)["prompt_tokens"] == tokens


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_is_written_by_its_name(tmp_path: Path, outcome: Outcome) -> None:
    """One word everywhere."""
    audit = opened(tmp_path)
    audit.append(account(outcome=outcome))
    audit.close()
    assert json.loads(lines(tmp_path)[0])["outcome"] == outcome.value
