"""The BentoML service: one class that owns the engine. Hooks, mount and probes; everything else is in `jubako`.

This module is imported by the arbiter, by the worker and by `bentoml build`: no vLLM, no secrets here.
"""

from __future__ import annotations

import os
from pathlib import Path

# One worker needs no metrics files shared between processes; those cost a write to mapped memory for every count, and
# a second server on the same machine would wipe them. Before anything imports prometheus_client, which looks once.
os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
os.environ.setdefault("BENTOML_DO_NOT_TRACK", "True")

import bentoml
from bentoml._internal.configuration.containers import BentoMLContainer
from bentoml._internal.server.metrics.prometheus import PrometheusClient

from jubako.boundary.surfaces import SurfaceGuard
from jubako.release.bundle import PinnedModel
from jubako.server import Server

BentoMLContainer.metrics_client.set(PrometheusClient(multiproc=False))
server = Server.load_or_exit(Path(__file__).resolve().parent)
application = server.application

# The image installs the lock as it stands, torch apart from it: BentoML's own step would solve it again and take a
# CUDA build of torch. The path is relative because BentoML allows no other; only a build, which runs here, needs it.
PROFILE = server.settings.server.engine.profile
LOCK = f"requirements/{PROFILE}.txt"
image = bentoml.images.Image(python_version="3.11", lock_python_packages=False).build_include("requirements", "scripts")
if Path(LOCK).is_file():
    image.requirements_file(LOCK)
    if PROFILE == "cpu":
        image.run("sh ./src/scripts/torch.sh uv pip install")


@bentoml.service(
    # Not the package's name: BentoML tries a Bento's tag as module:attribute first, and would import whichever package
    # of that name is installed instead of the one in the Bento.
    name="jubako-server",
    workers=1,
    image=image,
    labels={"release": server.manifest.reference.replace("/", "."), "release-digest": server.manifest.digest},
    envs=[{"name": "UV_EXCLUDE", "value": "/home/bentoml/bento/src/requirements/not-locked.txt"}],
    # Ours fire first, with a reason; BentoML's would answer in another shape. Not longer than that needs: its timer
    # stays in memory until then, for every request.
    traffic={"timeout": server.settings.first_byte_seconds + 30},
    endpoints={"livez": "/livez", "readyz": "/readyz"},
    # Spans and access lines of BentoML's cost more per streamed token than the token; Jubako writes its own line.
    tracing={"excluded_urls": ".*"},
    logging={"access": {"enabled": False}},
    # Its middleware labels by path and costs per message; /metrics is answered by the guard below.
    metrics={"enabled": False},
)
@bentoml.asgi_app(application)
class Jubako:
    """Serves the release that configuration/server.yaml names."""

    model = PinnedModel.of(server.manifest)

    @bentoml.on_deployment  # makes it static; under @staticmethod BentoML would not find it
    def check() -> None:
        """Verify everything before the socket opens."""
        server.check_or_exit()

    @bentoml.on_startup
    async def start(self) -> None:
        """Begin loading the engine."""
        await server.start()

    @bentoml.on_shutdown
    async def stop(self) -> None:
        """Close the engine if it is still there."""
        await server.stop()

    def __is_ready__(self) -> bool:
        """Ready means: verified, smoke-tested, moving, not draining."""
        return server.readiness.ready

    def __is_alive__(self) -> bool:
        """Alive unless failed; a failed process is about to end by itself."""
        return server.readiness.phase != "failed"


# Around BentoML's own routes too: what is not the API is the operator's.
Jubako.add_asgi_middleware(  # type: ignore[attr-defined]
    SurfaceGuard,
    settings=server.settings.server.surfaces,
    authenticate=server.authenticate,
    scrape=server.scrape,
    api=application,
)
