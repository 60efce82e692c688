"""What two servers said to the whole corpus, and the verdict on each request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.contract.compare import Difference, cut_elsewhere, differences, differences_put_together
from tests.contract.corpus import Request
from tests.contract.differences import Declared, promised
from tests.contract.exchange import Reply
from tests.contract.faults import REQUESTS


@dataclass(frozen=True, slots=True)
class Parity:
    """Both servers' replies by the request's name, and the differences declared between the two."""

    vllm: dict[str, Reply]
    jubako: dict[str, Reply]
    declared: tuple[Declared, ...]

    @property
    def with_itself(self) -> bool:
        """Whether vLLM was asked twice, so that no difference is declared."""
        return not self.declared

    def differences(self, request: Request, without: Declared | None = None) -> list[Difference]:
        """Where the second server's reply is not as promised; `without` leaves one declared difference out."""
        expected, actual = self._promised(request, without), self.jubako[request.name]
        if cut_elsewhere(expected, actual):
            return differences_put_together(expected, actual)
        return differences(expected, actual)

    def needing(self, declared: Declared) -> set[str]:
        """The requests whose comparison would come out differently if `declared` were not."""
        return {r.name for r in REQUESTS if self.differences(r, without=declared) != self.differences(r)}

    def cut_elsewhere(self) -> list[str]:
        """The streams that could be compared only after their parts were put together."""
        return [request.name for request in REQUESTS if self._cut_elsewhere(request)]

    def _cut_elsewhere(self, request: Request) -> bool:
        return cut_elsewhere(self._promised(request, None), self.jubako[request.name])

    def _promised(self, request: Request, without: Declared | None) -> Reply:
        rules: Iterable[Declared] = (one for one in self.declared if one is not without)
        return promised(request, self.vllm[request.name], rules)
