"""What `make bench-overload` says follows from what was measured; a promise not kept, or not measured, fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.bench.overload import document, measures, verdicts
from tests.bench.overload.generator import poisson
from tests.bench.overload.measures import Slo, quantile, retry_ratio, summarize
from tests.bench.overload.records import Outcome, Record
from tests.bench.overload.run import with_part
from tests.bench.overload.wire import ReplyReader, WireFault
from tests.project import REPOSITORY

SLO = Slo(time_to_first_token_seconds=2.0, time_per_output_token_seconds=0.2)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def record(
    scheduled: float = 0.0, *, first: float = 1.0, pace: float = 0.1, outcome: Outcome = "complete", **fields: Any
) -> Record:
    """A request of eleven tokens that begins `first` seconds after it was due."""
    chunks = tuple(scheduled + first + n * pace for n in range(11)) if outcome == "complete" else ()
    known: dict[str, Any] = {
        "tenant": "single",
        "scheduled": scheduled,
        "sent": scheduled,
        "end": chunks[-1] if chunks else scheduled + 0.01,
        "outcome": outcome,
        "status": 200 if outcome == "complete" else 429,
        "code": None if outcome == "complete" else "wait_too_long",
        "retry_after_seconds": None,
        "asked_tokens": 11,
        "chunks": chunks,
    }
    return Record(**(known | fields))


@pytest.mark.parametrize(
    ("one", "in_time"),
    [
        (record(first=2.0), True),
        (record(first=2.01), False),
        (record(pace=0.199), True),
        (record(pace=0.201), False),
        (record(outcome="refused"), False),
        (record(outcome="cut", chunks=(1.0, 1.1)), False),
        (record(outcome="failed", chunks=tuple(range(11))), False),
    ],
)
def test_in_time_is_a_complete_reply_soon_begun_and_steadily_continued(one: Record, *, in_time: bool) -> None:
    """The objective's edges are inside it; what is no complete reply is outside."""
    assert SLO.met(one) is in_time


def test_first_token_counts_from_when_the_request_was_due() -> None:
    """A generator that is late makes the server look worse, never better."""
    assert not SLO.met(record(first=2.5, sent=1.0))


def test_goodput_counts_what_was_due_in_the_window_and_nothing_else() -> None:
    """Load before and after the window is load, not result."""
    records = [record(at) for at in (0.0, 9.9, 10.0, 15.0, 39.9, 40.0)]
    records += [record(20.0, outcome="refused"), record(21.0, first=3.0)]
    found = summarize(measures.counted(records, 10.0, 40.0), 30.0, SLO)
    assert (found.requests, found.in_time, found.late, found.refused) == (5, 3, 1, 1)
    assert found.goodput_per_second == pytest.approx(0.1)
    assert found.offered_per_second == pytest.approx(5 / 30)
    assert found.codes == {"wait_too_long": 1}
    assert found.refusal_latency.p95 == pytest.approx(0.01)


def test_stage_with_a_late_generator_is_marked() -> None:
    """A generator that could not keep its schedule is told."""
    assert summarize([record(sent=0.2)], 1.0, SLO).lagged
    assert not summarize([record(sent=0.002)], 1.0, SLO).lagged


def test_empty_stage_has_no_quantiles_and_no_goodput() -> None:
    """Nothing measured is None, not zero and not an error."""
    found = summarize([], 30.0, SLO)
    assert found.goodput_per_second == 0
    assert found.time_to_first_token.p95 is None
    assert not found.lagged


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([3.0], 0.95, 3.0), ([2.0, 1.0], 0.5, 1.5), (range(101), 0.95, 95.0), ([1, 2, 3], 1.0, 3)],
)
def test_quantiles_lie_between_the_nearest_values(values: Any, share: float, expected: float | None) -> None:
    """Linear between neighbours; none of nothing."""
    assert quantile(values, share) == (None if expected is None else pytest.approx(expected))


def test_retry_ratio_is_held_against_the_nearest_possible_truth() -> None:
    """The truth is known to the distance of two probes; within it the ratio is one."""
    assert retry_ratio(4.0, refused_until=1.9, accepted_at=2.0) == pytest.approx(2.0)
    assert retry_ratio(1.0, refused_until=2.0, accepted_at=2.1) == pytest.approx(0.5)
    assert retry_ratio(0.05, refused_until=0.0, accepted_at=0.08) == 1.0


def test_tokens_count_when_they_come_even_of_requests_that_never_end() -> None:
    """A backlogged tenant's tokens count by their own time, not by their request's."""
    records = [record(0.0, tenant="a"), record(0.0, tenant="b", outcome="cut", chunks=(1.0, 1.5, 9.0))]
    assert measures.tokens_between(records, "b", 1.0, 2.0) == 2
    assert measures.tokens_between(records, "a", 0.0, 60.0) == 11
    merged = record(0.0, tenant="c", chunks=(1.0, 2.0, 3.0, 4.0))
    assert measures.tokens_between([merged], "c", 0.0, 2.5) == round(11 / 2)
    assert measures.difference(90, 110) == pytest.approx(0.2)
    assert measures.difference(0, 0) is None


def test_machine_that_changed_during_a_sweep_is_told() -> None:
    """Multiples of a saturation that is no more say nothing."""
    assert not measures.drifted(4.0, 4.5)
    assert measures.drifted(3.7, 5.3)
    assert measures.drifted(0.0, 0.0)


@pytest.mark.parametrize(
    ("after", "holds"), [((4.0, 4.4), True), ((4.0, 5.0), False), ((3.0, 4.0), False), ((4.0, None), False)]
)
def test_verdicts_need_a_machine_that_was_steady_for_both_servers(after: Any, *, holds: bool) -> None:
    """A disturbance in one server's turn would decide between them."""
    found = {
        name: {
            "saturation": {"requests_per_second": 4.0},
            "saturation_after": None if value is None else {"goodput_per_second": value},
        }
        for name, value in zip(("vllm", "jubako"), after, strict=True)
    }
    assert verdicts.steady(found).holds is holds
    assert not verdicts.steady({"jubako": found["vllm"]}).holds


def test_poisson_pattern_is_the_same_at_every_rate() -> None:
    """One seed is one pattern, stretched; its mean is the rate."""
    slow, fast = poisson(2.0, 50.0, "seed"), poisson(20.0, 5.0, "seed")
    assert slow == pytest.approx([10 * at for at in fast])
    assert len(poisson(10.0, 1000.0, "seed")) == pytest.approx(10_000, rel=0.05)


def servers(ours: dict[float, float], theirs: dict[float, float], refusal: float | None = 0.02) -> dict[str, Any]:
    """Two sweeps by their goodput at each multiple."""

    def stages(goodput: dict[float, float]) -> list[Any]:
        return [
            {"multiple": at, "summary": {"goodput_per_second": value, "refusal_latency": {"p95": refusal}}}
            for at, value in goodput.items()
        ]

    return {"jubako": {"stages": stages(ours)}, "vllm": {"stages": stages(theirs)}}


KEPT = {0.5: 2.0, 1.0: 4.0, 2.0: 3.7, 4.0: 3.8, 8.0: 3.6}


def test_every_promise_of_the_sweep_holds_when_goodput_is_kept() -> None:
    """The verdicts can be good."""
    assert [one.holds for one in verdicts.overload(servers(KEPT, {0.5: 2.0, 1.0: 4.0}))] == [True] * 5


@pytest.mark.parametrize(
    ("ours", "theirs", "refusal", "failing"),
    [
        (KEPT | {8.0: 3.5}, {1.0: 3.0}, 0.02, [2]),
        (KEPT | {2.0: 9.0}, {1.0: 3.0}, 0.02, [1, 2]),
        (KEPT, {1.0: 4.01}, 0.02, [3]),
        (KEPT, {1.0: 3.0}, 0.051, [4]),
        (KEPT, {1.0: 3.0}, None, [4]),
        ({0.5: 2.0, 2.0: 2.0}, {1.0: 1.0}, 0.02, [1, 2, 4]),
        (dict.fromkeys(KEPT, 0.0), {1.0: 0.0}, 0.02, [0, 1, 2]),
        (KEPT, {}, 0.02, [3]),
        ({}, {1.0: 1.0}, 0.02, [0, 1, 2, 3, 4]),
    ],
    ids=["8x lost", "2x is the peak", "lower peak", "slow", "no refusal", "not run", "nothing", "alone", "none"],
)
def test_promise_of_the_sweep_fails_when_it_is_not_kept_or_not_measured(
    ours: dict[float, float], theirs: dict[float, float], refusal: float | None, failing: list[int]
) -> None:
    """Exactly the promise that is broken fails."""
    found = verdicts.overload(servers(ours, theirs, refusal))
    assert [at for at, one in enumerate(found) if not one.holds] == failing


@pytest.mark.parametrize(
    ("ratios", "holds"),
    [([1.0] * 10, True), ([1.0] * 9 + [5.0], True), ([1.0] * 8 + [0.49, 2.1], False), ([1.0] * 9, False), ([], False)],
)
def test_retry_after_needs_enough_trials_and_nearly_all_within_the_factor(ratios: list[float], *, holds: bool) -> None:
    """Nine in ten of at least ten."""
    assert [one.holds for one in verdicts.retry_after([{"ratio": ratio} for ratio in ratios])] == [holds]


def shares(
    first: float | None = 0.4, goodput: float = 1.9, apart: float | None = 0.05, refused: int = 0
) -> dict[str, Any]:
    """A fairness report; alone, B has 0.3 s and 2 replies in time each second."""
    return {
        "alone": {"time_to_first_token": {"p95": 0.3}, "goodput_per_second": 2.0, "refused": refused},
        "together": {"time_to_first_token": {"p95": first}, "goodput_per_second": goodput},
        "backlogged": {"difference": apart},
    }


@pytest.mark.parametrize(
    ("data", "failing"),
    [
        (shares(), []),
        (shares(first=0.46), [0]),
        (shares(first=None, goodput=0.0), [0, 1]),
        (shares(goodput=1.0), [1]),
        (shares(refused=1), [0]),
        (shares(apart=0.11), [2]),
        (shares(apart=None), [2]),
        (None, [0, 1, 2]),
    ],
)
def test_fairness_fails_when_the_quiet_tenant_notices_the_loud_one(data: Any, failing: list[int]) -> None:
    """Each of the three can fail alone; nothing measured fails all."""
    assert [at for at, one in enumerate(verdicts.fairness(data)) if not one.holds] == failing


def whole_run(fairness: dict[str, Any], *, failed: str) -> dict[str, Any]:
    """A report in which one scenario could not be measured, or not as it should have been."""
    return {
        "command": "run",
        "plan": {"seed": "s", "fairness_pace": 1.3},
        "servers": servers(KEPT, KEPT),
        "retry_after": [],
        "fairness": fairness,
        "fairness_pace_seconds": 0.05,
        "faults": [{"server": "jubako", "scenario": failed, "fault": "old"}],
    }


def test_fairness_measured_anew_is_judged_in_the_place_of_the_old_and_named() -> None:
    """Nothing of the sweep changes, and the page tells that it is of two runs."""
    whole = whole_run(shares(first=0.46), failed="fairness")
    anew = whole | {
        "command": "fairness",
        "date": "2026-01-31",
        "plan": {"fairness_pace": 1.2},
        "fairness": shares(),
        "fairness_pace_seconds": 0.04,
        "faults": [],
    }
    found = with_part(whole, anew, "fairness")
    assert found["servers"] == whole["servers"]
    assert found["plan"] == {"seed": "s", "fairness_pace": 1.2}
    assert (found["command"], found["fairness_pace_seconds"], found["faults"]) == ("run", 0.04, [])
    assert found["part_runs"] == {"fairness": {"command": "fairness", "date": "2026-01-31"}}
    assert all(one["holds"] for one in found["verdicts"][-3:])


def test_retry_after_measured_anew_leaves_the_fairness_of_the_whole_run() -> None:
    """With its pace, whatever the plan of the later run says of it."""
    whole = whole_run(shares(), failed="Retry-After")
    anew = whole | {
        "command": "retry",
        "date": "2026-01-31",
        "plan": {"fairness_pace": 9.0},
        "retry_after": [{"ratio": 1.0}] * 12,
        "fairness": None,
        "faults": [],
    }
    found = with_part(whole, anew, "retry")
    assert (found["plan"], found["fairness"], found["faults"]) == (whole["plan"], whole["fairness"], [])
    assert found["part_runs"] == {"retry": {"command": "retry", "date": "2026-01-31"}}
    assert [one["holds"] for one in found["verdicts"] if "Retry-After" in one["promise"]] == [True]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_found_whatever_the_pieces_they_come_in(size: int) -> None:
    """Comments are no events; an event may span chunks, a chunk may span reads."""
    events = [b": keep-alive\n\n", b'data: {"choices":[1]}\n\nda', b"ta: two\r\n\r\n", b"data: [DONE]\n\n"]
    raw = HEAD + b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"
    reader = ReplyReader()
    found = [event for at in range(0, len(raw), size) for event in reader.feed(raw[at : at + size])]
    assert found == [b'{"choices":[1]}', b"two", b"[DONE]"]
    assert reader.ended


def test_refusal_is_read_with_its_headers_and_ends_by_its_length() -> None:
    """A reply that is no stream is kept as text."""
    reader = ReplyReader()
    raw = b'HTTP/1.1 429 Too Many Requests\r\nRetry-After-Ms: 250\r\nContent-Length: 9\r\n\r\n{"error":'
    for at in range(len(raw) - 1):
        reader.feed(raw[at : at + 1])
    before = reader.ended
    reader.feed(raw[-1:])
    assert (before, reader.ended) == (False, True)
    assert (reader.status, reader.headers["retry-after-ms"], reader.text) == (429, "250", b'{"error":')


def test_stream_that_is_cut_off_has_not_ended() -> None:
    """A lost connection is not an end."""
    reader = ReplyReader()
    reader.feed(HEAD + b"5\r\ndata:\r\n")
    reader.close()
    assert not reader.ended


@pytest.mark.parametrize("raw", [b"SSH-2.0\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", HEAD + b"zz\r\n"])
def test_what_is_not_http_is_said_to_be_so(raw: bytes) -> None:
    """The reader does not guess."""
    with pytest.raises(WireFault):
        ReplyReader().feed(raw)


def test_page_in_docs_is_what_its_data_gives() -> None:
    """Nobody edits docs/OVERLOAD.md: it is made anew from docs/overload.json."""
    data = REPOSITORY / "docs" / "overload.json"
    if not data.exists():
        pytest.skip("nothing was measured and published yet")
    assert (REPOSITORY / "docs" / "OVERLOAD.md").read_text() == document.page(json.loads(data.read_text()))
