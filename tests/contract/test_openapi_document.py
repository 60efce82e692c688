"""The OpenAPI document is true of what stands in front of the engine: requests made of it, replies checked by it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from schemathesis import GenerationMode

from jubako.vocabulary import Call, Reply
from tests.contract.wire import SERVER, Wire, serving
from tests.fuzzing import FUZZES, Fuzzing
from tests.scripted_engine import DONE, ScriptedEngine, event, says, streams

WHOLE = says({"id": "x", "object": "text_completion", "choices": []})
STREAMED = streams(event("x"), DONE)


async def as_asked(call: Call) -> Reply:
    """Whole or streamed."""
    return await (STREAMED if call.stream else WHOLE)(call)


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A server whose engine has one answer."""
    engine = ScriptedEngine(as_asked)
    with serving(Wire(tmp_path_factory.mktemp("wire"), engine, SERVER.admission)) as one:
        yield one


@pytest.mark.parametrize(("operation", "mode"), FUZZES, ids=lambda value: getattr(value, "value", value))
def test_the_document_is_true_of_the_boundary(wire: Wire, operation: str, mode: GenerationMode) -> None:
    """Every status is documented, every reply has its schema, and nothing is a fault of the server's."""
    fuzzing = Fuzzing(wire.url.removesuffix("/v1"), wire.key("patient"), "scripted", seconds=5)
    fuzzing.run(operation, mode, examples=40)
    assert fuzzing.statuses.total() > 0
