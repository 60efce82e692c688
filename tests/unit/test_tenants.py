"""Tenants and policies: what is read, and every way a file can be wrong."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jubako import settings
from jubako.errors import StartupFault
from jubako.gate import tenants
from jubako.gate.tenants import Tenants
from jubako.vocabulary import Budget, Limits, Scope
from tests.project import REPOSITORY

LIMITS = settings.load(REPOSITORY, {}).server.limits.limits
ORIGINAL = (REPOSITORY / "configuration" / "tenants.yaml").read_text()
SERVED = frozenset({"smollm2-135m-instruct", "smollm2", "my-adapter"})


def load(path: Path, text: str, *, limits: Limits = LIMITS, served: frozenset[str] | None = SERVED) -> Tenants:
    """The tenants of a file with that text."""
    file = path / "tenants.yaml"
    file.write_text(text)
    return tenants.load(file, limits=limits, deadline_seconds=200, served=served)


def faults(path: Path, text: str, **options: frozenset[str] | None) -> list[str]:
    """The faults of a file with that text, without its path."""
    with pytest.raises(StartupFault) as raised:
        load(path, text, **options)  # type: ignore[arg-type]
    return [line.removeprefix(f"{path}/tenants.yaml:") for line in str(raised.value).splitlines()]


def changed(**changes: object) -> str:
    """The repository's file with other values in the policy `standard`."""
    data = yaml.safe_load(ORIGINAL)
    data["policies"]["standard"] |= changes
    return yaml.safe_dump(data, sort_keys=False)


def test_the_repository_s_own_file_is_right(tmp_path: Path) -> None:
    """Its two tenants, with the server's limits and the server's deadline where the policy's is longer."""
    known = load(tmp_path, ORIGINAL)
    assert set(known) == {"default", "operations"}
    policy = known["default"].policy
    assert policy.scopes == {Scope.MODELS, Scope.CHAT, Scope.COMPLETIONS}
    assert policy.approves("anything")
    assert policy.limits == LIMITS
    assert policy.deadline_seconds == 200
    assert policy.tenant_budget == policy.key_budget == Budget()
    assert known["operations"].policy.scopes == {Scope.OPERATOR}
    assert not known["operations"].policy.approves("smollm2")


def test_a_policy_lowers_limits_and_sets_budgets(tmp_path: Path) -> None:
    """What it does not name stays the server's; the default of output tokens follows a lower bound."""
    text = changed(
        models=["smollm2"],
        limits={"output_tokens": 100, "images": 0, "body_seconds": 1.5},
        tenant_budget={"tokens_per_day": 10},
        key_budget={"concurrency": 2},
        deadline_seconds=20,
    )
    policy = load(tmp_path, text)["default"].policy
    assert (policy.limits.output_tokens, policy.limits.default_output_tokens) == (100, 100)
    assert (policy.limits.images, policy.limits.body_seconds, policy.limits.tools) == (0, 1.5, LIMITS.tools)
    assert (policy.approves("smollm2"), policy.approves("my-adapter")) == (True, False)
    assert (policy.tenant_budget, policy.key_budget) == (Budget(tokens_per_day=10), Budget(concurrency=2))
    assert policy.deadline_seconds == 20


@given(st.sampled_from([field.name for field in fields(Limits)]), st.integers(1, 2**31))
def test_no_policy_is_above_the_server(tmp_path_factory: pytest.TempPathFactory, name: str, value: int) -> None:
    """Whatever limit it names with whatever number: accepted and not above, or refused by its name."""
    folder = tmp_path_factory.mktemp("tenants")
    text = changed(limits={name: value})
    if value > getattr(LIMITS, name):
        (found,) = faults(folder, text)
        assert f"policies.standard.limits.{name}: " in found
        return
    with suppress(StartupFault):  # below what makes sense at all
        policy = load(folder, text)["default"].policy
        for field in fields(Limits):
            assert getattr(policy.limits, field.name) <= getattr(LIMITS, field.name)
        assert getattr(policy.limits, name) == value


def test_all_faults_are_told_at_once_each_with_its_line(tmp_path: Path) -> None:
    """Names with the nearest that is known."""
    text = """policies:
  standard:
    models: [smolm2, elsewhere]
    scopes: [chat, admin]
    weigt: 1
    priority: 10
    deadline_seconds: .inf
    queue_seconds: 0
    limits: {message: 3, messages: 100000, stops: many}
    tenant_budget: {tokens_per_hour: 3, concurrency: 0}
    key_budget: []
tenants:
  a: {policy: standrd, suspended: false}
  B: {policy: standard, suspended: false}
  1: {policy: standard}
"""
    found = faults(tmp_path, text)
    for start in (
        "2: policies.standard.weight: is required",
        "3: policies.standard.models[0]: 'smolm2' is not served (did you mean smollm2?)",
        "3: policies.standard.models[1]: 'elsewhere' is not served; there are: my-adapter, smollm2",
        "4: policies.standard.scopes[1]: ",
        "5: policies.standard.weigt: unknown key (did you mean weight?)",
        "6: policies.standard.priority: ",
        "7: policies.standard.deadline_seconds: ",
        "8: policies.standard.queue_seconds: ",
        "9: policies.standard.limits.message: unknown key (did you mean messages?)",
        "9: policies.standard.limits.messages: 100000 is above the server's limit of 1000",
        "9: policies.standard.limits.stops: ",
        "10: policies.standard.tenant_budget.tokens_per_hour: unknown key (did you mean tokens_per_",
        "10: policies.standard.tenant_budget.concurrency: ",
        "11: policies.standard.key_budget: ",
        "13: tenants.a.policy: no policy 'standrd' (did you mean standard?)",
        "14: tenants.B: ",
        "15: tenants[1]: must be text: put 1 in quotes",
        "15: tenants[1].suspended: is required",
    ):
        assert sum(line.startswith(start) for line in found) == 1, (start, found)
    assert len(found) == 18


@pytest.mark.parametrize("models", [None, "none", {}, 3, [1]])
def test_models_are_all_or_a_list(tmp_path: Path, models: object) -> None:
    """Null could mean all or none, so it means neither."""
    (found,) = faults(tmp_path, changed(models=models))
    assert "policies.standard.models" in found


def test_names_are_not_checked_where_nobody_knows_what_is_served(tmp_path: Path) -> None:
    """As for `jubako keys`, which needs no release."""
    assert load(tmp_path, changed(models=["elsewhere"]), served=None)["default"].policy.models == frozenset(
        {"elsewhere"}
    )


@pytest.mark.parametrize("text", ["", "[]", "text", "policies: {}", "policies: []\ntenants: []", "tenants: null"])
def test_a_file_of_another_shape_is_a_fault(tmp_path: Path, text: str) -> None:
    """Never a traceback, and never a server without tenants by accident."""
    assert faults(tmp_path, text)


def test_an_unknown_tenant_is_told_with_the_nearest(tmp_path: Path) -> None:
    """For the command line."""
    known = load(tmp_path, ORIGINAL)
    assert tenants.known("default", known).name == "default"
    with pytest.raises(StartupFault, match="did you mean default"):
        tenants.known("defualt", known)


def test_ten_thousand_tenants_share_their_policies(tmp_path: Path) -> None:
    """One record a policy, however many tenants."""
    head = ORIGINAL[: ORIGINAL.index("tenants:")]
    many = "".join(f"  tenant-{number}: {{policy: standard, suspended: false}}\n" for number in range(10_000))
    known = load(tmp_path, f"{head}tenants:\n{many}")
    assert len(known) == 10_000
    assert known["tenant-0"].policy is known["tenant-9999"].policy
