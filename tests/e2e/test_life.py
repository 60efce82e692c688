"""The life of the real server: drain, kills, stalls. Each test starts a server of its own and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import tenants
from tests.callers import ENDLESS, finishing, models, streaming
from tests.contract.corpus import CONTEXT_TOKENS, UNHURRIED
from tests.project import Project, Served, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture
def project(tmp_path: Path, model_folder: Path) -> Project:
    """The demo release in a folder of its own, with room for a stream without end."""
    context = {"JUBAKO__ENGINE__OPTIONS__MAX_MODEL_LEN": str(CONTEXT_TOKENS)}
    made = Project.copy_to(tmp_path / "project", context | UNHURRIED)
    tenants.be_patient(made)
    return made


@pytest.fixture
def server(project: Project) -> Iterator[Served]:
    """A server that is ready."""
    with project.serving() as served:
        yield served.wait_ready()


def test_sigterm_drains_and_leaves_nothing(server: Served) -> None:
    """Unready at once, new requests are refused with advice, streams in flight finish, exit 0."""
    with finishing(server) as callers:
        server.terminate()
        until(lambda: models(server).status_code == 503, "new requests are refused")
        refused = models(server)
        assert refused.json()["error"]["code"] == "draining"
        assert refused.headers["x-should-retry"] == "true"
        assert int(refused.headers["retry-after"]) >= 1
        assert httpx.get(f"{server.url}/readyz", timeout=60).status_code == 503
        assert not any(caller.completed for caller in callers), "the streams ended before the drain was seen"
    assert [(caller.status, caller.end) for caller in callers] == [(200, "[DONE]")] * len(callers)
    assert server.wait_end() == 0
    assert '"level":"error"' not in server.log.partition("draining:")[2]
    server.assert_nothing_left()


def test_streams_beyond_the_drain_time_are_told(project: Project) -> None:
    """What does not finish in time ends in an error event, not in silence."""
    project.environment["JUBAKO__LIFE__DRAIN_SECONDS"] = "1"
    with project.serving() as server:
        server.wait_ready()
        with streaming(server) as callers:
            server.terminate()
        assert [caller.end for caller in callers] == ["draining"] * len(callers)
        assert server.wait_end() == 0
        server.assert_nothing_left()


def test_callers_who_left_do_not_hold_the_end_up(project: Project) -> None:
    """A caller who leaves before any reply leaves nothing behind that a shutdown would wait for."""
    project.environment["JUBAKO__LIFE__DRAIN_SECONDS"] = "300"
    body = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": ENDLESS, "ignore_eos": True}
    with project.serving() as server:
        headers = {"authorization": f"Bearer {server.wait_ready().key}"}
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{server.url}/v1/completions", headers=headers, json=body, timeout=1)
        until(lambda: server.log.count("outcome=cancelled") == 3, "the server saw them leave")
        server.terminate()
        assert server.wait_end(150) == 0
        server.assert_nothing_left()


def test_a_request_that_cannot_be_encoded_leaves_nothing_unfinished(project: Project) -> None:
    """A number too large for the engine's wire is refused, and an idle engine does not look stalled afterwards."""
    project.environment["JUBAKO__LIFE__STALL_SECONDS"] = "4"
    with project.serving() as server:
        server.wait_ready()
        body = {"model": "smollm2", "prompt": "hello", "max_tokens": 2}
        for fields in (
            {"top_k": 10**30},
            {"top_k": 10**30, "stream": True},
            {"top_k": 10**30, "temperature": 1, "n": 2},
        ):
            reply = httpx.post(
                f"{server.url}/v1/completions", headers={"authorization": f"Bearer {server.key}"}, json=body | fields
            )
            assert reply.status_code == 400, reply.text
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait_end(10)  # more than twice the stall
        assert models(server).status_code == 200


def test_death_of_the_engine_is_told_and_ends_the_server(server: Served) -> None:
    """Callers get an error event, the process ends with a status an orchestrator acts on."""
    with streaming(server) as callers:
        server.engine_core().kill()
    assert [caller.end for caller in callers] == ["engine_unavailable"] * len(callers)
    assert server.wait_end() == 1
    assert "the engine died" in server.log
    server.assert_nothing_left()


def test_a_stalled_engine_is_noticed(project: Project) -> None:
    """An engine that lives but takes no step is treated as dead."""
    project.environment["JUBAKO__LIFE__STALL_SECONDS"] = "10"
    with project.serving() as server:
        server.wait_ready()
        with streaming(server) as callers:
            server.engine_core().send_signal(signal.SIGSTOP)
        assert [caller.end for caller in callers] == ["engine_unavailable"] * len(callers)
        assert server.wait_end() == 1
        assert "unfinished requests and took no step" in server.log
        server.assert_nothing_left()


def test_kill_of_the_worker_leaves_nothing(server: Served) -> None:
    """The engine's processes do not outlive their owner, and the server does not respawn in silence."""
    with streaming(server) as callers:
        server.worker().kill()
    assert not any(caller.completed for caller in callers)
    assert all(caller.broken is not None for caller in callers), "a cut stream must not look complete"
    assert server.wait_end() == 1
    server.assert_nothing_left()


def test_kill_of_the_arbiter_drains_the_worker(server: Served) -> None:
    """A worker without its arbiter finishes what it has and goes."""
    with finishing(server) as callers:
        server.process.kill()
    assert [caller.end for caller in callers] == ["[DONE]"] * len(callers)
    server.assert_nothing_left()


def test_sigterm_while_starting_ends_at_once(project: Project) -> None:
    """Nobody waits for a model that nobody wants any more."""
    with project.serving() as server:
        until(lambda: "EngineCore" in " ".join(p.name() for p in server.processes()), "the engine is starting", 120)
        assert httpx.get(f"{server.url}/readyz", timeout=60).status_code == 503
        assert models(server).json()["error"]["code"] == "not_ready"
        server.terminate()
        assert server.wait_end(30) == 0
        server.assert_nothing_left()


def test_ctrl_c_is_a_drain(project: Project) -> None:
    """SIGINT to the whole foreground group, as a terminal sends it, still lets streams finish."""
    with project.serving() as server:
        server.wait_ready()
        with finishing(server) as callers:
            group = os.getpgid(server.process.pid)
            assert group == server.process.pid
            os.killpg(group, signal.SIGINT)
        assert [caller.end for caller in callers] == ["[DONE]"] * len(callers)
        assert server.wait_end() == 0
        server.assert_nothing_left()


def test_a_second_server_leaves_the_first_unharmed(server: Served, project: Project) -> None:
    """The same port is refused with advice before anything is touched; the first goes on, its metrics too."""
    port = int(server.url.rpartition(":")[2])
    second = project.jubako("serve", "--port", str(port))
    assert second.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in second.stderr
    assert "PORT=" in second.stderr
    assert "Traceback" not in second.stderr
    assert models(server).status_code == 200
    operator = {"authorization": f"Bearer {server.operator_key}"}
    metrics = httpx.get(f"{server.url}/metrics", headers=operator, timeout=60).text
    assert "vllm:num_requests_running" in metrics
    assert "process_resident_memory_bytes" in metrics
