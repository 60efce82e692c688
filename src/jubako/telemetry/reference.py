"""docs/METRICS.md, from the metrics themselves: `python -m jubako.telemetry.reference > docs/METRICS.md`."""

from __future__ import annotations

import sys

from jubako.start_times import StartPhase
from jubako.telemetry.metrics import (
    CODES,
    FAMILIES,
    MAX_SERIES_AT_START,
    NO_ALIAS,
    OTHER_CODE,
    PRIORITIES,
    UNKNOWN_ROUTE,
    Family,
)
from jubako.vocabulary import Outcome, Route

_VALUES = {
    "route": [*(route.value for route in Route), UNKNOWN_ROUTE],
    "alias": ["every served name, adapters included", NO_ALIAS],
    "outcome": [outcome.value for outcome in Outcome],
    "code": [*CODES, OTHER_CODE],
    "priority": [f"0 to {PRIORITIES - 1}"],
    "kind": ["prompt", "cached", "generated"],
    "phase": [phase.value for phase in StartPhase],
    "release": ["name/version of the release that is served"],
    "digest": ["its sha256"],
}


def markdown() -> str:
    """The whole page."""
    lines = [
        "# Metrics",
        "",
        "Made from `src/jubako/telemetry/metrics.py`; change that, then `python -m jubako.telemetry.reference`.",
        "",
        "`/metrics` has these, vLLM's own `vllm:*` unchanged, and `process_*` and `python_gc_*` of the serving",
        "process. No label has a tenant, a key, a path, a request id or anything else that a caller chooses.",
        "",
        "| metric | kind | labels | meaning |",
        "|---|---|---|---|",
        *map(_row, FAMILIES.values()),
        "",
        "## Labels",
        "",
        "| label | values |",
        "|---|---|",
        *(f"| `{label}` | {', '.join(values)} |" for label, values in _VALUES.items()),
        "",
        "## Buckets",
        "",
        "| histogram | upper bounds in seconds |",
        "|---|---|",
        *(
            f"| `{family.name}` | {', '.join(f'{bound:g}' for bound in family.buckets)} |"
            for family in FAMILIES.values()
            if family.buckets
        ),
        "",
        "Every series is there from the start, as 0, so that the rate of a first event is right. The one exception:",
        f"where `jubako_requests_total` would have more than {MAX_SERIES_AT_START} of them, as the release has",
        "very many names, those with a name appear with their first request. Gauges are read when they are scraped.",
        "",
    ]
    return "\n".join(lines)


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
