"""What the real checking process says of schemas and grammars, on the demo model's own tokenizer. No engine runs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from jubako.engine.vllm import vetting as vetting_module
from jubako.engine.vllm.vetting import Constraint, Vetting
from jubako.engine.vllm.vetting_child import Setting
from jubako.errors import Busy, InvalidRequest, Unavailable
from tests.project import until

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

NAMES = [f"field{i}" for i in range(30)]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}, "tags": {"type": "array"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value"],
        }
    },
    "$ref": "#/$defs/node",
}
TOOLS_TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<call>",
        "content": {"type": "json_schema", "json_schema": PERSON},
        "end": "</call>",
    },
}
ORDINARY: dict[str, dict[str, Any]] = {
    "object": {"json": PERSON},
    "object as text": {"json": json.dumps(PERSON)},
    "nested": {"json": {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": PERSON}}}}},
    "recursive": {"json": TREE},
    "many fields": {
        "json": {"type": "object", "properties": {n: {"type": ["string", "null"]} for n in NAMES}, "required": NAMES}
    },
    "any of": {"json": {"anyOf": [PERSON, {"type": "null"}, {"type": "array", "items": PERSON}]}},
    "long enum": {"json": {"enum": [f"country number {i}" for i in range(500)]}},
    "bounded text": {"json": {"type": "string", "minLength": 1, "maxLength": 200}},
    "bounded list": {"json": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 1000}},
    "date": {"json": {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}}},
    "pattern": {"json": {"type": "string", "pattern": r"^[A-Z]{2}-\d{4}$"}},
    "unicode pattern": {"json": {"type": "string", "pattern": "^[ぁ-ん一-龯äöü]{1,20}$"}},
    "unicode enum": {"json": {"enum": ["はい", "いいえ", "naïve"]}},
    "any object": {"json_object": True},
    "telephone": {"regex": r"\+?\d{1,3}[ -]?\d{3,4}[ -]?\d{4,8}"},
    "address": {"regex": r"[\w.+-]+@[\w-]+\.[\w.]{2,20}"},
    "choices": {"choice": ["positive", "negative", 'with "quotes"', "新しい"]},
    "grammar": {"grammar": 'root ::= expr\nexpr ::= term ("+" term)*\nterm ::= [0-9]+ | "(" expr ")"'},
    "lark grammar": {"grammar": 'start: "yes" | "no"'},
    "structural tag": {"structural_tag": json.dumps(TOOLS_TAG)},
}
COSTLY: dict[str, dict[str, Any]] = {
    "nested repetition": {"regex": "((((a{0,60}){0,60}){0,60}){0,60})"},
    "endless ambiguity": {"regex": "(a|aa|aaa|aaaa)*" * 400},
    "deep parentheses": {"regex": "(" * 20_000 + "a" + ")" * 20_000},
    "a million items": {"json": {"type": "array", "minItems": 1_000_000, "maxItems": 1_000_000_000}},
    "many rules": {
        "grammar": "root ::= "
        + " ".join(f"r{i}" for i in range(3000))
        + "".join(f'\nr{i} ::= [a-z]{{0,50}} | ""' for i in range(3000))
    },
}
WRONG: dict[str, dict[str, Any]] = {
    "class that is not known": {"regex": r"\p{L}+"},
    "unclosed class": {"regex": "[a-"},
    "nul": {"regex": "a\x00b"},
    "lone surrogate": {"regex": "\ud800"},
    "no schema": {"json": "{"},
    "a number for a schema": {"json": "3"},
    "schema of itself": {"json": {"$ref": "#"}},
    "reference to nothing": {"json": {"$ref": "#/$defs/none"}},
    "nothing is allowed": {"json": {"enum": []}},
    "no rule": {"grammar": "root ::= missing"},
    "no choice": {"choice": []},
    "two kinds": {"regex": "a", "choice": ["b"]},
    "no tag": {"structural_tag": "{}"},
    "a million things that may not be, in a tag": {
        "structural_tag": json.dumps(
            {
                "type": "structural_tag",
                "format": {"type": "json_schema", "json_schema": {"type": "array", "minItems": 10**6}},
            }
        )
    },
}
SLOW = COSTLY["deep parentheses"]


@pytest.fixture(scope="module")
def setting(model_folder: Path) -> Setting:
    """The demo model's, as the engine has it."""
    config = json.loads((model_folder / "config.json").read_text())
    return Setting(
        tokenizer=str(model_folder),
        tokenizer_mode="auto",
        tokenizer_revision=None,
        trust_remote_code=False,
        vocabulary_size=config["vocab_size"],
        model_type=config["model_type"],
        backend="auto",
        disable_any_whitespace=False,
        disable_additional_properties=False,
        processor_seconds=4,
        wall_seconds=40,
        memory_bytes=512 << 20,
    )


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared(setting: Setting) -> AsyncIterator[Vetting]:
    """One process for all tests that leave it as they found it."""
    vetting = Vetting(setting)
    yield vetting
    await vetting.close()


@pytest_asyncio.fixture(loop_scope="module")
async def alone(setting: Setting) -> AsyncIterator[Vetting]:
    """A process of the test's own."""
    vetting = Vetting(setting)
    yield vetting
    await vetting.close()


def constraint(fields: dict[str, Any]) -> Constraint:
    """One that came as `response_format`."""
    return Constraint(fields, "response_format")


def unlike(number: int) -> Constraint:
    """A slow one that no other is equal to."""
    return constraint({"regex": "b" * number + SLOW["regex"]})


async def started(vetting: Vetting) -> psutil.Process:
    """Its process, ready."""
    await vetting.vet(constraint({"json_object": True}))
    assert vetting.process_id is not None
    return psutil.Process(vetting.process_id)


async def checking(process: psutil.Process) -> psutil.Process:
    """The fork that does the check under way."""
    while not (forks := process.children()):
        await asyncio.sleep(0.01)
    return forks[0]


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


async def test_costly_grammars_are_found_by_one_process_that_stays(shared: Vetting) -> None:
    """A check that is killed is a fork; the process with the long start goes on."""
    process = await started(shared)
    with pytest.raises(InvalidRequest):
        await shared.vet(unlike(7))
    assert shared.process_id == process.pid
    await shared.vet(constraint({"regex": "still here"}))


async def test_memory_is_limited(setting: Setting) -> None:
    """What would take more than allowed is refused, and was never taken."""
    vetting = Vetting(replace(setting, memory_bytes=80 << 20))
    try:
        process = await started(vetting)
        schema = {"enum": [f"{i:0100d}" for i in range(60_000)]}
        check = asyncio.create_task(vetting.vet(constraint({"json": schema})))
        most = 0
        while not check.done():
            for fork in process.children():
                try:
                    most = max(most, fork.memory_info().data)
                except psutil.Error:
                    continue
            await asyncio.sleep(0.01)
        with pytest.raises(InvalidRequest, match="too costly"):
            await check
        assert 0 < most - process.memory_info().data <= (80 << 20) + (32 << 20)
    finally:
        await vetting.close()


async def test_a_check_that_gets_no_processor_is_given_up_and_not_remembered(setting: Setting) -> None:
    """Then the machine is to blame and not the grammar: the caller may come again."""
    vetting = Vetting(replace(setting, processor_seconds=100, wall_seconds=0.5))
    try:
        with pytest.raises(Busy) as caught:
            await vetting.vet(constraint(SLOW))
        assert caught.value.code == "queue_full"
        assert not vetting._verdicts
    finally:
        await vetting.close()


async def test_a_process_that_is_killed_while_it_checks_is_replaced(alone: Vetting) -> None:
    """The check begins anew in the next one; the fork of the killed one goes with it."""
    process = await started(alone)
    check = asyncio.create_task(alone.vet(unlike(1)))
    fork = await checking(process)
    process.kill()
    with pytest.raises(InvalidRequest, match="too costly"):
        await check
    assert alone.process_id not in {None, process.pid}
    await asyncio.to_thread(until, lambda: not fork.is_running(), "the fork is gone", 5)


async def test_a_process_that_is_terminated_ends_and_another_takes_its_place(alone: Vetting) -> None:
    """SIGTERM reaches every process of the server at its end; requests in flight may still bring a grammar."""
    process = await started(alone)
    process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(process.wait, 10)
    await alone.vet(constraint({"regex": "after the end"}))


async def test_a_killed_check_is_a_refusal_and_not_a_fault(shared: Vetting) -> None:
    """Whatever kills the fork, its grammar would have killed the engine."""
    process = await started(shared)
    check = asyncio.create_task(shared.vet(unlike(2)))
    (await checking(process)).kill()
    with pytest.raises(InvalidRequest, match="too costly"):
        await check


async def test_a_verdict_is_remembered(shared: Vetting) -> None:
    """A stopped process answers nothing, so the second answer comes from memory."""
    good, bad = constraint({"regex": "remembered"}), constraint({"regex": "[not remembered"})
    await shared.vet(good)
    with pytest.raises(InvalidRequest):
        await shared.vet(bad)
    process = await started(shared)
    process.suspend()
    try:
        await asyncio.wait_for(shared.vet(good), 90)
        with pytest.raises(InvalidRequest):
            await asyncio.wait_for(shared.vet(bad), 90)
    finally:
        process.resume()


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


async def test_a_cancelled_caller_leaves_the_queue(shared: Vetting) -> None:
    """What nobody waits for any more is not checked."""
    process = await started(shared)
    first = asyncio.create_task(shared.vet(unlike(3)))
    await checking(process)
    second = asyncio.create_task(shared.vet(unlike(4)))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    with pytest.raises(InvalidRequest):
        await first
    await shared.vet(constraint({"regex": "after"}))
    assert not shared._queue.waiting
    assert hashlib.sha256(unlike(4).encoded()).digest() not in shared._verdicts


async def test_callers_of_one_grammar_wait_for_one_check(shared: Vetting) -> None:
    """However many ask at once."""
    same = [asyncio.create_task(shared.vet(constraint({"regex": "asked for by many"}), f"t{n}")) for n in range(200)]
    await asyncio.sleep(0)
    assert len(shared._queue.waiting) == 1
    await asyncio.gather(*same)


async def test_a_flood_of_one_tenant_lets_another_pass_after_one_check(shared: Vetting) -> None:
    """Tenants take turns, and what is too much for one is refused at once."""
    process = await started(shared)
    flood = [asyncio.create_task(shared.vet(unlike(10 + n), "flood")) for n in range(40)]
    await checking(process)
    refused = [task for task in flood if task.done()]
    assert refused
    assert all(isinstance(task.exception(), Busy) for task in refused)
    waiting = [task for task in flood if not task.done()]
    await shared.vet(constraint({"regex": "an ordinary one"}), "neighbour")
    assert sum(task.done() for task in waiting) <= 1
    popular = asyncio.create_task(shared.vet(unlike(10 + 15), "neighbour"))
    with pytest.raises(InvalidRequest):
        await popular  # the flood's last one, in the neighbour's turn
    assert sum(task.done() for task in waiting) <= 4
    for task in waiting:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)


async def test_nothing_is_left_after_close(setting: Setting) -> None:
    """Not the process, not its fork, and nobody waits for ever."""
    vetting = Vetting(setting)
    process = await started(vetting)
    checks = [asyncio.create_task(vetting.vet(unlike(60 + n))) for n in range(3)]
    fork = await checking(process)
    await vetting.close()
    for result in await asyncio.gather(*checks, return_exceptions=True):
        assert isinstance(result, Unavailable)
    await asyncio.to_thread(until, lambda: not process.is_running() and not fork.is_running(), "both gone", 5)
    with pytest.raises(Unavailable):
        await vetting.vet(constraint({"regex": "too late"}))


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
async def test_it_ends_with_the_server_however_that_ends(setting: Setting, signum: signal.Signals) -> None:
    """A process that outlived the server would be found by nobody."""
    script = (
        "import asyncio, json, sys\n"
        "from jubako.engine.vllm.vetting import Constraint, Vetting\n"
        "from jubako.engine.vllm.vetting_child import Setting\n"
        "async def main():\n"
        "    vetting = Vetting(Setting(**json.loads(sys.argv[1])))\n"
        "    await vetting.vet(Constraint({'json_object': True}, None))\n"
        "    print(vetting.process_id, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    described = json.dumps({name: getattr(setting, name) for name in Setting.__slots__})
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, described, stdout=asyncio.subprocess.PIPE, env=os.environ
    )
    assert server.stdout is not None
    child = psutil.Process(int(await server.stdout.readline()))
    assert child.nice() == 10
    server.send_signal(signum)
    await server.wait()
    await asyncio.to_thread(until, lambda: not child.is_running(), "the child is gone", 5)


async def test_a_process_that_cannot_start_refuses_and_says_why(
    setting: Setting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Closed on failure: no grammar passes unchecked."""
    vetting = Vetting(replace(setting, tokenizer=str(tmp_path)))
    for _ in range(2):
        with pytest.raises(Unavailable):
            await vetting.vet(constraint({"json_object": True}))
    assert "did not start" in caplog.text
    assert caplog.text.count("did not start") == 1
    await vetting.close()


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
