"""The Grafana dashboard, as `configuration/deploy/grafana-dashboard.json`: `python scripts/dashboard.py` writes it.

A row a question, a panel an answer; the JSON is Grafana's, and nothing else knows its format.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

TARGET = Path(__file__).resolve().parent.parent / "configuration" / "deploy" / "grafana-dashboard.json"
ONLY = 'job=~"$job",instance=~"$instance"'
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24

Query = tuple[str, str]
"""PromQL and the legend of its series. `@` stands for the chosen servers' labels, `~` for the rate's window."""


class Panel(NamedTuple):
    """One panel; `unit` is one of Grafana's names."""

    kind: Literal["stat", "timeseries", "table"]
    title: str
    unit: str
    description: str
    queries: list[Query]


def _quantiles(name: str) -> list[Query]:
    return [
        (f"histogram_quantile({share}, sum by (le) (rate({name}_bucket{{@}}[~])))", f"p{share * 100:g}")
        for share in (0.5, 0.95, 0.99)
    ]


GENERATING = 'route=~"chat_completions|completions"'
WAIT = "sum by (le, priority) (rate(jubako_queue_wait_seconds_bucket{@}[~]))"
ROWS: list[tuple[str, list[Panel]]] = [
    (
        "Is it well?",
        [
            Panel("stat", "Servers ready", "short", "Of those that are scraped.", [("sum(jubako_ready{@})", "ready")]),
            Panel(
                "stat",
                "Goodput",
                "reqps",
                "Requests answered to their end, each second.",
                [
                    (
                        f'sum(rate(jubako_requests_total{{@,{GENERATING},outcome=~"completed|length"}}[~]))',
                        "answered",
                    )
                ],
            ),
            Panel(
                "stat",
                "Errors",
                "percentunit",
                "Failed or out of time, of what was accepted.",
                [
                    (
                        (
                            'sum(rate(jubako_requests_total{@,outcome=~"failed|deadline"}[~]))'
                            ' / (sum(rate(jubako_requests_total{@,outcome!~"refused|cancelled"}[~])) > 0)'
                        ),
                        "of accepted",
                    )
                ],
            ),
            Panel(
                "stat",
                "First token, p95",
                "s",
                "From arrival, the queue included.",
                [_quantiles("jubako_time_to_first_token_seconds")[1]],
            ),
            Panel("stat", "Queued", "short", "Requests that wait now.", [("sum(jubako_queue_depth{@})", "requests")]),
            Panel(
                "table",
                "Release",
                "short",
                "What each server serves.",
                [("max by (instance, release, digest) (jubako_release_info{@})", "{{release}}")],
            ),
        ],
    ),
    (
        "What becomes of requests?",
        [
            Panel(
                "timeseries",
                "Requests by outcome",
                "reqps",
                "Completed and length are goodput.",
                [("sum by (outcome) (rate(jubako_requests_total{@}[~]))", "{{outcome}}")],
            ),
            Panel(
                "timeseries",
                "Refusals and errors by code",
                "reqps",
                "As their callers were told.",
                [("sum by (code) (rate(jubako_refusals_total{@}[~])) > 0", "{{code}}")],
            ),
            Panel(
                "timeseries",
                "Requests by served name",
                "reqps",
                "none: requests that did not come as far as a name.",
                [("sum by (alias) (rate(jubako_requests_total{@}[~]))", "{{alias}}")],
            ),
        ],
    ),
    (
        "How long does it take?",
        [
            Panel(
                "timeseries",
                "Time to first token",
                "s",
                "From arrival, the queue included.",
                [*_quantiles("jubako_time_to_first_token_seconds")],
            ),
            Panel(
                "timeseries",
                "Time per output token",
                "s",
                "After the first; admission.time_per_output_token_seconds is what it is held to.",
                [*_quantiles("jubako_time_per_output_token_seconds")],
            ),
            Panel(
                "timeseries",
                "Duration",
                "s",
                "Of requests that were not refused.",
                [*_quantiles("jubako_request_duration_seconds")],
            ),
        ],
    ),
    (
        "Is there room?",
        [
            Panel(
                "timeseries",
                "Queue by priority",
                "short",
                "Lower goes first.",
                [("sum by (priority) (jubako_queue_depth{@}) > 0", "priority {{priority}}")],
            ),
            Panel(
                "timeseries",
                "Wait in the queue, p95",
                "s",
                "Of requests that were not refused.",
                [
                    (
                        f"histogram_quantile(0.95, {WAIT})",
                        "priority {{priority}}",
                    )
                ],
            ),
            Panel(
                "timeseries",
                "Sequences and their limit",
                "short",
                "The limit is found so that the pace holds.",
                [
                    ("sum(jubako_running_sequences{@})", "running"),
                    ("sum(jubako_admission_limit_sequences{@})", "limit"),
                    ("sum(jubako_requests_in_flight{@})", "requests in flight"),
                ],
            ),
            Panel(
                "timeseries",
                "Queued tokens",
                "short",
                "Bounded by admission.queue_tokens.",
                [("sum(jubako_queue_tokens{@})", "estimated")],
            ),
            Panel(
                "timeseries",
                "Bodies being read",
                "bytes",
                "Bounded by bodies.held_bytes; one tenant may have half of it. Beyond that requests get queue_full.",
                [("sum(jubako_request_body_held_bytes{@})", "held")],
            ),
        ],
    ),
    (
        "What does the engine do?",
        [
            Panel(
                "timeseries",
                "Tokens",
                "short",
                "As accounted for; cached ones are among the prompt's.",
                [("sum by (kind) (rate(jubako_tokens_total{@}[~]))", "{{kind}} per second")],
            ),
            Panel(
                "timeseries",
                "Engine's requests",
                "short",
                "Waiting and preemptions should be near zero: the queue is in front of the engine.",
                [
                    ("sum(vllm:num_requests_running{@})", "running"),
                    ("sum(vllm:num_requests_waiting{@})", "waiting"),
                    ("sum(rate(vllm:num_preemptions_total{@}[~]))", "preemptions per second"),
                ],
            ),
            Panel(
                "timeseries",
                "Cache",
                "percentunit",
                "Blocks in use, and the share of prompt tokens that were cached.",
                [
                    ("max by (instance) (vllm:kv_cache_usage_perc{@})", "in use, {{instance}}"),
                    (
                        (
                            "sum(rate(vllm:prefix_cache_hits_total{@}[~]))"
                            " / (sum(rate(vllm:prefix_cache_queries_total{@}[~])) > 0)"
                        ),
                        "prefix tokens found",
                    ),
                ],
            ),
            Panel(
                "timeseries",
                "Since the last step",
                "s",
                "While there is work. At life.stall_seconds the server ends itself.",
                [("max by (instance) (jubako_engine_step_age_seconds{@})", "{{instance}}")],
            ),
            Panel(
                "timeseries",
                "Last start",
                "s",
                "Of the slowest server, by phase.",
                [("max by (phase) (jubako_start_seconds{@})", "{{phase}}")],
            ),
        ],
    ),
    (
        "Are the books right?",
        [
            Panel(
                "timeseries",
                "Ledger behind the audit",
                "s",
                "How long ago it had everything.",
                [("max by (instance) (jubako_ledger_lag_seconds{@})", "{{instance}}")],
            ),
            Panel(
                "timeseries",
                "Requests not in the ledger yet",
                "short",
                "They are in the audit.",
                [("sum by (instance) (jubako_ledger_pending_records{@})", "{{instance}}")],
            ),
            Panel(
                "timeseries",
                "Audit",
                "short",
                "Not healthy: new requests are refused.",
                [
                    ("min by (instance) (jubako_audit_healthy{@})", "healthy, {{instance}}"),
                    ("sum by (instance) (increase(jubako_audit_unrecorded_total{@}[~]))", "unrecorded, {{instance}}"),
                ],
            ),
            Panel(
                "timeseries",
                "Process",
                "short",
                "The serving process; the engine's has none of these.",
                [
                    ("sum by (instance) (rate(process_cpu_seconds_total{@}[~]))", "cores, {{instance}}"),
                    ("sum by (instance) (process_open_fds{@})", "open files, {{instance}}"),
                    ("sum by (instance) (rate(jubako_spans_dropped_total{@}[~]))", "spans lost, {{instance}}"),
                    ("sum by (instance) (rate(jubako_log_lines_dropped_total{@}[~]))", "log lines lost, {{instance}}"),
                ],
            ),
        ],
    ),
]


def dashboard() -> dict[str, Any]:
    """The whole document."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": []})
        panels[-1]["gridPos"] = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        y += 1
        height = 5 if row[0].kind == "stat" else 8
        width = WIDTH // len(row)
        for place, panel in enumerate(row):
            grid = {"x": place * width, "y": y, "w": width, "h": height}
            panels.append(_panel(len(panels) + 1, grid, panel))
        y += height
    return {
        "uid": "jubako",
        "title": "Jubako",
        "description": "What callers get, why, and how the engine and the books are. See docs/RUNBOOK.md.",
        "tags": ["jubako", "vllm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _variables() -> list[dict[str, Any]]:
    choices = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0},
    ]
    for name, query in (
        ("job", "label_values(jubako_ready, job)"),
        ("instance", 'label_values(jubako_ready{job=~"$job"}, instance)'),
    ):
        choices.append(
            {
                "name": name,
                "label": name.capitalize(),
                "type": "query",
                "datasource": DATASOURCE,
                "definition": query,
                "query": {"query": query, "refId": name},
                "refresh": 2,
                "sort": 1,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"text": ["All"], "value": ["$__all"]},
            }
        )
    return choices


def _panel(number: int, grid: dict[str, int], panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    options: dict[str, Any] = {}
    if panel.kind == "timeseries":
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never"}
        options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    elif panel.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "expr": expression.replace("@", ONLY).replace("[~]", "[$__rate_interval]"),
            "legendFormat": legend,
            **({"instant": True, "format": "table"} if panel.kind == "table" else {}),
        }
        for index, (expression, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": grid,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": targets,
    }


def text() -> str:
    """The document as it is committed."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
