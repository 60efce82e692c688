"""What the engine's sampler has room for, in each of its tables.

vLLM's front end does not check all of it. On a GPU the worker does, and what is too much there ends the engine, with
everybody's streams. So it is refused before the engine has the request. Knows sampling parameters and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm import envs
from vllm.exceptions import VLLMValidationError

if TYPE_CHECKING:
    from collections.abc import Collection

    from vllm import SamplingParams

STOP_TOKENS = 128
ALLOWED_TOKENS = BIASED_TOKENS = 1024
"""Those of `vllm.v1.worker.gpu.sample.logit_bias`, which needs a GPU's libraries; a test compares them."""


def require_room(params: SamplingParams | None) -> None:
    """Refuse what the sampler cannot hold: `params` as they go to the engine. Raises as vLLM's own checks do."""
    if params is None:
        return
    if params.min_tokens > 0:  # until then, the tokens that would end the text are kept out
        _require("stop_token_ids", "tokens that end a text, with min_tokens", params.all_stop_token_ids, STOP_TOKENS)
    _require("allowed_token_ids", "token ids", params.allowed_token_ids, ALLOWED_TOKENS)
    _require("logit_bias", "token ids", params.logit_bias, BIASED_TOKENS)
    if params.bad_words_token_ids:
        tokens = [token for word in params.bad_words_token_ids for token in word]
        _require("bad_words", "tokens in all", tokens, envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS)


def _require(param: str, what: str, items: Collection[object] | None, most: int) -> None:
    found = len(items or ())
    if found > most:
        raise VLLMValidationError(f"{param}: the engine takes at most {most} {what}; found {found}.", parameter=param)
