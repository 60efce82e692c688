"""Rules, dashboard and runbook: they ask for metrics that exist, in words that Prometheus takes, and say what to do."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from jubako.telemetry.metrics import FAMILIES, Metrics, exposition
from jubako.vocabulary import Outcome
from tests.ended_requests import account, refused
from tests.project import REPOSITORY, until
from tests.prometheus import RULES, Prometheus, exposing, program, scraping

DEPLOY = REPOSITORY / "configuration" / "deploy"
TRACE = "0af7651916cd43dd8448eb211c80319c"
NAME = re.compile(r"\b(?:vllm:|jubako_|jubako:|process_|python_)[a-z0-9_:]+")


def vllm_names() -> dict[str, str]:
    """The names of vLLM's that may be asked for, and their kinds."""
    lines = (Path(__file__).parent / "vllm_metric_names.txt").read_text().splitlines()
    return dict(line.split() for line in lines if line and not line.startswith("#"))


def rules() -> list[dict[str, Any]]:
    """Every rule of the file."""
    document = yaml.safe_load((DEPLOY / RULES).read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """The rules that are alerts."""
    return [rule for rule in rules() if "alert" in rule]


def dashboard() -> dict[str, Any]:
    """The dashboard as it is committed."""
    found: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    return found


def dashboard_queries() -> list[tuple[str, str]]:
    """Panel and query, as Grafana would send it."""
    return [
        (panel["title"], _filled(target["expr"]))
        for panel in dashboard()["panels"]
        for target in panel.get("targets", [])
    ]


def _filled(expression: str) -> str:
    for variable, value in (("$job", ".*"), ("$instance", ".*"), ("$__rate_interval", "1m")):
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


class Busy:
    """A server's metrics, and stand-ins for vLLM's, to which some of everything happens before each scrape."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._metrics = Metrics(self.registry, ["smollm2"], release="smollm2/1", digest="ab" * 32)
        for family in FAMILIES.values():
            if family.observed:
                self._metrics.observe(family.name, lambda: 1)
        self._stand_ins = [
            (Counter if kind == "counter" else Gauge)(name, "a stand-in", ["model_name"], registry=self.registry)
            for name, kind in vllm_names().items()
        ]

    def scrape(self, accept: str) -> tuple[bytes, str]:
        for outcome in Outcome:
            self._metrics.record(account(outcome=outcome), TRACE)
        self._metrics.record(refused("queue_full"))
        for one in self._stand_ins:
            one.labels("m").inc()
        return exposition(self.registry, accept)


@pytest.fixture(scope="module")
def registry() -> CollectorRegistry:
    """That of a server to which something happened."""
    busy = Busy()
    busy.scrape("")
    return busy.registry


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A real one that scrapes a busy server, in whichever format it prefers."""
    program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with exposing(Busy().scrape) as port, scraping(port, DEPLOY / RULES, folder) as found:
        yield found


def test_every_metric_asked_for_exists(registry: CollectorRegistry) -> None:
    """In the rules and in the dashboard: ours, recorded ones, or those of vLLM's that are listed."""
    exposed = {sample.name for family in registry.collect() for sample in family.samples}
    known = exposed | {rule["record"] for rule in rules() if "record" in rule}
    asked = {name for rule in rules() for name in NAME.findall(rule["expr"])}
    asked |= {name for _, query in dashboard_queries() for name in NAME.findall(query)}
    asked |= {name for one in dashboard()["templating"]["list"] for name in NAME.findall(str(one.get("definition")))}
    assert asked <= known
    assert {name for name in asked if name.startswith("vllm:")} == set(vllm_names())


def test_every_metric_of_ours_is_on_the_dashboard() -> None:
    """A metric that nobody looks at need not be there."""
    asked = " ".join(query for _, query in dashboard_queries())
    assert [name for name in FAMILIES if name not in asked] == []


def test_promtool_takes_the_rules_and_their_own_tests_pass() -> None:
    """Each alert fires when it should, and none does when all is well."""
    for arguments in (("check", "rules", RULES), ("test", "rules", "prometheus-rules-test.yaml")):
        ran = subprocess.run(
            [program("promtool"), *arguments], cwd=DEPLOY, capture_output=True, text=True, check=False, timeout=100
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_each_alert_is_tested_both_ways() -> None:
    """With series that make it fire, and with series that do not."""
    tests = yaml.safe_load((DEPLOY / "prometheus-rules-test.yaml").read_text())["tests"]
    cases = [case for one in tests for case in one["alert_rule_test"]]
    fires = {case["alertname"] for case in cases if case.get("exp_alerts")}
    quiet = {case["alertname"] for case in cases if not case.get("exp_alerts")}
    names = {alert["alert"] for alert in alerts()}
    assert fires == names
    assert quiet == names


def test_a_real_prometheus_evaluates_every_rule(prometheus: Prometheus) -> None:
    """Without an error, and recording rules have series."""
    for rule in rules():
        if "record" in rule:
            until(partial(prometheus.query, rule["record"]), f"{rule['record']} has series")
    found = prometheus.rules()
    assert {rule["name"]: rule.get("lastError", "") for rule in found if rule["health"] != "ok"} == {}
    assert len(found) == len(rules())


def test_a_real_prometheus_has_an_answer_to_every_panel(prometheus: Prometheus) -> None:
    """An empty answer would be a label that does not exist."""
    for title, query in dashboard_queries():
        until(partial(prometheus.query, query), f"{title}: {query}: an answer", 20)


def test_a_real_prometheus_links_times_to_traces(prometheus: Prometheus) -> None:
    """It negotiates OpenMetrics by itself, and keeps the exemplars."""
    found = prometheus.get(
        "query_exemplars", query="jubako_time_to_first_token_seconds_bucket", start=0, end=4_000_000_000
    )
    assert {one["labels"]["trace_id"] for series in found for one in series["exemplars"]} == {TRACE}


def test_the_dashboard_is_what_its_script_writes() -> None:
    """Changed by `python scripts/dashboard.py`, never by hand."""
    path = REPOSITORY / "scripts" / "dashboard.py"
    spec = importlib.util.spec_from_file_location("dashboard", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DEPLOY / "grafana-dashboard.json").read_text() == module.text()


def test_the_dashboard_s_panels_are_laid_out_and_choose_their_source() -> None:
    """No two of one number or place; each follows the variables."""
    document = dashboard()
    panels = document["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    for panel in panels:
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == "${datasource}"
            assert 'job=~"$job",instance=~"$instance"' in target["expr"]
    assert [one["name"] for one in document["templating"]["list"]] == ["datasource", "job", "instance"]


def test_each_alert_links_its_entry_in_the_runbook() -> None:
    """And the runbook has no entry of an alert that is gone."""
    headings = re.findall(r"^### (\S+)$", (REPOSITORY / "docs" / "RUNBOOK.md").read_text(), re.MULTILINE)
    assert headings == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        assert alert["annotations"]["runbook_url"] == f"docs/RUNBOOK.md#{alert['alert'].lower()}"
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}
        assert alert["annotations"]["summary"]
        assert alert["annotations"]["description"]


def test_the_runbook_asks_for_metrics_and_settings_that_exist(registry: CollectorRegistry) -> None:
    """Its queries are those of the rules and the dashboard, or of these metrics."""
    page = (REPOSITORY / "docs" / "RUNBOOK.md").read_text()
    exposed = {sample.name for family in registry.collect() for sample in family.samples}
    known = exposed | {rule["record"] for rule in rules() if "record" in rule}
    quoted = " ".join(re.findall(r"`([^`]+)`", page))
    assert set(NAME.findall(quoted)) <= known
    settings = yaml.safe_load((REPOSITORY / "configuration" / "server.yaml").read_text())
    for section, key in re.findall(r"`([a-z]+)\.([a-z_]+)`", page):
        assert key in settings[section], f"{section}.{key}"
