"""The log-probabilities of a streamed chat, written as vLLM writes them, without an object for each.

vLLM makes a validated model of every alternative of every token, and then text of that. Here each token's part that is
always the same is written once and kept; a figure is all that differs. Knows vLLM's record of what was sampled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import to_json

LEAST = -9999.0
"""What vLLM tells of a token that could not have come."""
PARTS_KEPT = 200_000
"""More than a vocabulary has; what depends on the tokens before it comes on top."""

_parts: dict[str, tuple[str, str]] = {}
"""By a token's text: what stands before its log-probability and what follows."""


class Probabilities:
    """What one reply tells of each token: its own log-probability, and those of the first `top` alternatives."""

    __slots__ = ("_top",)

    def __init__(self, top: int) -> None:
        self._top = top

    @classmethod
    def of(cls, request: Any, chat: Any) -> Probabilities | None:
        """For vLLM's request and serving object; None if none are told, or not as texts of the likeliest tokens."""
        as_ids = request.return_tokens_as_token_ids
        if as_ids is None:
            as_ids = chat.return_tokens_as_token_ids
        if not request.logprobs or as_ids or request.logprob_token_ids:
            return None
        return cls(request.top_logprobs or 0)

    def text(self, logprobs: Any, token_ids: Sequence[int]) -> str | None:
        """JSON of the newest tokens' entries, without the list's brackets; None if it is vLLM's to write."""
        if not isinstance(logprobs, list) or len(logprobs) < len(token_ids):
            return None
        try:
            return ",".join(self._entries(logprobs, token_ids))
        except _Other:
            return None

    def _entries(self, logprobs: Any, token_ids: Sequence[int]) -> Iterator[str]:
        for token_id, position in zip(token_ids, logprobs[len(logprobs) - len(token_ids) :], strict=True):
            sampled = position.get(token_id) if position else None
            if sampled is None:
                raise _Other
            # The first are the likeliest, but for the one that was sampled, which stands before them.
            others = [_entry(one) + "}" for one in itertools.islice(position.values(), self._top)]
            yield f'{_entry(sampled)},"top_logprobs":[{",".join(others)}]}}'


class _Other(Exception):
    """What is told of a token is not a text and a figure."""


class Counted(list[int]):
    """The last tokens of a choice: vLLM's generator tells only of these, and counts those told of here as well."""

    __slots__ = ("_before",)

    def __init__(self, tokens: Sequence[int], before: int) -> None:
        super().__init__(tokens)
        self._before = before

    def __len__(self) -> int:
        return super().__len__() + self._before


def _entry(told: Any) -> str:
    """An entry but for its end."""
    token = told.decoded_token
    parts = _parts.get(token)
    if parts is None:
        try:
            numbers = ",".join(map(str, token.encode("utf-8")))
        except (AttributeError, UnicodeError):  # none, or half a character
            raise _Other from None
        if len(_parts) >= PARTS_KEPT:
            _parts.clear()
        parts = _parts[token] = f'{{"token":{to_json(token).decode()},"logprob":', f',"bytes":[{numbers}]'
    logprob = max(told.logprob, LEAST)
    if not math.isfinite(logprob):
        raise _Other
    figure = repr(logprob)
    if "e" in figure:  # exponents are written another way there
        figure = to_json(logprob).decode()
    return f"{parts[0]}{figure}{parts[1]}"
