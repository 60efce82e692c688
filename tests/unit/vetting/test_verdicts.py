"""What the real checking process says of schemas and grammars, on the demo model's own tokenizer. No engine runs."""

from __future__ import annotations

import pytest

from jubako.engine.vllm import vetting as vetting_module
from jubako.engine.vllm.vetting import Vetting
from jubako.errors import InvalidRequest
from tests.grammars import COSTLY, ORDINARY, WRONG, constraint

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]


@pytest.mark.parametrize("name", ORDINARY)
async def test_what_callers_ordinarily_ask_for_is_allowed(shared: Vetting, name: str) -> None:
    """Vetting is no obstacle to what schemas are for."""
    await shared.vet(constraint(ORDINARY[name]))


@pytest.mark.parametrize("name", COSTLY)
async def test_what_costs_too_much_is_refused_as_that(shared: Vetting, name: str) -> None:
    """The caller is told that it is the cost, and which field."""
    with pytest.raises(InvalidRequest, match=r"is too costly (to|for)") as caught:
        await shared.vet(constraint(COSTLY[name]))
    assert caught.value.param == "response_format"


@pytest.mark.parametrize("name", WRONG)
async def test_what_is_wrong_is_refused_before_the_engine_could_find_it(shared: Vetting, name: str) -> None:
    """What the engine finds would be a fault of the server."""
    with pytest.raises(InvalidRequest, match="not supported") as caught:
        await shared.vet(constraint(WRONG[name]))
    assert len(caught.value.message) < 400
    assert ".cc:" not in caught.value.message


@pytest.mark.parametrize("value", [float("nan"), 10**5000, {1, 2}], ids=["nan", "huge", "set"])
async def test_what_is_not_json_is_the_caller_s_fault(shared: Vetting, value: object) -> None:
    """It could not even be sent to the process."""
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        await shared.vet(constraint({"json": {"const": value}}))


async def test_what_the_libraries_print_of_a_schema_is_in_no_log(
    shared: Vetting, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """xgrammar writes to standard error from C++."""
    secret = "very-secret-word"
    schema = {"type": "number", "multipleOf": 5, "unknown-key": secret, "title": secret}
    for fields in ({"json": schema}, {"grammar": f'root ::= "{secret}'}, {"regex": f"{secret}(?=x)["}):
        try:
            await shared.vet(constraint(fields))
        except InvalidRequest:
            continue
    out, err = capfd.readouterr()
    assert secret not in out + err + caplog.text


async def test_memory_of_verdicts_has_a_bound(shared: Vetting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten."""
    monkeypatch.setattr(vetting_module, "VERDICTS", 3)
    for number in range(5):
        await shared.vet(constraint({"choice": [f"choice {number}"]}))
    assert len(shared._verdicts) == 3


async def test_the_order_of_properties_tells_schemas_apart() -> None:
    """It is part of the grammar."""
    one, two = ({"json": {"type": "object", "properties": {key: {} for key in names}}} for names in ("ab", "ba"))
    assert constraint(one).encoded() != constraint(two).encoded()
