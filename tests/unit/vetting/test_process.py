"""The checking process: its limits, what becomes of a check when it is killed, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from jubako.engine.vllm.vetting import Vetting
from jubako.engine.vllm.vetting_child import Setting
from jubako.errors import Busy, InvalidRequest, Unavailable
from tests.grammars import SLOW, constraint, unlike
from tests.project import until

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]


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


# -- who waits for it


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


# -- its end


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
    assert child.nice() == min(psutil.Process().nice() + 10, 19)
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
