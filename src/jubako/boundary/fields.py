"""Every field that a request may hold, by its place: what is open, what is dropped, what is the server's.

A field that is in no table is refused, so a new field of vLLM's is closed until it is decided on here. The same tables
make the OpenAPI document. Knows names, types and bounds; what is inside a value, `limits` and its neighbours count.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jubako.errors import InvalidRequest
from jubako.vocabulary import Route

INT64 = 2**63 - 1
_SHOWABLE = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number of at most `high`, which may be the name of a limit. What is too low is the engine's to say."""

    high: int | str = INT64
    low: int = 0
    """For the document alone."""
    negative: bool = True
    """Whether the engine may be asked for less than nothing: of log-probabilities, it takes that for all there are."""


@dataclass(frozen=True, slots=True)
class Real:
    """A number; `high` bounds its magnitude, so that nothing overflows the engine's 32-bit floats."""

    high: float
    low: float = 0.0
    """For the document alone."""


@dataclass(frozen=True, slots=True)
class Words:
    """A list of at most `items` texts of at most `characters` each: names of limits. `alone`: one text will do."""

    items: str
    characters: str
    alone: bool = False


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A list of at most `items` token ids."""

    items: str


@dataclass(frozen=True, slots=True)
class Shape:
    """A value that another check or the engine's own validation looks into; `schema` is for the document."""

    schema: Mapping[str, Any]


Spec = Whole | Real | Words | TokenIds | Shape
FLAG = Shape({"type": "boolean"})
TEXT = Shape({"type": "string"})
OBJECT = Shape({"type": "object"})


def one_of(*values: str) -> Shape:
    """One of a few words."""
    return Shape({"type": "string", "enum": list(values)})


@dataclass(frozen=True, slots=True)
class Table:
    """The fields of one place. `ignored` maps a name to the values that change nothing; None: whatever it is."""

    open: Mapping[str, Spec]
    ignored: Mapping[str, tuple[Any, ...] | None] = field(default_factory=dict)
    privileged: frozenset[str] = frozenset()


def sift(table: Table, fields: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """A copy of `fields` without the ignored ones; raises `InvalidRequest` for what may not be sent.

    `where` is the place's name and a dot, or empty for the request itself.
    """
    if fields.keys() <= table.open.keys():
        return dict(fields)
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        if name in table.open:
            kept[name] = value
        elif name not in table.ignored:
            raise _not_to_be_sent(table, name, where)
        elif (harmless := table.ignored[name]) is not None and value not in harmless:
            raise InvalidRequest(
                f"{where}{name}: This value is not supported here. Leave the field out.",
                code="unsupported_value",
                param=f"{where}{name}",
            )
    return kept


def _not_to_be_sent(table: Table, name: str, where: str) -> InvalidRequest:
    if name in table.privileged:
        message = f"This field is set by the server and cannot be sent: {where}{name}."
        return InvalidRequest(message, code="unknown_field", param=f"{where}{name}")
    if _SHOWABLE.fullmatch(name) is None:
        # Whatever it is, it is no field's name: neither its length nor its bytes belong into a reply.
        place = where.rstrip(".") or "the request"
        return InvalidRequest(
            f"Unknown field in {place}: its name is none of an API's.",
            code="unknown_field",
            param=where.rstrip(".") or None,
        )
    near = nearest(name, table.open)
    hint = f" Did you mean {where}{near}?" if near else ""
    return InvalidRequest(f"Unknown field: {where}{name}.{hint}", code="unknown_field", param=f"{where}{name}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, if any is like it at all."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


PRIVILEGED = frozenset(
    {
        "cache_salt",  # whose prefixes are read from the cache
        "data_parallel_rank",  # which engine works
        "ec_transfer_params",  # another server's memory
        "logprob_token_ids",  # vLLM then takes the log-probabilities of the whole batch, of other requests too
        "kv_transfer_params",  # the same, and a prompt other than the one that was checked
        "media_io_kwargs",  # how much decoding costs
        "mm_payload",  # for vLLM's render routes, which are not served
        "mm_processor_kwargs",  # how much preprocessing costs
        "priority",  # who goes next
        "request_id",  # whom an abort meets
        "return_mm_kwargs",  # see mm_payload
        "return_token_offsets",  # see mm_payload
        "routed_experts_prompt_start",  # the model's inside
        "session_id",  # whose session it is
        "stream_interval",  # how many tokens are held back in memory
        "vllm_xargs",  # arguments of the server's own extensions
        "watermarking",  # the operator's decision
    }
)

TEMPLATE_RESERVED = frozenset(
    {
        # vLLM spreads these arguments over calls of its own and of transformers': each name is a parameter there.
        *("add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents"),
        *("max_length", "messages", "model_config", "padding", "processor", "processor_kwargs"),
        *("return_assistant_tokens_mask", "return_dict", "return_tensors", "self", "tokenize", "tokenizer"),
        *("tokenizer_kwargs", "tools", "truncation"),
        # Names that templates take from the tokenizer or from transformers.
        *("bos_token", "eos_token", "pad_token", "unk_token", "raise_exception", "strftime_now"),
    }
)
"""Names that `chat_template_kwargs` may not hold."""

_FORMAT = Shape({"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}})
_SAMPLING: Mapping[str, Spec] = {
    "model": Shape({"type": "string", "maxLength": 256}),
    "add_special_tokens": FLAG,
    "allowed_token_ids": TokenIds("token_ids"),
    "bad_words": Words("token_ids", "stop_characters"),
    "echo": FLAG,
    "frequency_penalty": Real(2, low=-2),
    "ignore_eos": FLAG,
    "include_stop_str_in_output": FLAG,
    "length_penalty": Real(100, low=-100),
    "logit_bias": Shape({"type": "object", "additionalProperties": {"type": "number"}, "maxProperties": "logit_bias"}),
    "max_tokens": Whole("output_tokens"),
    "min_p": Real(1),
    "min_tokens": Whole("output_tokens"),
    "n": Whole("choices", low=1),
    "presence_penalty": Real(2, low=-2),
    "prompt_logprobs": Whole("logprobs", negative=False),
    "repetition_detection": OBJECT,
    "repetition_penalty": Real(100),
    "response_format": _FORMAT,
    "return_token_ids": FLAG,
    "return_tokens_as_token_ids": FLAG,
    "seed": Whole(low=-INT64),
    "skip_special_tokens": FLAG,
    "spaces_between_special_tokens": FLAG,
    "stop": Words("stops", "stop_characters", alone=True),
    "stop_token_ids": TokenIds("token_ids"),
    "stream": FLAG,
    "stream_options": OBJECT,
    "structured_outputs": OBJECT,
    "temperature": Real(100),
    "thinking_token_budget": Whole(low=-1),
    "top_k": Whole(2**31 - 1, low=-1),
    "top_p": Real(1),
    # Never without a side: vLLM then tokenizes the whole text, however long.
    "truncate_prompt_tokens": Whole("prompt_tokens", low=-1),
    "truncation_side": one_of("left", "right"),
}
_IGNORED: Mapping[str, tuple[Any, ...] | None] = {
    "metadata": None,
    "prompt_cache_key": None,
    "prompt_cache_retention": None,
    "safety_identifier": None,
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    # Multiplies the work of every token by its width, behind the scheduler's back.
    "use_beam_search": (None, False),
    "user": None,
}

CHAT = Table(
    open={
        **_SAMPLING,
        "messages": Shape({"type": "array", "items": {"$ref": "#/components/schemas/Message"}, "maxItems": "messages"}),
        "add_generation_prompt": FLAG,
        "chat_template_kwargs": Shape(
            {
                "type": "object",
                "propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9_]*$", "not": {"enum": sorted(TEMPLATE_RESERVED)}},
                "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
            }
        ),
        "continue_final_message": FLAG,
        "documents": Shape({"type": "array", "items": {"type": "object", "additionalProperties": {"type": "string"}}}),
        "include_reasoning": FLAG,
        "logprobs": FLAG,
        "max_completion_tokens": Whole("output_tokens"),
        "parallel_tool_calls": FLAG,
        "reasoning_effort": one_of("none", "minimal", "low", "medium", "high", "xhigh", "max"),
        "return_prompt_text": FLAG,
        "tool_choice": Shape({"type": ["string", "object"]}),
        "tools": Shape(
            {
                "type": "array",
                "items": {"$ref": "#/components/schemas/Tool"},
                "minItems": 1,
                "maxItems": "tools",
            }
        ),
        "top_logprobs": Whole("logprobs", negative=False),
    },
    ignored={
        **_IGNORED,
        # Each of these would change the reply, so only the value that asks for nothing is taken.
        "audio": (None,),
        "function_call": (None,),
        "functions": (None,),
        "modalities": (None, ["text"]),
        "verbosity": (None, "medium"),
        "web_search_options": (None,),
        # A guess at the reply that may speed it up, and never changes it.
        "prediction": None,
    },
    privileged=PRIVILEGED | {"chat_template"},
)
COMPLETIONS = Table(
    open={
        **_SAMPLING,
        "prompt": Shape(
            {
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": "string"}, "maxItems": "prompts"},
                    {"type": "array", "items": {"$ref": "#/components/schemas/TokenId"}, "maxItems": "prompt_tokens"},
                    {
                        "type": "array",
                        "items": {
                            "type": "array",
                            "items": {"$ref": "#/components/schemas/TokenId"},
                            "maxItems": "prompt_tokens",
                        },
                        "maxItems": "prompts",
                    },
                ]
            }
        ),
        "logprobs": Whole("logprobs", negative=False),
        "suffix": TEXT,
    },
    # vLLM knows no best_of: one that is n asks for nothing more, and `limits` refuses any other.
    ignored={**_IGNORED, "best_of": None},
    privileged=PRIVILEGED | {"prompt_embeds"},
)
ROUTES: Mapping[Route, Table] = {Route.CHAT: CHAT, Route.COMPLETIONS: COMPLETIONS}

_CACHE_HINT: Mapping[str, tuple[Any, ...] | None] = {"cache_control": None}
MESSAGE = Table(
    open={
        "role": TEXT,
        "content": Shape(
            {
                "anyOf": [
                    {"type": ["string", "null"]},
                    {"type": "array", "items": {"$ref": "#/components/schemas/Part"}},
                ]
            }
        ),
        "name": TEXT,
        "reasoning": TEXT,
        "reasoning_content": TEXT,
        "refusal": TEXT,
        "tool_call_id": TEXT,
        "tool_calls": Shape({"type": "array", "items": {"$ref": "#/components/schemas/ToolCall"}}),
    },
    # What a reply of OpenAI's or vLLM's holds beside the text: clients send it back as it came.
    ignored={"annotations": None, "audio": (None,), "function_call": (None,), "parsed": None, **_CACHE_HINT},
    # Tool descriptions in a developer's message would evade the bounds of `tools`; `author` makes it another format.
    privileged=frozenset({"author", "recipient", "channel", "content_type", "task", "tools"}),
)


def _text_part(kind: str, name: str, **more: Spec) -> Table:
    return Table(open={"type": one_of(kind), name: TEXT, **more}, ignored={"annotations": None, **_CACHE_HINT})


TEXT_PARTS: Mapping[str, Table] = {
    "text": _text_part("text", "text"),
    "input_text": _text_part("input_text", "text"),
    "output_text": _text_part("output_text", "text"),
    "refusal": _text_part("refusal", "refusal"),
    "thinking": _text_part("thinking", "thinking", closed=FLAG),
}
IMAGE_PART = Table(
    open={"type": one_of("image_url"), "image_url": OBJECT},
    # A caller's name for the image is the key of vLLM's media cache: it is dropped, and the server's own put there.
    ignored={"uuid": None, **_CACHE_HINT},
)
IMAGE_URL = Table(
    open={"url": Shape({"type": "string", "pattern": "^data:image/(png|jpeg|webp|gif);base64,"})},
    ignored={"detail": None},
)
TOOL_CALL = Table(open={"id": TEXT, "type": one_of("function"), "function": OBJECT}, ignored={"index": None})
CALLED_FUNCTION = Table(open={"name": TEXT, "arguments": TEXT}, ignored={"parsed_arguments": None})
TOOL = Table(open={"type": one_of("function"), "function": OBJECT, "defer_loading": FLAG}, ignored=_CACHE_HINT)
FUNCTION = Table(
    open={"name": TEXT, "description": TEXT, "parameters": OBJECT, "strict": FLAG, "defer_loading": FLAG},
    ignored=_CACHE_HINT,
)
TOOL_CHOICE = Table(open={"type": one_of("function"), "function": OBJECT})
CHOSEN_FUNCTION = Table(open={"name": TEXT})
STREAM_OPTIONS = Table(
    open={"include_usage": FLAG, "continuous_usage_stats": FLAG}, ignored={"include_obfuscation": None}
)
RESPONSE_FORMAT = Table(
    open={"type": TEXT, "json_schema": OBJECT, "format": OBJECT, "structures": OBJECT, "triggers": OBJECT}
)
JSON_SCHEMA = Table(open={"name": TEXT, "description": TEXT, "schema": OBJECT, "strict": FLAG})
STRUCTURED_OUTPUTS = Table(
    open={
        "json": Shape({"type": ["string", "object"]}),
        "regex": TEXT,
        "choice": Shape({"type": "array", "items": {"type": "string"}}),
        "grammar": TEXT,
        "json_object": FLAG,
        "structural_tag": TEXT,
        "disable_any_whitespace": FLAG,
        "disable_additional_properties": FLAG,
        "whitespace_pattern": TEXT,
    },
    privileged=frozenset({"_backend", "_backend_was_auto", "backend"}),
)
REPETITION_DETECTION = Table(
    open={"max_pattern_size": Whole(64), "min_pattern_size": Whole(64), "min_count": Whole(INT64)}
)
