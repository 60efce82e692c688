"""An engine that costs next to nothing, so that what is in front of it can be measured.

It speaks the protocol of vLLM's engine core to any number of front ends over their sockets. Each step gives every
request one token of a fixed text, a request ends at its `max_tokens`, and steps have a fixed pace. There is no model.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOKENS = (504, 3629, 8239, 476, 28, 665, 436, 253, 1165, 2369)
"""Words of the demo model's vocabulary that end where a character does: each of them is an event."""
RANK = (0).to_bytes(2, "little")
"""What front ends call the only engine."""


def addresses(folder: Path, clients: int) -> list[dict[str, str]]:
    """Where each front end listens, and what is handed to vLLM's client there."""
    return [
        {"input_address": f"ipc://{folder}/in-{client}", "output_address": f"ipc://{folder}/out-{client}"}
        for client in range(clients)
    ]


@dataclass(slots=True)
class Running:
    """One request in the engine."""

    client: int
    prompt_tokens: int
    left: int
    given: int = 0


class CheapCore:
    """The sockets to the front ends, and the requests that run."""

    def __init__(self, where: Sequence[Mapping[str, str]], step_seconds: float) -> None:
        import zmq
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

        context = zmq.Context()
        self._step_seconds = step_seconds
        self._inputs = []
        self._outputs = []
        self._poller = zmq.Poller()
        for one in where:
            requests = context.socket(zmq.DEALER)
            requests.setsockopt(zmq.IDENTITY, RANK)
            requests.connect(one["input_address"])
            requests.send(b"")  # ready, and nothing found out that the front end has to know
            self._poller.register(requests, zmq.POLLIN)
            self._inputs.append(requests)
            replies = context.socket(zmq.PUSH)
            replies.connect(one["output_address"])
            self._outputs.append(replies)
        self._requests = MsgpackDecoder(EngineCoreRequest)
        self._other = MsgpackDecoder()
        self._encoder = MsgpackEncoder()
        self._running: dict[str, Running] = {}

    def serve(self) -> None:
        """Until the process is ended."""
        next_at = time.monotonic()
        while True:
            wait = max(0.0, next_at - time.monotonic()) if self._running else None
            for socket, _ in self._poller.poll(None if wait is None else math.ceil(1000 * wait)):
                self._take(self._inputs.index(socket), socket)
            now = time.monotonic()
            if self._running and now >= next_at:
                self._step(now)
                # A step that came late does not make the next one come sooner.
                next_at = max(next_at + self._step_seconds, time.monotonic())

    def _take(self, client: int, socket: Any) -> None:
        from vllm.v1.engine import EngineCoreRequestType

        kind, *frames = socket.recv_multipart(copy=False)
        what = EngineCoreRequestType(bytes(kind.buffer))
        if what is EngineCoreRequestType.ADD:
            request = self._requests.decode(frames)
            most = request.sampling_params.max_tokens
            self._running[request.request_id] = Running(client, len(request.prompt_token_ids), most)
        elif what is EngineCoreRequestType.ABORT:
            for request_id in self._other.decode(frames):
                self._running.pop(request_id, None)
        elif what is EngineCoreRequestType.UTILITY:
            _, call_id, method, _ = self._other.decode(frames)
            self._answer(client, call_id, method)

    def _answer(self, client: int, call_id: int, method: str) -> None:
        from vllm.v1.engine import EngineCoreOutputs, UtilityOutput
        from vllm.v1.serial_utils import UtilityResult

        result = UtilityResult(("generate",) if method == "get_supported_tasks" else None)
        self._send(client, EngineCoreOutputs(utility_output=UtilityOutput(call_id, result=result)))

    def _step(self, now: float) -> None:
        from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
        from vllm.v1.metrics.stats import PrefillStats, SchedulerStats

        made: dict[int, list[Any]] = {}
        for request_id, one in list(self._running.items()):
            output = EngineCoreOutput(request_id, [TOKENS[one.given % len(TOKENS)]])
            if not one.given:
                output.prefill_stats = PrefillStats(
                    num_prompt_tokens=one.prompt_tokens, num_computed_tokens=one.prompt_tokens
                )
            one.given += 1
            if one.given >= one.left:
                output.finish_reason = FinishReason.LENGTH
                del self._running[request_id]
            made.setdefault(one.client, []).append(output)
        # The scheduler's statistics go to one of the front ends, as from vLLM's own.
        stats: Any = SchedulerStats(num_running_reqs=len(self._running))
        for client, outputs in made.items():
            self._send(client, EngineCoreOutputs(outputs=outputs, scheduler_stats=stats, timestamp=now))
            stats = None

    def _send(self, client: int, outputs: Any) -> None:
        self._outputs[client].send_multipart(self._encoder.encode(outputs))


def main() -> None:
    """One engine, for the front ends named on standard input."""
    plan = json.loads(sys.stdin.readline())
    CheapCore(plan["addresses"], plan["step_seconds"]).serve()


if __name__ == "__main__":
    main()
