"""The public port's ASGI application: who is let in, which route answers, errors as replies.

Raw ASGI, since every request goes through here, and each ends in one log line, without prompts.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic, time

import psutil
import structlog
from msgspec import Struct

from proxy import errors
from proxy.admission.access import Access, Answered, Headers, Refused
from proxy.admission.gate import Caller
from proxy.anthropic import routes as anthropic
from proxy.child.upstream import UpstreamPools
from proxy.door import Door, DoorSettings, Traces
from proxy.edge.known import HEAD, Head
from proxy.errors import BadRequest, CallerLeft, Dialect
from proxy.exchange import TEXT, Exchange, Receive, Scope, Send
from proxy.native import completion, direct, questions, vectors
from proxy.ollama import account, blobs, catalogue, chat, creation, embed, management
from proxy.openai import routes as openai
from proxy.request_id import CURRENT, id_of
from proxy.responses import routes as responses
from proxy.service import Service
from proxy.telemetry.metrics import CALLER_LEFT_STATUS, CONTENT_TYPE, Metrics
from proxy.telemetry.served import Note, Served, noted
from supervisor.leases.lease import Stopping
from supervisor.store.keeper import StoreKeeper

log = structlog.get_logger(__name__)

ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Handler = Callable[[Door, Exchange], Awaitable[None]]

PARTING_S = 0.5  # for the last event of a stream that is ended because the daemon stops

MAX_SHOWN = 200  # characters of a path, in the error about it

_SLASHES = re.compile("/{2,}")
_MODEL_PREFIX = "/v1/models/"
_STORED_PREFIX = "/v1/responses/"


class NoRoute(BadRequest):
    """A path that nothing answers."""

    status = 404
    code = "route_not_found"

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"there is no route {path[:MAX_SHOWN]}")


class WrongMethod(BadRequest):
    """A path that answers to other methods."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        self.method, self.allowed = method, allowed
        super().__init__(f"{method} is not offered here, but {', '.join(allowed)}")


async def health(door: Door, exchange: Exchange) -> None:
    """GET /health: the daemon serves; with counts, for those who may call."""
    if not exchange.is_known:
        return await exchange.reply_json({"status": "ok"})
    running = door.service.running()
    return await exchange.reply_json(
        {
            "status": "ok",
            "models": len(door.service.models()),
            "instances": len(running),
            "requests_running": sum(instance.running for instance in running),
            "requests_waiting": sum(instance.waiting for instance in running),
        }
    )


async def metrics(door: Door, exchange: Exchange) -> None:
    """GET /metrics, where the operator wants it on this port."""
    if not door.settings.serves_metrics:
        return await _not_found(exchange)
    return await exchange.reply(200, door.metrics.text(), content_type=CONTENT_TYPE)


ROUTES: dict[str, dict[str, Handler]] = {
    "/": {"GET": catalogue.root, "HEAD": catalogue.root},
    "/health": {"GET": health, "HEAD": health},
    "/metrics": {"GET": metrics, "HEAD": metrics},
    "/api/version": {"GET": catalogue.version, "HEAD": catalogue.version},
    "/api/status": {"GET": catalogue.status},
    "/api/tags": {"GET": catalogue.tags, "HEAD": catalogue.tags},
    "/api/ps": {"GET": catalogue.ps},
    "/api/show": {"POST": catalogue.show},
    "/api/pull": {"POST": management.pull},
    "/api/push": {"POST": management.push},
    "/api/create": {"POST": creation.create},
    "/api/copy": {"POST": management.copy},
    "/api/delete": {"DELETE": management.delete},
    blobs.ROUTE: {"HEAD": blobs.head, "POST": blobs.post},
    "/api/chat": {"POST": chat.chat},
    "/api/generate": {"POST": chat.generate},
    "/api/embed": {"POST": embed.embed},
    "/api/embeddings": {"POST": embed.embeddings},
    "/api/me": {"POST": account.account},
    "/api/signout": {"POST": account.account},
    account.KEYS_ROUTE: {"DELETE": account.account},
    "/api/experimental/web_search": {"POST": account.web_search},
    "/api/experimental/web_fetch": {"POST": account.web_fetch},
    "/api/experimental/model-recommendations": {"GET": account.recommendations},
    "/v1/models": {"GET": openai.list_models},
    "/v1/chat/completions": {"POST": openai.chat_completions},
    "/v1/completions": {"POST": openai.completions},
    "/v1/embeddings": {"POST": openai.embeddings},
    "/v1/responses": {"POST": responses.create},
    "/v1/responses/input_tokens": {"POST": responses.input_tokens},
    "/v1/messages": {"POST": anthropic.messages},
    "/v1/messages/count_tokens": {"POST": anthropic.count_tokens},
}
NATIVE: dict[str, dict[str, Handler]] = {
    "/completion": {"POST": completion.completion},
    "/completions": {"POST": completion.completion},
    "/infill": {"POST": completion.infill},
    "/tokenize": {"POST": questions.tokenize},
    "/detokenize": {"POST": questions.detokenize},
    "/apply-template": {"POST": questions.apply_template},
    "/props": {"GET": questions.props},
    "/slots": {"GET": questions.slots},
    "/lora-adapters": {"GET": questions.lora_adapters},
    "/embedding": {"POST": vectors.embedding},
    "/embeddings": {"POST": vectors.embedding},
    "/rerank": {"POST": vectors.rerank},
    "/reranking": {"POST": vectors.rerank},
    "/v1/rerank": {"POST": vectors.rerank},
    "/v1/reranking": {"POST": vectors.rerank},
    "/v1/audio/transcriptions": {"POST": vectors.transcriptions},
}
"""llama-server's own; its errors look like OpenAI's."""
ROUTES |= NATIVE
_NAMED = {blobs.PREFIX: blobs.ROUTE, account.KEYS_PREFIX: account.KEYS_ROUTE}
"""Where what follows is a name, and not part of the route."""


def build_app(
    service: Service,
    pools: UpstreamPools,
    settings: DoorSettings,
    metrics: Metrics,
    *,
    store: StoreKeeper,
    traces: Traces | None = None,
    note: Note = noted,
    is_parting: bool = False,
) -> ASGIApp:
    """The application of the public port; `is_parting`: it tells all that the daemon stops.

    `note` writes the log's line about each request.
    """
    kind = _Parting if is_parting else _App
    return kind(Door(service, pools, settings, metrics, store), traces, note)


class _LetIn(Struct, frozen=True):
    """What the door found of a head, for as long as it is the same door."""

    by: "_App"
    path: str
    dialect: Dialect
    headers: Headers
    caller: Caller
    handler: Handler


class _App:
    def __init__(self, door: Door, traces: Traces | None, note: Note) -> None:
        self._door, self._traces, self._note = door, traces, note
        self._access = Access(
            origins=door.settings.origins,
            checks_host=door.settings.listen_is_loopback,
            own_names=(socket.gethostname(),),
            own_addresses=_own_addresses(),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        head: Head = scope[HEAD]
        exchange = Exchange(scope, request_id=id_of(head.by_name, scope["headers"]))
        CURRENT.set(exchange.request_id)
        known = head.verdict
        if isinstance(known, _LetIn) and known.by is self and time() < known.caller.until:
            exchange.path, exchange.dialect = known.path, known.dialect
            exchange.extra_headers += known.headers
        else:
            known = None
            if "//" in exchange.path:
                exchange.path = _SLASHES.sub("/", exchange.path)
            exchange.dialect = _dialect(exchange.path)
        trace = self._traces.begun(exchange) if self._traces is not None else None
        error: str | None = None
        try:
            try:
                await self._handler(exchange, known)(self._door, exchange)
            except CallerLeft:
                error = "caller_left"
            except Exception as exc:
                error = await self._fail(exchange, exc)
        except asyncio.CancelledError:
            error = "stopping"
            await _part(exchange)  # not raised again: what ends a task is logged as a bug
        finally:
            self._note(_line(exchange, error))
            self._door.metrics.served(exchange, error)
            if trace is not None:
                trace.end(exchange, error)

    def _handler(self, exchange: Exchange, known: "_LetIn | None") -> Handler:
        """Who answers; `known`: what was found of the same head before. Raises what is refused."""
        if known is None:
            judged = self._judged(exchange)
            if isinstance(judged, Answered):
                return partial(_answered, judged)
            known = exchange.head.verdict = judged
        exchange.key_id, exchange.is_known = known.caller.key_id, known.caller.is_known
        return known.handler

    def _judged(self, exchange: Exchange) -> "_LetIn | Answered":
        """What the door says of a head. Raises what it refuses."""
        verdict = self._access.judge(
            exchange.method,
            origin=exchange.header(b"origin").decode("latin-1"),
            host=exchange.header(b"host").decode("latin-1"),
        )
        if isinstance(verdict, Answered):
            return verdict
        exchange.extra_headers += verdict.headers  # on a refusal's reply too
        caller = self._door.settings.gate.admit(
            exchange.method, exchange.path, exchange.headers, now=time()
        )
        handler = ROUTES.get(exchange.path, {}).get(exchange.method, _route)
        return _LetIn(self, exchange.path, exchange.dialect, verdict.headers, caller, handler)

    async def _fail(self, exchange: Exchange, exc: Exception) -> str:
        """Answers for an exception; one that the table does not know is a bug, logged as such."""
        if isinstance(exc, Refused) and self._door.settings.ollama_strict:
            await exchange.reply(exc.status, b"", content_type=b"")
            return exc.code
        said = errors.answer(exc, exchange.dialect)
        if said is None:
            log.error("request.failed", path=exchange.path, exc_info=exc)
            said = errors.internal_error(exchange.request_id)
        await exchange.fail(said)
        return said.code or said.kind


class _Parting(_App):
    """Before the models were looked at, none of them can be said to be there, or not."""

    def _handler(self, exchange: Exchange, known: _LetIn | None) -> Handler:
        raise Stopping


async def _answered(judged: Answered, door: Door, exchange: Exchange) -> None:
    await exchange.reply(judged.status, b"", content_type=b"", headers=judged.headers)


def _line(exchange: Exchange, error: str | None) -> Served:
    """What the log says of an exchange that ends now; `error`: what went wrong, in a word."""
    lease, usage, first_byte_s = exchange.lease, exchange.usage, exchange.first_byte_s
    return Served(
        exchange.request_id,
        exchange.method,
        exchange.path,
        exchange.status or CALLER_LEFT_STATUS,
        exchange.key_id or exchange.address,
        exchange.address,
        error,
        exchange.model,
        None if lease is None else lease.instance_id,
        None if lease is None else lease.slot,
        None if lease is None else lease.load_s and round(lease.load_s, 3),
        None if first_byte_s is None else int(first_byte_s * 1e4 + 0.5) / 1e4,  # round takes longer
        int((monotonic() - exchange.started_s) * 1e4 + 0.5) / 1e4,
        exchange.sent_bytes,
        None if usage is None else usage.prompt_tokens,
        None if usage is None else usage.decode_tokens,
    )


async def _route(door: Door, exchange: Exchange) -> None:
    path = exchange.path
    if path.startswith(direct.PREFIX):
        rest = direct.located(door, exchange)
        if (path := direct.OURS.get(rest, "")) not in ROUTES:
            return await direct.child(door, exchange, rest)
        exchange.dialect = _dialect(path)
    if path.startswith(_MODEL_PREFIX) and len(path) > len(_MODEL_PREFIX):
        if exchange.method == "GET":
            return await openai.one_model(door, exchange, path.removeprefix(_MODEL_PREFIX))
        return await _wrong_method(exchange, ("GET",))
    methods = ROUTES.get(path) or ROUTES.get(path.rstrip("/"))
    for prefix, route in _NAMED.items():
        if methods is None and path.startswith(prefix) and path.rstrip("/") != prefix[:-1]:
            methods = ROUTES[route]
    if methods is None and path.startswith(_STORED_PREFIX):
        return await responses.stored(door, exchange)
    if methods is None:
        return await _not_found(exchange)
    handler = methods.get(exchange.method)
    if handler is None:
        return await _wrong_method(exchange, tuple(methods))
    return await handler(door, exchange)


async def _not_found(exchange: Exchange) -> None:
    """In Ollama's dialect as Ollama says it. Raises NoRoute in the others."""
    if exchange.dialect is not Dialect.OLLAMA:
        raise NoRoute(exchange.path)
    await exchange.reply(404, b"404 page not found", content_type=TEXT)


async def _wrong_method(exchange: Exchange, allowed: tuple[str, ...]) -> None:
    """Likewise. Raises WrongMethod."""
    allow = (b"allow", ", ".join(allowed).encode())
    if exchange.dialect is not Dialect.OLLAMA:
        exchange.extra_headers.append(allow)
        raise WrongMethod(exchange.method, allowed)
    await exchange.reply(405, b"405 method not allowed", content_type=TEXT, headers=[allow])


async def _part(exchange: Exchange) -> None:
    """The last word to a caller whose exchange is ended because the daemon stops."""
    said = errors.answer(Stopping(), exchange.dialect)
    assert said is not None
    try:
        async with asyncio.timeout(PARTING_S):
            await exchange.fail(said)
    except TimeoutError:
        pass  # a reader too slow for a last word


def _dialect(path: str) -> Dialect:
    if path.startswith("/v1/messages"):
        return Dialect.ANTHROPIC
    is_openai = path.startswith(("/v1/", direct.PREFIX)) or path.rstrip("/") in NATIVE
    return Dialect.OPENAI if is_openai else Dialect.OLLAMA


def _own_addresses() -> list[str]:
    nics = psutil.net_if_addrs().values()
    return [address.address.partition("%")[0] for nic in nics for address in nic]
