"""A real Prometheus that scrapes one server and evaluates the rules; skips where it is not installed.

It knows Prometheus' programs and HTTP API; it knows nothing of what the metrics mean.
"""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.project import free_port, until

RULES = "prometheus-rules.yaml"


def program(name: str) -> str:
    """Where `prometheus` or `promtool` is; skips the test without it, unless nothing may be skipped."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("JUBAKO_TESTS_SKIP_NOTHING") == "1":
            pytest.fail(f"{name} is not installed, and JUBAKO_TESTS_SKIP_NOTHING is set")
        pytest.skip(f"{name} is not installed (Debian: apt-get install prometheus)")
    return found


@dataclass(frozen=True)
class Prometheus:
    """A running one, by its HTTP API."""

    url: str

    def get(self, path: str, **parameters: str | float) -> Any:
        """The data of an API call; fails with Prometheus' own message."""
        reply = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=120)
        answer = reply.json()
        assert answer["status"] == "success", answer.get("error", reply.text)
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Every loaded rule, with its health."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]


@contextmanager
def exposing(answer: Callable[[str], tuple[bytes, str]]) -> Iterator[int]:
    """An HTTP server whose /metrics is `answer` of the Accept header; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, content_type = answer(self.headers.get("accept", ""))
            self.send_response(200)
            self.send_header("content-type", content_type)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextmanager
def scraping(port: int, rules: Path, folder: Path) -> Iterator[Prometheus]:
    """Prometheus, scraping the port each second; returned once every rule has been evaluated after two scrapes."""
    own = free_port()
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "jubako", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    command = [
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{own}",
        "--enable-feature=exemplar-storage",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    running = Prometheus(f"http://127.0.0.1:{own}")
    began = time.time()
    try:
        until(lambda: process.poll() is not None or _settled(running, began), "Prometheus scraped and evaluated", 60)
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        yield running
    finally:
        process.terminate()
        process.wait(20)


def _settled(running: Prometheus, began: float) -> bool:
    """Whether there are two scrapes, and rules that were evaluated after them."""
    try:
        scrapes = running.query("count_over_time(up[1m])")
        if not scrapes or float(scrapes[0]["value"][1]) < 3:
            return False
        return time.time() > began + 4 and all(rule["health"] != "unknown" for rule in running.rules())
    except httpx.TransportError:
        return False
    except ValueError:  # the page that says it is not ready yet
        return False
