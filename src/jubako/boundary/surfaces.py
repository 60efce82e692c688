"""What is reachable beside the API: a guard around BentoML's own pages, and the answers to browsers of other origins.

An ASGI middleware, because BentoML's routes match before the application that we mount. It knows which paths are
BentoML's and who may see them, and answers `/metrics` itself; it knows nothing of the API's routes but their names, and
passes them on untouched.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping

from jubako.boundary import routes
from jubako.boundary.exchange import Exchange, Message, Receive, Send
from jubako.boundary.problems import Headers
from jubako.errors import Forbidden, InternalError, MethodNotAllowed, NotFound, Refusal
from jubako.sections import SurfaceSettings
from jubako.telemetry import logs
from jubako.vocabulary import Principal, Scope

logger = logging.getLogger(__name__)

Application = Callable[[Message, Receive, Send], Awaitable[None]]
Authenticate = Callable[[str | None], Awaitable[Principal]]
Scrape = Callable[[str], Awaitable[tuple[bytes, str]]]
"""All metrics and their content type, for a scraper's Accept header."""

_SLASHES = re.compile(r"/+")
_SPACE = "".join(map(chr, range(33)))
_API = "/v1/"
_CLOSED = "closed"
_METRICS = "/metrics"
_ASSETS = "/static_content"
"""What BentoML's own pages load; never needed where those are not."""
_DOCUMENTATION = ("/", "/schema.json", "/docs.json")
_EXPOSED = b", ".join(
    [
        b"openai-processing-ms",
        *(b"retry-after", b"retry-after-ms", b"x-request-id", b"x-should-retry"),
        *(
            f"x-ratelimit-{what}-{kind}".encode()
            for what in ("limit", "remaining", "reset")
            for kind in ("requests", "tokens")
        ),
    ]
)
_ALLOWED = (b"authorization", b"content-type", b"x-request-id", b"x-request-timeout-ms")
_STAINLESS = re.compile(rb"x-stainless-[a-z-]{1,40}")
_PREFLIGHT_SECONDS = b"600"


class SurfaceGuard:
    """ASGI around the whole service; for `Service.add_asgi_middleware(SurfaceGuard, settings=…, …)`.

    `api` is what the service mounts. What is its own goes there directly: the layers in between do nothing for it, and
    some of them do it for every token.
    """

    def __init__(
        self,
        app: Application,
        *,
        settings: SurfaceSettings,
        authenticate: Authenticate,
        scrape: Scrape,
        api: Application | None = None,
    ) -> None:
        self._app = app
        self._direct = api or app
        self._authenticate = authenticate
        self._scrape = scrape
        self._rules: Mapping[str, str] = {
            _METRICS: settings.metrics,
            **dict.fromkeys(_DOCUMENTATION, settings.documentation),
            _ASSETS: settings.documentation,
        }
        self._origins = frozenset(origin.encode("latin-1", "replace") for origin in settings.cors_origins)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if path.startswith(_API) and ".." not in path:
            if self._origins:
                await self._api(scope, receive, send)
            else:
                await self._direct(scope, receive, send)
        elif (rule := self._rule(path, scope.get("root_path", ""))) is None:
            await self._app(scope, receive, send)
        else:
            await self._guarded(rule, scope, receive, send)

    def _rule(self, path: str, root_path: str) -> str | None:
        """Who may see the path; None if it is no guarded one in any spelling."""
        spellings = {path, path.removeprefix(root_path)}
        rules = [
            self._rules.get(_ASSETS if one.startswith(f"{_ASSETS}/") else one, _CLOSED)
            for one in spellings
            if _guards(_plain(one), self._rules)
        ]
        # A spelling that BentoML does not know today is closed whatever the rule: it may know it tomorrow.
        return _CLOSED if _CLOSED in rules else next(iter(rules), None)

    async def _guarded(self, rule: str, scope: Message, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            exchange.require_sound_headers()
            if rule == _CLOSED:
                raise NotFound("Unknown URL. The API is served under /v1: models, chat/completions, completions.")
            if rule == "operator":
                principal = await self._authenticate(exchange.header("authorization"))
                if Scope.OPERATOR not in principal.scopes:
                    raise Forbidden("This credential has no operator scope.")
            if exchange.method not in {"GET", "HEAD"}:
                raise MethodNotAllowed("This URL takes GET requests only.", allow="GET")
            metrics = exchange.path.removeprefix(scope.get("root_path", "")) == _METRICS
            page = await self._scrape(exchange.header("accept") or "") if metrics else None
        except Refusal as refusal:
            await exchange.refuse(refusal)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody gets in, and nobody waits for an answer
            logger.error("%s failed: %s", exchange.path, logs.place(error))  # its message could quote a credential
            await exchange.refuse(InternalError("The server had an internal error."))
        else:
            if page is not None:
                await exchange.page(*page)
            else:
                await self._app(scope, receive, send)

    async def _api(self, scope: Message, receive: Receive, send: Send) -> None:
        """A route of the API, with what a browser of a configured origin needs to read the reply."""
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"")
        allowed: Headers = [(b"vary", b"origin")]
        if origin in self._origins:
            allowed.append((b"access-control-allow-origin", origin))
            asked = headers.get(b"access-control-request-method")
            if scope["method"] == "OPTIONS" and asked is not None and _known(asked, scope["path"]):
                await _preflight(asked, headers.get(b"access-control-request-headers", b""), allowed, send)
                return
            allowed.append((b"access-control-expose-headers", _EXPOSED))

        async def with_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *allowed]
            await send(message)

        await self._direct(scope, receive, with_origin)


def _guards(plain: str, rules: Mapping[str, str]) -> bool:
    return plain in rules or plain.startswith(_ASSETS)


def _plain(path: str) -> str:
    """`path` as its most liberal reader would have it: no case, no empty or dot segments, no slash at the end."""
    segments: list[str] = []
    for segment in _SLASHES.split(path.lower().replace("\\", "/").partition(";")[0]):
        bare = segment.strip(_SPACE)
        if bare == "..":
            del segments[-1:]
        elif bare not in {"", "."}:
            segments.append(bare)
    return "/" + "/".join(segments)


def _known(method: bytes, path: str) -> bool:
    try:
        routes.match(method.decode("latin-1"), path)
    except Refusal:
        return False
    return True


async def _preflight(method: bytes, asked: bytes, allowed: Headers, send: Send) -> None:
    """Say that the request may be made; never with credentials, as keys are sent by programs, not by browsers."""
    # The official SDK describes itself in headers of its own, whose names are its business.
    named = {name.strip().lower() for name in asked.split(b",")}
    sent = sorted(name for name in named if _STAINLESS.fullmatch(name))
    headers = [
        *allowed,
        (b"access-control-allow-methods", method),
        (b"access-control-allow-headers", b", ".join([*_ALLOWED, *sent])),
        (b"access-control-max-age", _PREFLIGHT_SECONDS),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
