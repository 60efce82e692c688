"""The report as a page: nothing in it is written by hand but the words around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.bench import pages
from tests.bench.overload.measures import drifted, quantile
from tests.bench.pages import Data, table

NAMES = {"vllm": "vLLM's own server", "jubako": "Jubako"}

PAGE = """\
<!-- Made from overload.json by `python -m tests.bench.overload document`. Do not edit. -->
# Overload

How the server behaves when more is asked of it than it can do in time, beside vLLM's own server. Measured by
`{command}` on {date}, in {minutes:.0f} minutes.

A reply is *in time* when its first token comes within {first:g} s of when the request was due and the mean time per
output token is at most {pace:g} s. *Goodput* is the number of replies in time, each second.

## What was promised

{verdicts}
{faults}
## Goodput against load

![Goodput against load](overload.png)

{stages}

`late`: complete, but not in time. `cut`: still open when the stage ended, at which point it could no longer be in time.
{lagged}
Saturation, in closed loops:

{saturation}

## Retry-After

The server is filled until it refuses; nothing more is sent but one probe every {probe:.0f} ms, cancelled as soon as it
is accepted. The ratio is what the refusal told over when a probe was first accepted.

{retry}

## Fairness

{fairness}

## Method

- One engine at a time: two would share the cores and measure each other. Both servers run in one run, on the same
  machine, with the same model and engine options ({options}); vLLM's own server first, as it comes.
- Saturation is the greatest goodput of closed loops of {levels} requests at a time, measured on each server just
  before its sweep. The sweep's rates are multiples of the server's own saturation.
- The loop is open: arrivals are a Poisson process with a fixed seed, sent when they are due, whatever has become of
  those before. Both servers get the same pattern, stretched to the rate. Each request is a streamed completion of
  {tokens} tokens (uniform, the same on both servers) at temperature 0 with `ignore_eos`; prompts are short and differ
  from the first word on, so that no prefix cache helps.
- {settle:g} s of load, then {window:g} s in which due requests count; the load goes on until these are over or cannot
  be in time any more. The server is idle before each stage.
- One connection a request, over loopback. A refusal's latency is from before connecting to its last byte. The
  generator is a single process at normal priority on the same cores as the server: it took at most {generator:.0%} of
  a core. {lag_note}
- Jubako's tenants have one policy: {policy}.
  Settings other than those in `configuration/`: {overrides}.
- Admission held {overload_pace:g} s an output token in the sweep and for Retry-After, and {fairness_pace} for
  fairness, {pace_factor:g} times what a request alone took just before: beside a full engine a first token waits for a
  step or two, and a shorter step is bought with throughput. The saturation that fairness is measured in is that of
  its own pace.

## Machine and versions

{processor}, {cores} cores, {memory} GiB; Python {python}; {versions}.

To repeat it: `make bench-overload`, then `python -m tests.bench.overload document` to make this page from what was
measured.
"""


def page(report: Data) -> str:
    """The whole of OVERLOAD.md."""
    plan, machine = report["plan"], report["machine"]
    stages = [stage for server in report["servers"].values() for stage in server["stages"]]
    return PAGE.format(
        command=report["command"],
        date=report["date"],
        minutes=report["minutes"],
        first=plan["slo"]["time_to_first_token_seconds"],
        pace=plan["slo"]["time_per_output_token_seconds"],
        verdicts=pages.verdicts(report),
        faults=_faults(report["faults"]),
        stages=_stages(report["servers"]),
        lagged="\n† The generator was late in this stage.\n" if any(s["summary"]["lagged"] for s in stages) else "",
        saturation=_saturation(report["servers"]),
        probe=plan["probe_seconds"] * 1000,
        retry=_own_run(report, "retry") + _retry(report["retry_after"]),
        fairness=_own_run(report, "fairness") + _fairness(report["fairness"]),
        options=_settings(report["settings"]["engine"]["options"]),
        levels=" and ".join(str(level) for level in plan["levels"]),
        tokens=" to ".join(str(bound) for bound in plan["tokens"]),
        settle=plan["settle_seconds"],
        window=plan["window_seconds"],
        generator=max((stage["cost"]["generator_cores"] for stage in stages), default=0.0),
        lag_note=_lag(stages),
        policy=_settings({k: v for k, v in report["settings"]["policy"].items() if v != {}}),
        overrides=_settings(report["settings"]["overrides"]),
        overload_pace=report["settings"]["time_per_output_token_seconds"],
        fairness_pace=_pace(report["fairness_pace_seconds"]),
        pace_factor=plan["fairness_pace"],
        processor=machine["processor"],
        cores=machine["cores"],
        memory=machine["memory_gib"],
        python=machine["python"],
        versions=pages.versions(report),
    )


def _faults(found: Sequence[Data]) -> str:
    if not found:
        return ""
    lines = [f"- {NAMES[one['server']]}, {one['scenario']}: {one['fault']}" for one in found]
    return "\n".join(["", "What could not be measured:", "", *lines, ""])


def _stages(servers: Mapping[str, Data]) -> str:
    head = ["server", "load", "due /s", "goodput /s", "late", "refused", "failed", "cut"]
    head += ["TTFT p50", "TTFT p95", "TPOT p95", "refusal p95"]
    rows = []
    for name, server in servers.items():
        for stage in server["stages"]:
            one = stage["summary"]
            first, pace, refusal = (
                one[key] for key in ("time_to_first_token", "time_per_output_token", "refusal_latency")
            )
            rows.append(
                [
                    NAMES[name],
                    f"{stage['multiple']:g} x{'†' if one['lagged'] else ''}",
                    f"{one['offered_per_second']:.2f}",
                    f"**{one['goodput_per_second']:.2f}**",
                    *(str(one[key]) for key in ("late", "refused", "failed", "cut")),
                    *(_seconds(first["p50"]), _seconds(first["p95"]), _milliseconds(pace["p95"])),
                    _milliseconds(refusal["p95"]),
                ]
            )
    return table(head, rows)


def _saturation(servers: Mapping[str, Data]) -> str:
    rows = [
        [
            NAMES[name],
            str(level["requests_at_a_time"]),
            f"{level['goodput_per_second']:.2f}",
            _seconds(level["time_to_first_token"]["p95"]),
            _milliseconds(level["time_per_output_token"]["p95"]),
        ]
        for name, server in servers.items()
        for level in server["saturation"]["levels"]
    ]
    found = table(["server", "requests at a time", "goodput /s", "TTFT p95", "TPOT p95"], rows)
    return "\n".join([found, *(_again(NAMES[name], server) for name, server in servers.items())])


def _again(name: str, server: Data) -> str:
    """How steady the machine was: the best closed loop once more, after the sweep."""
    after = server.get("saturation_after")
    if after is None:
        return f"\n{name}: not measured again after the sweep."
    then, now = server["saturation"]["requests_per_second"], after["goodput_per_second"]
    doubt = " **The machine was not steady: measure again.**" if drifted(then, now) else ""
    return f"\n{name}: {then:.2f} before the sweep, {now:.2f} after it.{doubt}"


def _retry(trials: Sequence[Data]) -> str:
    if not trials:
        return "Not measured."
    ratios = [trial["ratio"] for trial in trials]
    spread = ", ".join(f"p{share * 100:.0f} {quantile(ratios, share):.2f}" for share in (0, 0.1, 0.5, 0.9, 1))
    rows = [
        [
            str(trial["trial"]["tokens"]),
            str(trial["trial"]["batch"]),
            str(trial["fillers"]),
            f"{trial['told_seconds']:.2f} s",
            f"{trial['refused_until']:.2f} to {trial['accepted_at']:.2f} s",
            f"{trial['ratio']:.2f}",
        ]
        for trial in trials
    ]
    head = ["tokens", "sent at once", "accepted before", "told", "truth", "ratio"]
    return f"{table(head, rows)}\n\nRatios of {len(trials)} trials: {spread}."


def _own_run(report: Data, part: str) -> str:
    """That a part is of a run of its own, if it is."""
    run = report.get("part_runs", {}).get(part)
    return f"Measured by itself, by `{run['command']}` on {run['date']}.\n\n" if run else ""


def _fairness(data: Data | None) -> str:
    if data is None:
        return "Not measured."
    rows = []
    for name, key in (("B alone", "alone"), ("B with A", "together"), ("A with B", "loud")):
        one = data[key]
        first = one["time_to_first_token"]
        rows.append(
            [
                name,
                f"{one['offered_per_second']:.2f}",
                f"{one['goodput_per_second']:.2f}",
                str(one["refused"]),
                _seconds(first["p50"]),
                _seconds(first["p95"]),
            ]
        )
    backlog = data["backlogged"]
    one, other = backlog["tokens"]
    apart = "nothing" if backlog["difference"] is None else f"{backlog['difference']:.1%}"
    told = (
        f"A and B have equal weights. B sends {data['rate_per_second']:.2f} requests/s, alone and beside A's"
        f" {data['loud_rate_per_second']:.2f}, in turns.\n\n"
    )
    shares = (
        f"\n\nBoth at {backlog['rate_per_second']:.2f} requests/s, far above their share, for {backlog['seconds']:g} s:"
        f" {one} tokens for A and {other} for B, {apart} apart."
    )
    return told + table(["", "due /s", "goodput /s", "refused", "TTFT p50", "TTFT p95"], rows) + shares


def _settings(values: Data) -> str:
    return (
        ", ".join(f"`{name}: {str(v).lower() if isinstance(v, bool) else v}`" for name, v in values.items()) or "none"
    )


def _lag(stages: Sequence[Data]) -> str:
    worst = max((stage["summary"]["lag_p99"] or 0.0 for stage in stages), default=0.0)
    return f"Its requests left at most {worst * 1000:.0f} ms late (99th percentile of the worst stage)."


def _pace(value: float | None) -> str:
    return "none" if value is None else f"{value:g} s"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000:.0f} ms"
