"""The OpenAPI document is true of the real server: requests made of it never stall it, and never find it at fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from schemathesis import GenerationMode

from tests.contract.corpus import BASE
from tests.engine_metrics import await_rest
from tests.fuzzing import FUZZES, STALL_SECONDS, Fuzzing

if TYPE_CHECKING:
    from tests.project import Served
    from tests.tenants import Keys

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

EXAMPLES = 150
SECONDS = {"GET": 5.0, "POST": 20.0}
"""Of asking, for each operation and mode: 90 together."""


@pytest.mark.parametrize(("operation", "mode"), FUZZES, ids=lambda value: getattr(value, "value", value))
def test_the_server_keeps_to_its_document(
    jubako_server: Served, keys: Keys, operation: str, mode: GenerationMode
) -> None:
    """Documented statuses, content types, headers and schemas; no fault, no stall, and rest afterwards."""
    fuzzing = Fuzzing(jubako_server.url, keys.of("red"), BASE, seconds=SECONDS[operation.partition(" ")[0]])
    fuzzing.run(operation, mode, examples=EXAMPLES)
    assert fuzzing.statuses.total() > 0
    assert fuzzing.slowest_seconds < STALL_SECONDS
    if mode is GenerationMode.POSITIVE:
        # What fits the document reaches the engine, or nothing was tried.
        assert fuzzing.statuses[httpx.codes.OK] > 0
    assert httpx.get(f"{jubako_server.url}/readyz", timeout=120).status_code == httpx.codes.OK
    await_rest(jubako_server, 60)
