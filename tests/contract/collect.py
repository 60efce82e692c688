"""Writes all replies of one server as JSON, for people: `python -m tests.contract.collect MODEL_FOLDER OUT.json`.

With `--url` it asks a server that already runs instead of starting vLLM's own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from tests.contract.exchange import Exchange, Reply
from tests.contract.faults import REQUESTS
from tests.contract.vllm_server import vllm_server
from tests.tiny_lora import write_adapter


def collect(url: str, key: str = "") -> dict[str, Reply]:
    """Send the whole corpus to the server at `url`."""
    with Exchange(url, key) as exchange:
        return exchange.send_all(REQUESTS)


def main() -> None:
    """Collect from the command line."""
    parser = argparse.ArgumentParser(description="Write all replies of one server as JSON.")
    parser.add_argument("model_folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--url", default="")
    parser.add_argument("--key", default="")
    arguments = parser.parse_args()
    if arguments.url:
        replies = collect(arguments.url, arguments.key)
    else:
        with tempfile.TemporaryDirectory() as folder:
            adapter = write_adapter(arguments.model_folder, Path(folder) / "adapter")
            with vllm_server(arguments.model_folder, adapter, Path(folder) / "vllm.log") as url:
                replies = collect(url, arguments.key)
    report = {
        request.name: {
            "request": {"method": request.method, "path": request.path, "body": request.body}
            | {"raw": None if request.raw is None else repr(request.raw), "headers": dict(request.headers)},
            "reply": replies[request.name].as_json(),
        }
        for request in REQUESTS
    }
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
