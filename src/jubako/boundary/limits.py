"""The hard limits of one request, before anything is tokenized: pure functions from a parsed body to what may go on.

What goes on is the body without the fields that mean nothing here, numbers read once as the engine reads them, and the
`Demand` that budgets and the queue are told. A wrong type is refused here where a limit hangs on it, or where vLLM
would stumble over it; all other validation stays vLLM's. Knows no HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from jubako.boundary import constraints, fields, messages
from jubako.boundary.fields import INT64, Real, TokenIds, Whole, Words, sift
from jubako.boundary.messages import Tally
from jubako.boundary.reasons import TOO_LONG, too_high, too_many, unsupported, wrong_type
from jubako.vocabulary import Demand, Limits, Route

COMPLETION_TOKENS = 16
"""What OpenAI and vLLM give a completion request that asks for no number."""
BYTES_PER_TOKEN = 4
"""English text has about four and a half bytes a token, code and other scripts fewer; corrected after rendering."""
MESSAGE_TOKENS = 8
"""What a chat template puts around a message."""
PIXELS_PER_TOKEN = 784
"""A patch of 28 by 28, as many vision models have it."""
PROMPT_LOGPROBS = 20_000
"""Log-probabilities of prompt tokens in one request, estimated."""
LARGEST_TOKEN_ID = 2**31 - 1
_NUMERAL_CHARACTERS = 32
_INTEGER = TypeAdapter(int)


def check(route: Route, body: Mapping[str, Any], limits: Limits, *, media_salt: str) -> tuple[dict[str, Any], Demand]:
    """The body that goes to the engine, and what it asks for; raises `InvalidRequest`.

    `media_salt` keeps tenants' images apart in the engine's media cache: the tenant's own cache salt.
    """
    kept = sift(fields.ROUTES[route], body)
    tally = Tally()
    _scalars(route, kept, limits)
    if route is Route.CHAT:
        prompts, prompt_tokens = 1, _chat(kept, limits, tally, media_salt)
    else:
        _settle_best_of(body, kept)
        prompts, prompt_tokens = _completion_prompts(kept, limits, tally)
    grammar = constraints.check(kept, limits, tally)
    if tally.characters > limits.prompt_characters:
        param = "messages" if route is Route.CHAT else "prompt"
        raise too_many(param, "characters", limits.prompt_characters, tally.characters, code=TOO_LONG)
    _settle_truncation(kept)
    choices = max(kept.get("n") or 1, 1)
    if prompts * choices > limits.sequences:
        # Each is within its own limit, and together they could fill the engine for as long as they run.
        raise too_many("n", "choices of all prompts", limits.sequences, prompts * choices)
    prompt_tokens = max(prompt_tokens + math.ceil(tally.text_bytes / BYTES_PER_TOKEN), 1)
    _prompt_logprobs(kept, prompt_tokens)
    demand = Demand(
        model=_model(kept),
        prompts=prompts,
        choices=choices,
        prompt_tokens=prompt_tokens,
        output_tokens=_output_tokens(route, kept, limits),
        grammar=grammar,
    )
    return kept, demand


def _prompt_logprobs(kept: Mapping[str, Any], prompt_tokens: int) -> None:
    """Each is an object that is built and encoded while everybody's stream waits; a long prompt has many."""
    wanted = kept.get("prompt_logprobs")
    asked = wanted if isinstance(wanted, int) else 0
    if kept.get("echo") and isinstance(kept.get("logprobs"), int):
        asked = max(asked, kept["logprobs"])
    found = asked * prompt_tokens
    if found > PROMPT_LOGPROBS:
        raise too_many(
            "prompt_logprobs" if wanted else "logprobs", "log-probabilities of prompts", PROMPT_LOGPROBS, found
        )


def _scalars(route: Route, kept: dict[str, Any], limits: Limits) -> None:
    """Every field that its table bounds, in place."""
    specs = fields.ROUTES[route].open
    for name, value in kept.items():
        if value is None:
            continue
        spec = specs[name]
        if isinstance(spec, Whole):
            kept[name] = _whole(value, name, spec.high if isinstance(spec.high, int) else getattr(limits, spec.high))
            if kept[name] < 0 and not spec.negative:
                raise unsupported(name, "Must not be negative.")
        elif isinstance(spec, Real):
            _real(value, name, spec.high)
        elif isinstance(spec, Words):
            _words(value, name, spec, limits)
        elif isinstance(spec, TokenIds):
            _token_ids(value, name, getattr(limits, spec.items))
        elif (look := _SHAPES.get(name)) is not None:
            kept[name] = look(value, limits)


def _whole(value: Any, param: str, high: int) -> int:
    """Read a whole number as the engine's validation does, which takes `2.0`, `true` and `"2"` as well."""
    if type(value) is int:
        number = value
    elif isinstance(value, str) and len(value) > _NUMERAL_CHARACTERS:
        raise wrong_type(param, "integer")
    else:
        try:
            number = _INTEGER.validate_python(value)
        except ValidationError:
            raise wrong_type(param, "integer") from None
    if number > high:
        raise too_high(param, high)
    if number < -INT64:
        raise wrong_type(param, "integer")
    return number


def _real(value: Any, param: str, high: float) -> None:
    """Numbers only: vLLM would take the text "nan" for one, and no comparison stops it."""
    if not isinstance(value, (int, float)):
        raise wrong_type(param, "number")
    if value > high:
        raise too_high(param, high)
    if value < -INT64:
        raise wrong_type(param, "number")


def _words(value: Any, param: str, spec: Words, limits: Limits) -> None:
    items: int = getattr(limits, spec.items)
    characters: int = getattr(limits, spec.characters)
    words = [value] if spec.alone and isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise wrong_type(param, "list of strings")
    if len(words) > items:
        raise too_many(param, "strings", items, len(words))
    longest = max(map(len, words), default=0)
    if longest > characters:
        raise too_many(param, "characters in one string", characters, longest)


def _token_ids(value: Any, param: str, items: int) -> None:
    if not isinstance(value, list):
        raise wrong_type(param, "list of token ids")
    if len(value) > items:
        raise too_many(param, "token ids", items, len(value))
    _require_token_ids(value, param)


def _require_token_ids(value: list[Any], param: str) -> None:
    """Integers in range: vLLM checks some of its lists against the vocabulary, and sends others on as they are."""
    if not all(type(token) is int and 0 <= token <= LARGEST_TOKEN_ID for token in value):
        raise wrong_type(param, "list of token ids")


def _logit_bias(value: Any, limits: Limits) -> Any:
    if not isinstance(value, dict):
        raise wrong_type("logit_bias", "object")
    if len(value) > limits.logit_bias:
        raise too_many("logit_bias", "token ids", limits.logit_bias, len(value))
    for bias in value.values():
        if not isinstance(bias, (int, float)):
            raise wrong_type("logit_bias", "object of numbers")
    return value


def _stream_options(value: Any, limits: Limits) -> Any:  # noqa: ARG001 - one signature for all shapes
    return sift(fields.STREAM_OPTIONS, value, "stream_options.") if isinstance(value, dict) else value


def _repetition_detection(value: Any, limits: Limits) -> Any:  # noqa: ARG001 - as above
    if not isinstance(value, dict):
        raise wrong_type("repetition_detection", "object")
    kept = sift(fields.REPETITION_DETECTION, value, "repetition_detection.")
    for name, spec in fields.REPETITION_DETECTION.open.items():
        # The engine looks for every size of pattern again at every token.
        if isinstance(spec, Whole) and isinstance(spec.high, int) and kept.get(name) is not None:
            kept[name] = _whole(kept[name], f"repetition_detection.{name}", spec.high)
    return kept


def _template_arguments(value: Any, limits: Limits) -> Any:  # noqa: ARG001 - as above
    """Plain values under names that are nobody's but the template's."""
    if not isinstance(value, dict):
        raise wrong_type("chat_template_kwargs", "object")
    for name, argument in value.items():
        if name in fields.TEMPLATE_RESERVED or not name.isidentifier() or name.startswith("_"):
            raise unsupported("chat_template_kwargs", "It holds a name that is reserved for the server.")
        if isinstance(argument, (dict, list)) or (isinstance(argument, int) and abs(argument) > INT64):
            raise unsupported("chat_template_kwargs", "Only texts, numbers, booleans and null are taken as values.")
    return value


def _documents(value: Any, limits: Limits) -> Any:  # noqa: ARG001 - as above
    if not isinstance(value, list) or not all(isinstance(document, dict) for document in value):
        raise wrong_type("documents", "list of objects")
    for document in value:
        if not all(isinstance(text, str) for text in document.values()):
            raise wrong_type("documents", "list of objects of strings")
    return value


_SHAPES: Mapping[str, Callable[[Any, Limits], Any]] = {
    "chat_template_kwargs": _template_arguments,
    "documents": _documents,
    "logit_bias": _logit_bias,
    "repetition_detection": _repetition_detection,
    "stream_options": _stream_options,
}


def _model(kept: Mapping[str, Any]) -> str:
    """The name as it was sent; empty if there is none."""
    model = kept.get("model")
    if model is None:
        return ""
    if not isinstance(model, str):
        raise wrong_type("model", "string")
    return model


def _chat(kept: dict[str, Any], limits: Limits, tally: Tally, media_salt: str) -> int:
    """Check the messages and count all other text that the template sees; tokens beside those of the text."""
    if "messages" in kept:
        kept["messages"] = messages.check(kept["messages"], limits, tally, media_salt=media_salt)
    for document in kept.get("documents") or ():
        for name, text in document.items():
            tally.add(name)
            tally.add(text)
    for name, argument in (kept.get("chat_template_kwargs") or {}).items():
        tally.add(name)
        if isinstance(argument, str):
            tally.add(argument)
    return MESSAGE_TOKENS * len(kept.get("messages") or ()) + math.ceil(tally.pixels / PIXELS_PER_TOKEN)


def _completion_prompts(kept: Mapping[str, Any], limits: Limits, tally: Tally) -> tuple[int, int]:
    """How many prompts there are, and the tokens of those that are token ids; texts are counted into `tally`."""
    prompts, tokens = _count_prompts(kept, limits, tally)
    suffix = kept.get("suffix")
    if suffix is not None:
        if not isinstance(suffix, str):
            raise wrong_type("suffix", "string")
        for _ in range(prompts):  # each is rendered with it
            tally.add(suffix)
    return prompts, tokens


def _count_prompts(kept: Mapping[str, Any], limits: Limits, tally: Tally) -> tuple[int, int]:
    prompt = kept.get("prompt")
    if isinstance(prompt, str):
        tally.add(prompt)
    if not isinstance(prompt, list) or not prompt:
        return 1, 0  # what is neither text nor list is vLLM's to refuse
    if isinstance(prompt[0], str):
        _require_prompts(prompt, str, limits)
        for text in prompt:
            tally.add(text)
        return len(prompt), 0
    if isinstance(prompt[0], list):
        _require_prompts(prompt, list, limits)
        return len(prompt), sum(_prompt_tokens(tokens, limits) for tokens in prompt)
    return 1, _prompt_tokens(prompt, limits)


def _require_prompts(prompt: list[Any], kind: type, limits: Limits) -> None:
    if len(prompt) > limits.prompts:
        raise too_many("prompt", "prompts", limits.prompts, len(prompt))
    if not all(isinstance(one, kind) for one in prompt):
        raise wrong_type("prompt", "list of prompts of one kind")


def _prompt_tokens(tokens: list[Any], limits: Limits) -> int:
    if len(tokens) > limits.prompt_tokens:
        raise too_many("prompt", "tokens in one prompt", limits.prompt_tokens, len(tokens), code=TOO_LONG)
    _require_token_ids(tokens, "prompt")
    return len(tokens)


def _settle_best_of(body: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    """vLLM has no `best_of`: the best of as many as are returned is all of them."""
    best_of = body.get("best_of")
    if best_of is not None and best_of != max(kept.get("n") or 1, 1):
        raise unsupported("best_of", "Only the value of n is supported. Leave the field out.")


def _settle_truncation(kept: dict[str, Any]) -> None:
    """Name the side that vLLM cuts at anyway: only then it cuts the text before it tokenizes it."""
    if kept.get("truncate_prompt_tokens") is not None and kept.get("truncation_side") is None:
        kept["truncation_side"] = "left"


def _output_tokens(route: Route, kept: Mapping[str, Any], limits: Limits) -> int:
    """The bound of each choice; as in vLLM, `max_completion_tokens` goes before `max_tokens`."""
    asked = kept.get("max_completion_tokens")
    if asked is None:
        asked = kept.get("max_tokens")
    if asked is None:
        asked = limits.default_output_tokens if route is Route.CHAT else COMPLETION_TOKENS
        asked = min(asked, limits.output_tokens)
        if (least := kept.get("min_tokens")) is not None and least > asked:
            raise too_many("min_tokens", "tokens, unless max_tokens asks for more,", asked, least)
    # Scoring a prompt alone (echo, and none to generate) makes vLLM generate one token and drop it.
    return max(asked, 1)
