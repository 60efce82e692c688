"""The short way of a streamed token: from vLLM's output processor to the bytes of an event, in one call.

vLLM's own generators write a stream's first events and its last ones, and with them everything that is not the same in
each: role, finish reason, usage, errors. In between, events differ in their text alone: one that vLLM wrote is cut at
its text (`Pattern`), and the events of the tokens after it are that one with another text. So nothing of vLLM's format
is stated here a second time, and a stream whose events differ in more than their text never has a pattern.

Knows the output processor's record of a request; nothing of serving objects or of who asks.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass
from json.decoder import scanstring
from typing import TYPE_CHECKING, Any

from jubako.vocabulary import Route, Usage

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.output_processor import RequestState

_quoted = json.encoder.encode_basestring
"""JSON text as vLLM has it: what is not ASCII stands as it is."""
_BEFORE_TEXT = {
    Route.CHAT: '"choices":[{"index":0,"delta":{"content":',
    Route.COMPLETIONS: '"choices":[{"index":0,"text":',
}
_UNFINISHED = '"finish_reason":null'
_COUNTED = '"usage":{'


@dataclass(frozen=True, slots=True)
class Pattern:
    """An event without its text."""

    before: str
    after: str

    @classmethod
    def of(cls, event: str, route: Route) -> Pattern | None:
        """The pattern of an event that vLLM wrote; None if it is not one of a single choice's text in mid-stream."""
        marker = _BEFORE_TEXT[route]
        # Quotes inside of values are escaped, so that the first place is the right one whatever a model is called.
        start = event.find(marker) + len(marker)
        if start < len(marker) or event[start] != '"':
            return None
        _, end = scanstring(event, start + 1)
        after = event[end:]
        if _UNFINISHED not in after or _COUNTED in after or not after.endswith("}\n\n"):
            return None
        return cls(event[:start], after)

    def event(self, text: str) -> bytes:
        """The event of `text`."""
        return f"{self.before}{_quoted(text)}{self.after}".encode()


class Deltas:
    """What one sequence generated and nobody has sent yet: vLLM's outputs until there is a pattern, events after it.

    Filled by the output processor, which it is attached to; emptied by one task. The last output is vLLM's again, so
    that vLLM's generator writes how the stream ended; the tokens whose events it has not seen are given to it there.
    """

    __slots__ = ("_detokenizer", "_events", "_failure", "_make", "_outputs", "_pattern", "_unseen", "_usage", "_waiter")

    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        self._pattern: Pattern | None = None
        self._outputs: deque[RequestOutput] = deque()
        self._events: list[bytes] = []
        self._unseen: list[int] = []
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._make: Any = None
        self._detokenizer: Any = None

    def attach(self, state: RequestState) -> None:
        """Take everything that comes of this sequence from now on, in the place of vLLM's own collector."""
        self._make, self._detokenizer = state.make_request_output, state.detokenizer
        state.queue = self
        state.make_request_output = self._take

    def detach(self) -> None:
        """Take no more, and let go of the sequence: the two hold each other."""
        self._make = self._detokenizer = None

    def learn(self, event: str, route: Route) -> bool:
        """Write the events from now on if `event`, which vLLM's generator wrote, has a pattern; whether it is so.

        Not as long as there are outputs that came before and that it has not seen: events would overtake them.
        """
        if self._pattern is None and not self._outputs:
            self._pattern = Pattern.of(event, route)
            return self._pattern is not None
        return False

    def put(self, output: Any) -> None:
        """For the output processor: an error that ends every request."""
        if isinstance(output, Exception):
            self._failure = output
        else:
            self._outputs.append(output)
        self._wake()

    def close(self) -> None:
        """For the output processor, whose collectors have this."""

    def _take(
        self, new_token_ids: list[int], pooling_output: Any, finish_reason: Any, *rest: Any, **options: Any
    ) -> None:
        """One step's tokens of this sequence, in the place of `RequestState.make_request_output`."""
        if self._make is None:
            return
        self._usage.generated_tokens += len(new_token_ids)
        pattern = self._pattern
        if pattern is not None and finish_reason is None:
            self._unseen += new_token_ids
            self._events.append(pattern.event(self._detokenizer.get_next_output_text(False, True)))  # noqa: FBT003
        else:
            output = self._make(new_token_ids, pooling_output, finish_reason, *rest, **options)
            if output is None:
                return
            if self._unseen:
                choice = output.outputs[0]
                choice.token_ids = [*self._unseen, *choice.token_ids]
            self._outputs.append(output)
        if self._waiter is not None:
            self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def output(self) -> RequestOutput:
        """The next output for vLLM's generator; raises what ended the request."""
        while not self._outputs:
            if self._failure is not None:
                raise self._failure
            await self._wait()
        return self._outputs.popleft()

    async def events(self) -> bytes | None:
        """All events that are there, joined if their reader is behind; None once vLLM's generator has to go on."""
        while not self._events:
            if self._outputs or self._failure is not None:
                return None
            await self._wait()
        found = self._events
        self._events = []
        return found[0] if len(found) == 1 else b"".join(found)
