"""What `make soak` says follows from what was measured; a promise not kept, or not measured, fails."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bench.pages import marks
from tests.bench.soak import document, sampling, verdicts
from tests.bench.soak.load import counts
from tests.mixed_load import Sent
from tests.project import REPOSITORY
from tests.reckoning import REST

LEGS = 6
LEG_SECONDS = 100.0
MEBIBYTE = 2**20
Report = dict[str, Any]


def process(**changes: int) -> dict[str, int]:
    """One process as it is sampled."""
    return (
        {"pid": 7, "own_bytes": 700 * MEBIBYTE, "resident_bytes": 800 * MEBIBYTE}
        | {
            "descriptors": 60,
            "threads": 40,
        }
        | changes
    )


def rest(number: int) -> dict[str, Any]:
    """A rest after so many legs, where nothing is left."""
    return {
        "at": number * LEG_SECONDS,
        "gauges": dict.fromkeys(REST, 0.0) | {"jubako_admission_limit_sequences": 32.0},
        "processes": {"serving": process(), "engine": process(own_bytes=300 * MEBIBYTE)},
        "tasks": {"server-run": 1, "budgets-lease": 1},
        "python_threads": {"MainThread": 1, "asyncio": 4},
        "objects": 1000,
        "types": {"builtins.dict": 300},
    }


def leg(number: int) -> dict[str, Any]:
    """A leg with a turn of each reader, and a probe a third of a second."""
    begun = (number - 1) * LEG_SECONDS
    turn = {"streams": 3, "whole": 0, "refused": 0, "bytes": 900}
    slow = turn | {"pace": "slow", "begun": begun, "ended": begun + 60, "cut": 2, "seconds_to_cut": [31.0, 32.0]}
    quick = turn | {"pace": "quick", "begun": begun + 60, "ended": begun + 95, "cut": 0, "seconds_to_cut": []}
    probes = [{"at": begun + n / 3, "first": 0.01, "pace": 0.005, "total": 0.32} for n in range(280)]
    load = {"requests": 1000, "ends": {"whole": 400, "done": 300, "error": 100, "left": 200}, "wrong": 0}
    return {
        "number": number,
        "begun": begun,
        "ended": begun + 95,
        "load": load | {"wrong_ones": []},
        "probes": probes,
        "turns": [slow, quick],
    }


def whole(legs: int = LEGS) -> Report:
    """A run in which every promise holds."""
    return {
        "command": "python -m tests.bench.soak run",
        "date": "2026-11-30",
        "machine": {"processor": "a processor", "cores": 2, "memory_gib": 23, "python": "3.11.7"},
        "versions": {"vllm": "0.32.0"},
        "soak_minutes": 10.0,
        "rests": [rest(number) for number in range(legs + 1)],
        "legs": [leg(number) for number in range(1, legs + 1)],
        "ticks": [[float(at), 700 * MEBIBYTE] for at in range(int(legs * LEG_SECONDS))],
        "faults": [],
        "books": "",
        "log": [],
    }


def failing(report: Report) -> list[str]:
    """The promises that do not hold."""
    return [one.promise for one in verdicts.judge(report) if not one.holds]


def grow(report: Report, bytes_a_rest: int, *, until: int = 100) -> None:
    """Let the serving process hold more at each rest."""
    for number, one in enumerate(report["rests"]):
        one["processes"]["serving"]["own_bytes"] += bytes_a_rest * min(number, until)


def slower(report: Report, factor: float, *, pace: str = "", since_leg: int = 1) -> None:
    """Let the probe's tokens come later: in all turns, or in those of one reader."""
    for one in report["legs"][since_leg - 1 :]:
        spans = [(turn["begun"], turn["ended"]) for turn in one["turns"] if pace in {"", turn["pace"]}]
        for probe in one["probes"]:
            if any(begun <= probe["at"] <= ended for begun, ended in spans):
                probe["pace"] *= factor


def test_a_run_that_leaves_nothing_holds() -> None:
    """Every promise, and each is judged."""
    assert failing(whole()) == []
    assert len(verdicts.judge(whole())) == 17


BREAK: dict[str, tuple[Callable[[Report], object], str]] = {
    "a cache block in use": (lambda r: r["rests"][3]["gauges"].update({"vllm:kv_cache_usage_perc": 0.001}), "cache"),
    "a request under way": (lambda r: r["rests"][6]["gauges"].update({"jubako_requests_in_flight": 1.0}), "cache"),
    "a rest that never came": (lambda r: r["rests"].pop(), "cache"),
    "a leak": (lambda r: grow(r, 4 * MEBIBYTE), "memory of the serving"),
    "a process that was not seen": (lambda r: r["rests"][5]["processes"].pop("engine"), "memory of the engine"),
    "a descriptor": (lambda r: r["rests"][-1]["processes"]["serving"].update(descriptors=61), "descriptors"),
    "a thread": (lambda r: r["rests"][-1]["processes"]["engine"].update(threads=41), "threads"),
    "a task": (lambda r: r["rests"][-1]["tasks"].update({"client-watch": 1}), "tasks"),
    "a task that is gone": (lambda r: r["rests"][-1]["tasks"].pop("budgets-lease"), "tasks"),
    "a slow second half": (lambda r: slower(r, 1.3, since_leg=4), "p99 of the probe's TPOT"),
    "a reader who slows others": (lambda r: slower(r, 1.15, pace="slow"), "beside a slow reader the probe's TPOT p50"),
    "a reader whose bytes are kept": (
        lambda r: [tick.__setitem__(1, tick[1] + 20 * MEBIBYTE) for tick in r["ticks"] if tick[0] % 100 == 50],
        "a slow reader makes the serving process hold",
    ),
    "memory that nobody looked at": (lambda r: r["ticks"].clear(), "a slow reader makes the serving process hold"),
    "a reader who is not cut": (lambda r: r["legs"][2]["turns"][0].update(cut=0), "in each of its turns"),
    "a quick reader who is cut": (lambda r: r["legs"][2]["turns"][1].update(cut=1), "in each of its turns"),
    "a wrong answer": (lambda r: r["legs"][0]["load"].update(wrong=1), "every request of the load"),
    "a load without errors": (lambda r: [one["load"]["ends"].pop("error") for one in r["legs"]], "every request of"),
    "an error in the log": (lambda r: r["log"].append('{"level":"error"}'), "no error"),
    "books that differ": (lambda r: r.update(books="3 reservations are held"), "audit, ledger and metrics"),
    "a leg that failed": (lambda r: r["faults"].append("leg 3: the probe ended with 1"), "every leg"),
}


@pytest.mark.parametrize("what", BREAK)
def test_each_promise_can_be_missed(what: str) -> None:
    """By one thing that is not as it should be, and that promise alone."""
    report = whole()
    change, promise = BREAK[what]
    change(report)
    missed = failing(report)
    assert len(missed) == 1, missed
    assert missed[0].startswith(promise) or promise in missed[0]


def test_memory_may_grow_at_first() -> None:
    """Caches and allocators fill; what counts is the second half."""
    report = whole()
    grow(report, 30 * MEBIBYTE, until=LEGS // 2)
    assert failing(report) == []


def test_one_odd_rest_is_no_growth() -> None:
    """Nor does it hide one, in a run as long as a whole one is."""
    report = whole(12)
    report["rests"][-1]["processes"]["serving"]["own_bytes"] += 30 * MEBIBYTE
    assert failing(report) == []
    grow(report, 5 * MEBIBYTE)
    report["rests"][-1]["processes"]["serving"]["own_bytes"] -= 100 * MEBIBYTE
    assert any("memory of the serving" in one for one in failing(report))


def test_what_was_not_measured_does_not_hold() -> None:
    """Nothing at all holds for a run in which nothing was seen, but for what nobody complained of."""
    report = whole() | {"rests": [], "legs": [], "ticks": []}
    held = [one.promise for one in verdicts.judge(report) if one.holds]
    assert [one.split(",")[0] for one in held] == [
        "no error in the server's log",
        "audit",
        "every leg could be measured",
    ]


def test_threads_of_the_executor_are_no_leak() -> None:
    """It starts them one by one as it needs them, and keeps them."""
    report = whole()
    last = report["rests"][-1]
    last["python_threads"]["asyncio"] += 2
    last["processes"]["serving"]["threads"] += 2
    assert failing(report) == []


def test_a_status_that_no_caller_may_have_is_counted() -> None:
    """A fault of the server, or a connection that broke; not what a caller was refused."""
    sent = [
        Sent(f"r-{n}", "whole", "red", "/v1/nothing", {}, status=status) for n, status in enumerate((200, 429, 500))
    ]
    for one in sent:
        one.end = "whole"
    broken = Sent("r-3", "whole", "red", "/v1/nothing", {}, end="broken")
    found = counts([*sent, broken])
    assert (found["requests"], found["wrong"]) == (4, 2)
    assert [one[0] for one in found["wrong_ones"]] == ["r-2", "r-3"]


def test_lines_of_the_log_that_no_load_should_cause() -> None:
    """In our format, and past it."""
    lines = ['{"level":"info"}', '{"level": "error", "message": "x"}', "Task exception was never retrieved", "ready"]
    assert sampling.faults_in(lines) == lines[1:3]


def test_the_page_has_a_place_for_the_section(tmp_path: Path) -> None:
    """And what is around it stays."""
    page = tmp_path / "PERFORMANCE.md"
    text = (REPOSITORY / "docs" / "PERFORMANCE.md").read_text()
    page.write_text(text)
    report = copy.deepcopy(whole())
    report["verdicts"] = [
        {"promise": one.promise, "measured": one.measured, "holds": one.holds} for one in verdicts.judge(report)
    ]
    document.publish(report, page)
    made = page.read_text()
    assert made.startswith(text.partition(marks("soak")[0])[0])
    assert made.endswith(text.partition(marks("soak")[1])[2])
    assert "6,000 requests of the load" in made
    assert (tmp_path / document.PICTURE).stat().st_size > 0
