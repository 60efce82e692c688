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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jubako.errors import InternalError
from jubako.vocabulary import Offer, Route, Usage

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.output_processor import RequestState

_quoted = json.encoder.encode_basestring
"""JSON text as vLLM has it: what is not ASCII stands as it is."""
_DECODER = json.JSONDecoder()
_BEFORE_TEXT = {
    Route.CHAT: '"choices":[{"index":0,"delta":{"content":',
    Route.COMPLETIONS: '"choices":[{"index":0,"text":',
}
_UNFINISHED = '"finish_reason":null'
_COUNTED = '"usage":{'
_SHOWN = frozenset({"content", "tool_calls"})
"""What a delta of plain text may have set: vLLM leaves an empty list of tool calls out, and nothing else."""


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
        _, end = _DECODER.raw_decode(event, start)
        after = event[end:]
        if _UNFINISHED not in after or _COUNTED in after or not after.endswith("}\n\n"):
            return None
        if route is Route.CHAT and not after.startswith("}"):
            return None  # its delta has more than the text: the end of the reasoning, a tool call
        return cls(event[:start], after)

    def event(self, text: str) -> bytes:
        """The event of `text`."""
        # Half a character (a lone surrogate), which a parser could make, must not raise in the output processor.
        return f"{self.before}{_quoted(text)}{self.after}".encode(errors="replace")


class Replayed:
    """A parser of vLLM's for one stream, which is asked here first: what it said then, vLLM's generator is told again.

    It keeps a state, so each delta may be given to it once only. Everything else is the parser's own.
    """

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self._said: deque[Any] = deque()
        self._ahead = 0
        """Tokens that the parser had here, and that vLLM's generator has yet to hand over."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def parse_delta(self, **delta: Any) -> Any:
        """For vLLM's generator: what was said already, or what the parser says now."""
        token_ids = delta["delta_token_ids"]
        if not self._said:
            delta["delta_token_ids"], self._ahead = token_ids[self._ahead :], 0
            return self._parser.parse_delta(**delta)
        self._ahead -= len(token_ids)
        said = self._said.popleft()
        if isinstance(said, Exception):
            raise said
        return said

    def content(self, delta: Mapping[str, Any]) -> str | None:
        """The text of an event that has nothing else, empty without an event; None if vLLM's generator has to tell."""
        self._ahead += len(delta["delta_token_ids"])
        try:
            said = self._parser.parse_delta(**delta)
        except Exception as error:  # noqa: BLE001 - it is raised where vLLM would have met it
            said = error
        else:
            if said is None:
                return ""
            if said.content and not said.tool_calls and said.model_fields_set <= _SHOWN:
                return str(said.content)
        self._said.append(said)
        return None


class Deltas:
    """What one sequence generated and nobody has sent yet: vLLM's outputs until there is a pattern, events after it.

    Filled by the output processor, which it is attached to; emptied by one task. The last output is vLLM's again, so
    that vLLM's generator writes how the stream ended; the tokens whose events it has not seen are given to it there.
    """

    __slots__ = (
        "_ended",
        "_failure",
        "_items",
        "_make",
        "_offer",
        "_parser",
        "_pattern",
        "_request",
        "_state",
        "_unseen",
        "_usage",
        "_waiter",
    )

    def __init__(self, usage: Usage, request: Any) -> None:
        self._usage = usage
        self._request = request
        self._parser: Replayed | None = None
        self._pattern: Pattern | None = None
        self._items: deque[bytes | RequestOutput] = deque()
        self._unseen: list[int] = []
        self._ended = False
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._offer: Offer | None = None
        self._make: Any = None
        self._state: Any = None

    def attach(self, state: RequestState) -> None:
        """Take everything that comes of this sequence from now on, in the place of vLLM's own collector."""
        self._state, self._make = state, state.make_request_output
        state.queue = self
        state.make_request_output = self._take

    def detach(self) -> None:
        """Take no more, and let go of the sequence: the two hold each other."""
        self._make = self._state = None

    def through(self, offer: Offer) -> None:
        """Hand each event to `offer` first, as long as the one who empties this has nothing else to do."""
        self._offer = offer

    def parse(self, parser: Any) -> Replayed:
        """Ask `parser` about each delta; what vLLM's generator is to have in its place."""
        self._parser = Replayed(parser)
        return self._parser

    def learn(self, event: str, route: Route) -> bool:
        """Whether there will be events here, now that vLLM's generator wrote `event`: it, or one before, has a pattern.

        Not as long as there are outputs that came before and that it has not seen: events would overtake them.
        """
        if self._pattern is None and not self._items:
            self._pattern = Pattern.of(event, route)
        return self._pattern is not None and not self._ended

    def put(self, output: Any) -> None:
        """For the output processor: an error that ends every request."""
        if isinstance(output, Exception):
            self._failure = output
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
        text = None
        if self._pattern is not None and finish_reason is None:
            text = self._state.detokenizer.get_next_output_text(False, True)  # noqa: FBT003
            content = text if self._parser is None else self._content(self._parser, text, new_token_ids)
            if content is not None:
                self._unseen += new_token_ids
                if content or self._parser is None:
                    self._tell(self._pattern.event(content))
                return
        output = self._make(new_token_ids, pooling_output, finish_reason, *rest, **options)
        if output is None:
            return
        choice = output.outputs[0]
        if text is not None:
            choice.text = text
        if self._unseen:
            choice.token_ids = [*self._unseen, *choice.token_ids]
            self._unseen = []
        self._items.append(output)
        if self._waiter is not None:
            self._wake()

    def _tell(self, event: bytes) -> None:
        waiter = self._waiter
        if waiter is not None:
            # Whoever waits has sent everything before it. One whose wait was cancelled will send no more.
            if self._offer is not None and not waiter.done() and self._offer(event):
                return
            self._wake()
        self._items.append(event)

    def _content(self, parser: Replayed, text: str, new_token_ids: list[int]) -> str | None:
        delta = {
            "delta_text": text,
            "delta_token_ids": new_token_ids,
            "request": self._request,
            "prompt_token_ids": self._state.prompt_token_ids,
            "finished": False,
        }
        return parser.content(delta)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def output(self) -> RequestOutput:
        """The next output for vLLM's generator; raises what ended the request."""
        while not self._items:
            if self._failure is not None:
                raise self._failure
            await self._wait()
        output = self._items.popleft()
        if isinstance(output, bytes):
            # Each output that it is given makes at least one event, after which the events here are asked for.
            raise InternalError("vLLM's generator passed over an output.")
        self._ended = output.finished
        return output

    async def events(self) -> bytes | None:
        """All events that are there, joined if their reader is behind; None once vLLM's generator has to go on."""
        items = self._items
        while not items:
            if self._failure is not None:
                return None
            await self._wait()
        if not isinstance(items[0], bytes):
            return None
        event = items.popleft()
        if not items or not isinstance(items[0], bytes):
            return event
        events = [event]
        while items and isinstance(items[0], bytes):
            events.append(items.popleft())
        return b"".join(events)
