"""One line of the audit: how an account becomes bytes, and how bytes show that they were not altered.

A line is one JSON object in ASCII. Its last field is `hash`: the sha256 of the line's own bytes without that field. As
`previous`, the hash of the line before, is among those bytes, the lines are a chain. Knows nothing of files.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from typing import Any

from jubako.vocabulary import Account

GENESIS = "0" * 64
"""What the first line of a journal has as `previous`."""
MAX_TEXT = 256
"""Characters of one field; names and ids are shorter, and a claim of a token must not make a line without bound."""
MAX_BYTES = 32 * 1024
"""Above what nine texts of `MAX_TEXT` characters can take when each is escaped."""

_LONGEST_SECONDS = 1e9
_SEAL = b',"hash":"'
_END = b'"}\n'
_SEALED = len(_SEAL) + 64 + len(_END)
_HEAD = re.compile(
    rb'\{"time":"[0-9TZ:.-]{20,32}","journal":"([0-9a-f]{16})","sequence":([1-9][0-9]{0,17}),"previous":"([0-9a-f]{64})",'
)


class BadLine(Exception):
    """The bytes are no line of an audit, or not the ones that were written. Says which."""


@dataclass(frozen=True, slots=True)
class Link:
    """What ties one line to its neighbours."""

    journal: str
    sequence: int
    previous: str
    hash: str


class Clockface:
    """Unix seconds as RFC 3339 in UTC with milliseconds. Keeps the last second's text: most lines share it."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def text(self, unix_seconds: float) -> str:
        """The time of one line."""
        second, millisecond = divmod(int(unix_seconds * 1000), 1000)
        if second != self._second:
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second
        return f"{self._text}.{millisecond:03d}Z"


def encode(account: Account, at: str, journal: str, sequence: int, previous: str) -> tuple[bytes, str]:
    """The whole line, and its hash. Written out by hand: json.dumps takes three times as long."""
    usage = account.usage
    body = (
        f'{{"time":"{at}","journal":"{journal}","sequence":{sequence},"previous":"{previous}",'
        f'"request_id":{_text(account.request_id)},"tenant":{_text(account.tenant)},'
        f'"key_id":{_text(account.key_id)},"alias":{_text(account.alias)},'
        f'"adapter":{"true" if account.adapter else "false"},"release":{_text(account.release)},'
        f'"route":{_text(account.route)},"stream":{"true" if account.stream else "false"},'
        f'"status":{account.status:d},"outcome":{_text(account.outcome.value)},"code":{_text(account.code)},'
        f'"priority":{account.priority:d},"prompt_tokens":{usage.prompt_tokens:d},'
        f'"cached_tokens":{usage.cached_tokens:d},"generated_tokens":{usage.generated_tokens:d},'
        f'"queue_seconds":{_seconds(account.queue_seconds)},'
        f'"first_token_seconds":{_seconds(account.first_token_seconds)},'
        f'"total_seconds":{_seconds(account.total_seconds)}'
    ).encode("ascii")
    digest = hashlib.sha256(body + b"}").hexdigest()
    return body + _SEAL + digest.encode("ascii") + _END, digest


def _text(value: str) -> str:
    return encode_basestring_ascii(value[:MAX_TEXT])


def _seconds(value: float) -> str:
    """JSON has no NaN and no infinity; such a number is a fault elsewhere and must not spoil the line."""
    return f"{value:.6f}" if -_LONGEST_SECONDS < value < _LONGEST_SECONDS else "0.000000"


def link(line: bytes) -> Link:
    """Check the bytes of one whole line, newline included; raises `BadLine`."""
    if line[-_SEALED : -_SEALED + len(_SEAL)] != _SEAL or not line.endswith(_END):
        raise BadLine("is not a whole line of an audit")
    digest = hashlib.sha256(line[:-_SEALED] + b"}").hexdigest()
    if line[-64 - len(_END) : -len(_END)] != digest.encode("ascii"):
        raise BadLine("was altered: its hash is not that of its content")
    head = _HEAD.match(line)
    if head is None:
        raise BadLine("is not a line of an audit: it does not begin as one")
    return Link(head[1].decode(), int(head[2]), head[3].decode(), digest)


def fields(line: bytes) -> dict[str, Any]:
    """What a line says, its chain included; for lines that `link` found to be right."""
    parsed: dict[str, Any] = json.loads(line)
    return parsed
