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
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jubako.engine.vllm import plain
from jubako.engine.vllm.probabilities import Counted, Probabilities
from jubako.errors import InternalError
from jubako.vocabulary import Offer, Route, Usage

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.output_processor import RequestState

_quoted = json.encoder.encode_basestring
"""JSON text as vLLM has it: what is not ASCII stands as it is."""
_DECODER = json.JSONDecoder()
_CHOICE = '"choices":[{"index":'
_BEFORE_TEXT = {Route.CHAT: ',"delta":{"content":', Route.COMPLETIONS: ',"text":'}
_PROBABILITIES = '},"logprobs":{"content":['
_UNFINISHED = '"finish_reason":null'
_COUNTED = '"usage":{'
_COUNTS = re.compile(r'"usage":\{"prompt_tokens":(\d+),"total_tokens":(\d+),"completion_tokens":(\d+)\D*$')
_SHOWN = frozenset({"content", "tool_calls"})
"""What a delta of plain text may have set: vLLM leaves an empty list of tool calls out, and nothing else."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Usage so far, which a caller may ask to have in each event: its numbers, and what stands between and after them.

    That of the choice alone, as vLLM has it.
    """

    prompt_tokens: int
    between: str
    after: str

    @classmethod
    def of(cls, tail: str) -> tuple[str, Counts] | None:
        """What stands before the numbers, and them; None if the usage has anything else, or is not what it seems."""
        found = _COUNTS.search(tail)
        if found is None or int(found[1]) + int(found[3]) != int(found[2]):
            return None
        return tail[: found.start(2)], cls(int(found[1]), tail[found.end(2) : found.start(3)], tail[found.end(3) :])

    def text(self, generated: int) -> str:
        """After so many tokens."""
        return f"{self.prompt_tokens + generated}{self.between}{generated}{self.after}"


@dataclass(frozen=True, slots=True)
class Pattern:
    """An event without its text, and without what its tokens' probabilities and the numbers of its usage are."""

    before: str
    after: str
    counts: Counts | None = None
    between: str = ""
    """What stands between the text and the probabilities; empty: it has none."""

    @classmethod
    def of(cls, event: str, route: Route) -> tuple[int, Pattern] | None:
        """The choice and the pattern of an event that vLLM wrote; None if it is not one choice's text in mid-stream."""
        # Quotes inside of values are escaped, so that the first place is the right one whatever a model is called.
        number = event.find(_CHOICE) + len(_CHOICE)
        after_number = event.find(",", number)
        start = after_number + len(_BEFORE_TEXT[route])
        if number < len(_CHOICE) or not event.startswith(f'{_BEFORE_TEXT[route]}"', after_number):
            return None
        _, end = _DECODER.raw_decode(event, start)
        after, between = event[end:], ""
        if route is Route.CHAT and after.startswith(_PROBABILITIES):
            between = _PROBABILITIES
            after = after[_DECODER.raw_decode(after, len(between) - 1)[1] - 1 :]
        if _UNFINISHED not in after or not after.endswith("}\n\n"):
            return None
        if route is Route.CHAT and not after.startswith("]}" if between else "}"):
            return None  # its delta has more than the text: the end of the reasoning, a tool call
        index, counts = int(event[number:after_number]), None
        if _COUNTED in after:
            counted = Counts.of(after)
            if counted is None:
                return None
            after, counts = counted
        return index, cls(event[:start], after, counts, between)

    def event(self, text: str, detokenizer: Any, probabilities: str = "") -> bytes:
        """The event of `text`, the last that `detokenizer` made, and of its tokens' `probabilities`."""
        counts = "" if self.counts is None else self.counts.text(detokenizer.num_output_tokens())
        # Half a character (a lone surrogate), which a parser could make, must not raise in the output processor.
        return f"{self.before}{_quoted(text)}{self.between}{probabilities}{self.after}{counts}".encode(errors="replace")


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


class _Choice:
    """One sequence of the reply, attached to the output processor's record of it."""

    __slots__ = ("make", "pattern", "reply", "state", "unseen")

    def __init__(self, reply: Deltas, state: RequestState) -> None:
        self.reply = reply
        self.state: Any = state
        self.make: Any = state.make_request_output
        self.pattern: Pattern | None = None
        self.unseen: list[int] = []
        """Tokens whose events vLLM's generator has not seen."""

    def take(
        self, new_token_ids: list[int], pooling_output: Any, finish_reason: Any, *rest: Any, **options: Any
    ) -> None:
        """One step's tokens of this sequence, in the place of `RequestState.make_request_output`."""
        if self.make is None:
            return
        reply = self.reply
        reply.usage.generated_tokens += len(new_token_ids)
        text = None
        if self.pattern is not None and finish_reason is None:
            text = self.state.detokenizer.get_next_output_text(False, True)  # noqa: FBT003
            event = self._event(self.pattern, text, new_token_ids)
            if event is not None:
                self.unseen += new_token_ids
                if event:
                    reply.tell(event)
                return
        output = self.make(new_token_ids, pooling_output, finish_reason, *rest, **options)
        if output is None:
            return
        choice = output.outputs[0]
        if text is not None:
            choice.text = text
        if self.unseen:
            if reply.probabilities is None:
                choice.token_ids = [*self.unseen, *choice.token_ids]
            else:
                choice.token_ids = Counted(choice.token_ids, len(self.unseen))
            self.unseen = []
        reply.add(output)

    def _event(self, pattern: Pattern, text: str, new_token_ids: list[int]) -> bytes | None:
        """What is told of a step's tokens: empty if nothing is, None if vLLM's generator has to tell."""
        reply, detokenizer = self.reply, self.state.detokenizer
        if reply.probabilities is not None:
            told = reply.probabilities.text(self.state.logprobs_processor.logprobs, new_token_ids)
            return None if told is None else pattern.event(text, detokenizer, told)
        if reply.parser is None:
            return pattern.event(text, detokenizer)
        content = reply.parser.content(reply.delta(self.state, text, new_token_ids))
        if content is None:
            return None
        return pattern.event(content, detokenizer) if content else b""

    def learn(self, pattern: Pattern, *, alone: bool) -> None:
        """Write events from now on. One that is `alone` needs no order among others."""
        self.pattern = pattern
        if alone and self.state is not None:
            plain.mark(self.state, self.token)

    def token(self, token_id: int, text: str) -> None:
        """A plain step of this sequence."""
        if self.pattern is not None:
            self.reply.usage.generated_tokens += 1
            self.unseen.append(token_id)
            self.reply.tell(self.pattern.event(text, self.state.detokenizer))

    def detach(self) -> None:
        """Take no more, and let go of the sequence: the two hold each other."""
        if self.state is not None:
            plain.unmark(self.state)
        self.make = self.state = None


class Deltas:
    """What a reply's choices generated and nobody has sent yet: vLLM's outputs until there is a pattern, events after.

    Filled by the output processor, whose records it is attached to; emptied by one task. The last output of a choice is
    vLLM's again, so that vLLM's generator writes how it ended; the tokens whose events it has not seen are given to it
    there. Several choices share a connection: what a step has for them goes out together.
    """

    __slots__ = (
        *("_choices", "_ended", "_failure", "_items", "_offer", "_on_end", "_request", "_waiter"),
        *("parser", "probabilities", "usage"),
    )

    def __init__(
        self, usage: Usage, request: Any, on_end: Callable[[], None], probabilities: Probabilities | None = None
    ) -> None:
        self.usage = usage
        self.probabilities = probabilities
        self._on_end = on_end
        self.parser: Replayed | None = None
        self._request = request
        self._choices: dict[int, _Choice] = {}
        self._items: deque[bytes | RequestOutput] = deque()
        self._ended = False
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._offer: Offer | None = None

    def attach(self, state: RequestState) -> None:
        """Take everything that comes of this sequence from now on, in the place of vLLM's own collector."""
        choice = self._choices[state.request_index] = _Choice(self, state)
        state.queue = self
        state.make_request_output = choice.take

    def detach(self) -> None:
        """Take no more of any sequence, and let go of whoever wanted to know of the end."""
        self._on_end = _nobody
        for choice in self._choices.values():
            choice.detach()

    def through(self, offer: Offer) -> None:
        """Hand each event to `offer` first, as long as the one who empties this has nothing else to do."""
        self._offer = offer

    def parse(self, parser: Any) -> Replayed:
        """Ask `parser` about each delta of the only choice; what vLLM's generator is to have in its place."""
        self.parser = Replayed(parser)
        return self.parser

    def learn(self, event: str, route: Route) -> bool:
        """Whether to look for events here, now that vLLM's generator wrote `event`.

        Not, with a parser, as long as there are outputs that its generator has not seen: they are to be parsed first.
        """
        if self.parser is None or not self._items:
            found = Pattern.of(event, route)
            if found is not None:
                choice = self._choices.get(found[0])
                if choice is not None and choice.pattern is None:
                    choice.learn(found[1], alone=self.parser is None and len(self._choices) == 1)
        return not self._ended and any(choice.pattern is not None for choice in self._choices.values())

    def put(self, output: Any) -> None:
        """For the output processor: an error that ends every request."""
        if isinstance(output, Exception):
            self._failure = output
            self._wake()

    def close(self) -> None:
        """For the output processor, whose collectors have this."""

    def add(self, output: RequestOutput) -> None:
        """For a choice: what vLLM's generator is to write."""
        self._items.append(output)
        if output.finished:
            self._on_end()
        if self._waiter is not None:
            self._wake()

    def tell(self, event: bytes) -> None:
        """For a choice: an event that is written already."""
        waiter = self._waiter
        if waiter is not None:
            # Whoever waits has sent everything before it. One whose wait was cancelled will send no more.
            if self._offer is not None and not waiter.done() and self._offer(event):
                return
            self._wake()
        self._items.append(event)

    def delta(self, state: Any, text: str, new_token_ids: list[int]) -> dict[str, Any]:
        """For a choice: what a parser is asked."""
        return {
            "delta_text": text,
            "delta_token_ids": new_token_ids,
            "request": self._request,
            "prompt_token_ids": state.prompt_token_ids,
            "finished": False,
        }

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


def _nobody() -> None:
    """Is told nothing."""
