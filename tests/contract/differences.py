"""The declared differences: from vLLM's reply, what Jubako promises instead, and why.

Each is a rewriting of vLLM's reply, so that everything it does not rewrite is still compared. They are applied in the
order of `DECLARED`. A difference that no reply needs any more is stale, and so is a request that is named in vain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.contract.compare import Text
from tests.contract.corpus import BASE, CONTEXT_TOKENS, Request
from tests.contract.exchange import DONE, Reply

JSON = {"content-type": "application/json"}
TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "invalid_request_error"}
TOO_LONG = re.compile(r"maximum context length|max_model_len")
SENTENCE = Text(r"[A-Z`].*")
NO_VALUE = Text(r"(?!.*('input'|input_value)).+")


@dataclass(frozen=True, slots=True)
class Declared:
    """One declared difference; `only` names the requests it is for, if it is not for all that look alike."""

    name: str
    difference: str
    reason: str
    rewrite: Callable[[Reply], Reply | None]
    only: tuple[str, ...] = ()

    def applied(self, request: Request, reply: Reply) -> Reply:
        """`reply` as Jubako promises it, as far as this difference goes."""
        if self.only and request.name not in self.only:
            return reply
        return self.rewrite(reply) or reply


def promised(request: Request, reply: Reply, declared: Iterable[Declared]) -> Reply:
    """What Jubako promises to say where vLLM says `reply`."""
    for one in declared:
        reply = one.applied(request, reply)
    return reply


def refusal(status: int, kind: str, code: Any, message: Any = SENTENCE, param: Any = None, **headers: str) -> Reply:
    """A refusal in Jubako's shape."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return Reply(status, JSON | headers, document={"error": error})


def _error(reply: Reply) -> Mapping[str, Any] | None:
    document = reply.document
    if reply.status < 400 or not isinstance(document, dict) or not isinstance(document.get("error"), dict):
        return None
    error: Mapping[str, Any] = document["error"]
    return error


def _with_error(reply: Reply, **fields: Any) -> Reply:
    return replace(reply, document={"error": {**(_error(reply) or {}), **fields}})


def _status_before_stream(reply: Reply) -> Reply | None:
    if len(reply.events) != 2 or reply.events[1] != DONE or "error" not in reply.events[0]:
        return None
    return Reply(reply.events[0]["error"]["code"], JSON, document=reply.events[0])


def _plain_words(reply: Reply) -> Reply | None:
    error = _error(reply)
    if error is None or error["type"] != "Bad Request":
        return None
    missing = "'type': 'missing'" in error["message"].splitlines()[1]
    code = "missing_field" if missing else "invalid_value"
    return refusal(reply.status, TYPES[400], code, NO_VALUE, (error["param"] or "").removeprefix("body."))


def _no_values(reply: Reply) -> Reply | None:
    error = _error(reply)
    if error is None or not isinstance(error["message"], str):
        return None
    return _with_error(reply, message=re.sub(r" \(parameter=.*\)$", "", error["message"], flags=re.DOTALL))


def _one_error_shape(reply: Reply) -> Reply | None:
    error = _error(reply)
    if error is None or not isinstance(error["code"], int):
        return None
    code = "context_length_exceeded" if TOO_LONG.search(error["message"]) else "invalid_value"
    return _with_error(reply, type=TYPES[error["code"]], code=code)


def _unknown_url(reply: Reply) -> Reply:
    return refusal(404, "invalid_request_error", "unknown_url")


def _method_not_allowed(reply: Reply) -> Reply:
    return refusal(405, "invalid_request_error", "method_not_allowed", allow=reply.headers["allow"])


def _invalid_json(reply: Reply) -> Reply:
    return refusal(400, "invalid_request_error", "invalid_json")


def _unsupported_media_type(reply: Reply) -> Reply:
    return refusal(415, "invalid_request_error", "unsupported_media_type")


def _no_model(reply: Reply) -> Reply:
    return refusal(404, "invalid_request_error", "model_not_found", Text("(?!.*smollm2)The model .*"), "model")


def _privileged(reply: Reply) -> Reply:
    fields = "priority|chat_template|cache_salt"
    return refusal(400, "invalid_request_error", "unknown_field", param=Text(fields))


def _hard_limit(reply: Reply) -> Reply:
    return refusal(400, "invalid_request_error", "unsupported_value", Text(r"\S+: .+"), Text(r"\S+"))


def _scored(reply: Reply) -> Reply:
    return refusal(400, "invalid_request_error", "unsupported_value")


def _image(reply: Reply) -> Reply:
    message = Text(r"messages\.0\.content\.0\.image_url\.url: .+")
    return refusal(400, "invalid_request_error", "invalid_value", message, "messages.0.content.0.image_url.url")


def _vetted(reply: Reply) -> Reply:
    code, param = Text("invalid_value|unsupported_value"), Text(r"(response_format|structured_outputs).*")
    return refusal(400, "invalid_request_error", code, Text(".+"), param)


def _unknown_field(reply: Reply) -> Reply:
    return refusal(400, "invalid_request_error", "unknown_field", param="colour")


def _key_required(reply: Reply) -> Reply:
    return refusal(401, "authentication_error", "missing_api_key")


def _no_folders(reply: Reply) -> Reply:
    cards = [card | {"root": card["id"]} for card in reply.document["data"]]
    return replace(reply, document=reply.document | {"data": cards})


def _one_model(reply: Reply) -> Reply:
    permission = {
        "id": "modelperm-0",
        "object": "model_permission",
        "created": 1_700_000_000,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": BASE,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "vllm",
        "root": BASE,
        "parent": None,
        "max_model_len": CONTEXT_TOKENS,
        "permission": [permission],
    }
    return Reply(200, JSON, document=card)


DECLARED = (
    Declared(
        "status-before-stream",
        "A stream that the engine refuses gets the refusal's status; vLLM says 200, an error event, `[DONE]`.",
        "Programs, gateways and dashboards decide by the status: after 200 a refusal is counted as an answer.",
        _status_before_stream,
    ),
    Declared(
        "unknown-url",
        'An unknown path is refused with the error object; vLLM says `{"detail": "Not Found"}`.',
        "The SDKs read `error.message` and `error.code`; one shape for every refusal.",
        _unknown_url,
        ("a path that does not exist is refused",),
    ),
    Declared(
        "method-not-allowed",
        'A wrong method is refused with the error object; vLLM says `{"detail": "Method Not Allowed"}`.',
        "One shape for every refusal.",
        _method_not_allowed,
        ("a method that does not exist is refused",),
    ),
    Declared(
        "invalid-json",
        "A body that is no JSON object, or no text, is refused with `invalid_json` and a plain sentence.",
        "vLLM has several answers, some without an error object; none has a code to act on.",
        _invalid_json,
        (
            "a body that is not JSON is refused",
            "an empty body is refused",
            "a body that is not an object is refused",
            "a body that is not UTF-8 is refused",
            "a number beyond all bounds is refused",
            "a body that is nested too deep is refused",
            "a number that JSON does not have is refused",
            "half a character is refused",
        ),
    ),
    Declared(
        "media-type",
        "A body that does not say it is JSON is refused with 415; vLLM says 400.",
        "415 is what HTTP has for it, and what a gateway tells apart.",
        _unsupported_media_type,
        (
            "a body that does not say it is JSON is refused",
            "JSON of another kind is refused",
            "JSON that says it is text is refused",
        ),
    ),
    Declared(
        "model-not-found",
        "An unknown model is refused with `model_not_found`, and no other names; vLLM lists its aliases.",
        "What exists is told by `GET /v1/models` alone, which knows what the caller may see.",
        _no_model,
        (
            "chat with an unknown model is refused",
            "a stream of an unknown model is refused",
            "completion with an unknown model is refused",
            "a model that does not exist is not shown",
        ),
    ),
    Declared(
        "one-model",
        "`GET /v1/models/{alias}` shows one model; vLLM has no such path.",
        "OpenAI's API has it, and its SDK calls it.",
        _one_model,
        ("one model is shown",),
    ),
    Declared(
        "no-folders",
        "`root` of a model is its alias; vLLM shows the folder on the server's disk.",
        "Where files lie is not the caller's business.",
        _no_folders,
        ("models are listed",),
    ),
    Declared(
        "privileged-fields",
        "Fields that reach past the boundary are refused with `unknown_field`; vLLM takes most of them.",
        "A caller could read another's cache, jump the queue, or run a template of its own.",
        _privileged,
        (
            "chat with a privileged field is refused",
            "chat with its own template is refused",
            "chat with its own cache salt is refused",
        ),
    ),
    Declared(
        "key-required",
        "A request without a key is refused with 401; vLLM, run without `--api-key`, answers it.",
        "Jubako has no mode without keys.",
        _key_required,
        ("a request without a key is asked for one",),
    ),
    Declared(
        "plain-words",
        "A field of a wrong type is refused in a sentence, and `param` is its name without `body.` before it.",
        "vLLM prints a Python dictionary for each type the field might have had, with the caller's value in it.",
        _plain_words,
    ),
    Declared(
        "unknown-field",
        "A field that is in no table is refused with `unknown_field` and the nearest known name; vLLM ignores it.",
        "What is not known cannot be known to be harmless, and a misspelt field would go unnoticed.",
        _unknown_field,
        ("chat ignores a field nobody knows",),
    ),
    Declared(
        "hard-limits",
        "A value beyond the boundary's limits is refused with `unsupported_value`, before anything is rendered.",
        "The limits are the server's and its policies', and hold whatever the engine would take.",
        _hard_limit,
        (
            "chat with an unknown kind of content is refused",
            "chat with top_p above one is refused",
            "chat with too many top_logprobs is refused",
            "a stream of too many top_logprobs is refused",
            "chat with a presence penalty of three is refused",
            "chat with a seed beyond all bounds is refused",
            "completion with too many logprobs is refused",
            "a completion stream of too many logprobs is refused",
        ),
    ),
    Declared(
        "scored-prompts",
        "Log-probabilities of a prompt are refused where adapters are served; vLLM gives them.",
        "With adapters, one such request ends vLLM's engine if another runs beside it, and all of them with it.",
        _scored,
        (
            "chat gives prompt logprobs",
            "completion gives prompt logprobs",
            "completion echoes its prompt with logprobs",
            "completion scores its prompt alone",
            "completion streams the echo with logprobs",
            "completion streams the score of its prompt alone",
        ),
    ),
    Declared(
        "images",
        "An image that is none is refused as such; vLLM says that the model takes no images.",
        "Images are looked at before anything is rendered, whatever the model.",
        _image,
        ("chat with an image for a model of text is refused",),
    ),
    Declared(
        "vetted-grammars",
        "A schema, regular expression or choice that cannot be used is refused in words of ours, with `param`.",
        "They are tried in a process of their own before the engine has them; vLLM's words quote what was sent.",
        _vetted,
        (
            "chat with a schema that is not one is refused",
            "a stream to a schema that is not one is refused",
            "chat with a broken regular expression is refused",
            "a stream to a broken regular expression is refused",
            "chat with an empty choice is refused",
        ),
    ),
    Declared(
        "no-values",
        "Messages end before vLLM's ` (parameter=…, value=…)`.",
        "The parameter is in `param`; the value may be the caller's text, which no error repeats.",
        _no_values,
    ),
    Declared(
        "one-error-shape",
        "`error.type` is `invalid_request_error` and `error.code` a word; vLLM says `BadRequestError` and the status.",
        "OpenAI's own types and codes: programs act on `code`, and the status is there already.",
        _one_error_shape,
    ),
)
