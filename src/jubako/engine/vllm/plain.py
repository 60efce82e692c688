"""The plain step: one more token of a sequence in the middle of its text, and nothing else that the engine had to tell.

Nearly every output is one. vLLM's output processor asks of each, in a dozen calls, whether it is any of the others;
here that is asked once, and what it does with a plain one is done in a single call: the same text, statistics, counts.
Everything else goes to vLLM's own `process_outputs`. Knows the output processor's records; nothing of replies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput
    from vllm.v1.engine.output_processor import OutputProcessor, OutputProcessorOutput, RequestState
    from vllm.v1.metrics.stats import IterationStats

ENDED_AT = "jubako_ended_at"
"""Of a step's statistics, which do not say it: when the step ended, by the engine's clock."""
Tell = Callable[[int, str], None]
"""Takes a token and its text."""


class PlainSequence:
    """One sequence, as far as a plain step concerns it. `tell` has each token; without it the text is only kept."""

    __slots__ = ("_detokenizer", "_stats", "_tell")

    def __init__(self, state: RequestState, tell: Tell | None) -> None:
        self._detokenizer: Any = state.detokenizer
        self._stats: Any = state.stats
        self._tell = tell

    def step(self, token_id: int, at: float, waits: list[float]) -> None:
        """What vLLM does in `update_from_output` and `update`; `waits` gets the time since the token before."""
        stats, detokenizer = self._stats, self._detokenizer
        stats.num_generation_tokens += 1
        waits.append(at - stats.last_token_ts)
        stats.last_token_ts = at
        detokenizer.token_ids.append(token_id)
        text = detokenizer.decode_next(token_id)
        detokenizer.output_text += text
        if self._tell is not None:
            detokenizer._last_output_text_offset = len(detokenizer.output_text)  # noqa: SLF001 - as when it is asked
            self._tell(token_id, text)


def mark(state: RequestState, tell: Tell | None = None) -> None:
    """Have the plain steps of this sequence dealt with here, if it is one whose steps can be."""
    if _can_be_plain(state) and (tell is not None or state.output_kind is RequestOutputKind.FINAL_ONLY):
        state.plain = PlainSequence(state, tell)


def unmark(state: RequestState) -> None:
    """Leave the rest of the sequence to vLLM."""
    state.plain = None


def _can_be_plain(state: RequestState) -> bool:
    """Whether a token of the sequence means no more than its text: no stop strings to look for, no probabilities."""
    detokenizer, logprobs = state.detokenizer, state.logprobs_processor
    return (
        isinstance(detokenizer, BaseIncrementalDetokenizer)
        and type(detokenizer).update is BaseIncrementalDetokenizer.update
        and not detokenizer.stop
        and logprobs is not None
        and logprobs.num_logprobs is None
        and logprobs.num_prompt_logprobs is None
        and state.stats is not None
        and state.stream_interval == 1
        and not state.streaming_input
    )


def is_plain(output: EngineCoreOutput) -> bool:
    """Whether the engine has one token to tell and nothing else. Every field is looked at: a test counts them."""
    return (
        output.finish_reason is None
        and len(output.new_token_ids) == 1
        and output.events is None
        and output.new_logprobs is None
        and output.prefill_stats is None
        and output.new_prompt_logprobs_tensors is None
        and output.prompt_token_id_logprobs is None
        and output.pooling_output is None
        and output.stop_reason is None
        and output.kv_transfer_params is None
        and output.ec_transfer_params is None
        and output.trace_headers is None
        and output.routed_experts is None
        and output.num_nans_in_logits == 0
        and output.mm_cache_miss_hashes is None
        and output.new_sampling_mask is None
        and output.spec_decode_metrics is None
    )


def take_plain_steps(processor: OutputProcessor) -> None:
    """From now on deal with the plain steps of marked sequences before the processor's own way."""
    states, process = processor.request_states, processor.process_outputs

    def process_outputs(
        outputs: Sequence[EngineCoreOutput],
        engine_core_timestamp: float | None = None,
        iteration_stats: IterationStats | None = None,
        weight_version: str | None = None,
    ) -> OutputProcessorOutput:
        if iteration_stats is not None and engine_core_timestamp is not None:
            setattr(iteration_stats, ENDED_AT, engine_core_timestamp)
        if iteration_stats is None or engine_core_timestamp is None or weight_version is not None:
            return process(list(outputs), engine_core_timestamp, iteration_stats, weight_version)
        others = []
        waits = iteration_stats.inter_token_latencies_iter
        for output in outputs:
            state = states.get(output.request_id)
            plain = None if state is None or state.is_prefilling else getattr(state, "plain", None)
            if plain is None or not is_plain(output):
                others.append(output)
                continue
            iteration_stats.num_generation_tokens += 1
            plain.step(output.new_token_ids[0], engine_core_timestamp, waits)
        return process(others, engine_core_timestamp, iteration_stats)

    processor.process_outputs = process_outputs
