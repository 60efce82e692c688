"""What `make bench-scale` says follows from what was measured; a cost that grew fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench.pages import marks
from tests.bench.scale import document
from tests.bench.scale.verdicts import FLAT, STALL_MS, STORED, verdicts


def report(*, request: float = 1.0, pause_ms: float = 30.0) -> dict[str, Any]:
    """A whole report, flat but for what a test changes."""
    flat = {"us": 800.0, "ratio": 1.0, "least": 0.9, "most": 1.1}
    grown = flat | {"ratio": request}
    page = {"bytes": 80_000, "seconds": 0.01}
    loading = {
        "tenants_file_bytes": 1024,
        "keys_file_bytes": 1024,
        "load_seconds": 0.1,
        "kept_bytes": 2**20,
        "keys_reload_seconds": 0.1,
        "tenants_reload_seconds": 0.1,
    }
    found = {
        "command": "a command",
        "date": "2026-01-31",
        "minutes": 7.0,
        "rounds": 5,
        "step_ms": 16.0,
        "machine": {"cores": 2, "processor": "a processor", "memory_gib": 8, "python": "3.11"},
        "versions": {"jubako": "0"},
        "requests": {way: {"10": flat, "10000": grown} for way in ("whole", "own")},
        "streams": {"10": {"1": 900.0, "16": 90.0, "64": 60.0, "256": 40.0}, "10000": {"64": 60.0}},
        "gaps": {name: {"gap_p99_ms": 20.0} for name in ("1", "16", "64", "256")},
        "a_step_us": 800.0,
        "a_token_us": 40.0,
        "most_beside_16": flat,
        "tenants_beside_few": flat,
        "loading": {"10": loading, "10000": loading},
        "metrics": {"10": page, "10000": page},
        "reload": {name: {"gap_max_ms": 30.0} for name in ("nothing", "keys")} | {"tenants": {"gap_max_ms": pause_ms}},
    }
    return found | {"verdicts": verdicts(found)}


def test_what_is_flat_holds() -> None:
    """Every promise."""
    assert all(one["holds"] for one in report()["verdicts"])


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({"request": FLAT + 0.01}, 1),
        ({"request": STORED + 0.01}, 2),
        ({"pause_ms": 30.0 + STALL_MS + 1}, 1),
        ({"request": FLAT}, 0),
    ],
)
def test_what_grew_beyond_its_bound_fails(changes: dict[str, float], missed: int) -> None:
    """The bound itself is allowed."""
    assert sum(not one["holds"] for one in report(**changes)["verdicts"]) == missed


def test_the_page_keeps_what_people_wrote(tmp_path: Path) -> None:
    """Only what stands between the lines is replaced, again and again."""
    page = tmp_path / "page.md"
    page.write_text("before\n" + "\n".join(marks("scale")) + "\nafter\n")
    document.publish(report(), page)
    once = page.read_text()
    document.publish(report(), page)
    assert page.read_text() == once
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "a processor" in once
    assert "| 10000 | 800 | 1.00 |" in once
