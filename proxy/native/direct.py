"""/upstream/{model}/…: a child's own routes and its web chat, by a model that the path names.

    /upstream/MODEL/REST ─ REST is served here by model → as if MODEL were in the body
                         ├ a question of the child's  → asked, and answered as it stands
                         ├ on the list of refusals    → 403, and why
                         └ a file of its web chat     → fetched, where server.ui says so
What goes to the child is one of these lists' own words, or a name without a way out of its folder.
"""

import re
import zlib
from urllib.parse import quote

from proxy import names
from proxy.child.upstream import UpstreamResponse
from proxy.door import Door
from proxy.errors import BadRequest, UnknownModel, UpstreamBroken, UpstreamGone
from proxy.exchange import Exchange
from proxy.forward import REAPED_S, REPLY_BYTES

PREFIX = "/upstream/"
MAX_SEGMENTS = 32
"""Of a model's name."""

_COMPLETING = (
    "/completion", "/completions", "/infill", "/v1/completions", "/v1/chat/completions",
    "/v1/responses", "/v1/messages", "/embedding", "/embeddings", "/v1/embeddings", "/rerank",
    "/reranking", "/v1/rerank", "/v1/reranking", "/v1/audio/transcriptions",
)  # fmt: skip
_ASKING = (
    "/tokenize", "/detokenize", "/apply-template", "/props", "/slots", "/lora-adapters",
    "/v1/responses/input_tokens", "/v1/messages/count_tokens",
)  # fmt: skip
OURS = {
    **{path: path for path in (*_COMPLETING, *_ASKING)},
    "/chat/completions": "/v1/chat/completions",
    "/responses": "/v1/responses",
    "/responses/input_tokens": "/v1/responses/input_tokens",
}
"""The child's routes that are served here, and what they are called here."""

_QUESTIONS = {"/health": b"/health", "/v1/health": b"/health", "/models": b"/v1/models",
              "/v1/models": b"/v1/models"}  # fmt: skip
_REFUSALS = (
    ("/slots/", "what slots hold, and the files it is saved to, are other callers' conversations"),
    ("/models/", "a model is loaded by asking it something, and unloaded by inferenceosctl"),
    ("/v1/stream", "the replies that a child keeps are other callers'"),
    ("/v1/chat/completions/control", "it would end other callers' replies"),
    ("/tools", "it would act on this machine for whoever asks"),
    ("/cors-proxy", "it would fetch for others what only this machine can reach"),
    ("/metrics", "its numbers are part of the daemon's own"),
)
_FILE = re.compile(
    r"/(?:[A-Za-z0-9_@+~\-][A-Za-z0-9._@+~\-]*/)*(?:[A-Za-z0-9_@+~\-][A-Za-z0-9._@+~\-]*)?"
)
_ASKED_WITH = (b"if-none-match",)
_GZIP = b"gzip"
"""All that a child has its files in; whoever does not read it gets them decoded."""
_GZIP_WBITS = 31  # zlib.h: 16 for gzip's header, 15 for the largest window
_TOLD_WITH = (
    b"content-encoding", b"etag", b"cache-control", b"cross-origin-embedder-policy",
    b"cross-origin-opener-policy", b"vary",
)  # fmt: skip
_POLICY = (
    (b"content-security-policy", b"frame-ancestors 'self'; base-uri 'self'; object-src 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
"""A page of elsewhere frames no web chat, to have its visitor click there."""


class NotOffered(BadRequest):
    """A route of the child's that nobody may use through this door."""

    status = 403
    code = "route_refused"

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path} is not offered: {reason}")


class NoSuchRoute(BadRequest):
    """The child has no such route, or its web chat is off."""

    status = 404


def located(door: Door, exchange: Exchange) -> str:
    """What follows the model's name in the path; the name goes to the exchange.

    A name may hold slashes: the longest one that is a model's is meant. Raises UnknownModel.
    """
    segments = exchange.path.removeprefix(PREFIX).split("/")
    for n in range(min(len(segments), MAX_SEGMENTS), 0, -1):
        name = "/".join(segments[:n])
        if name and door.service.resolve(name) is not None:
            exchange.given_model = name
            return "".join(f"/{segment}" for segment in segments[n:])
    raise UnknownModel("/".join(segments)[: names.MAX_NAME])


async def child(door: Door, exchange: Exchange, path: str) -> None:
    """Answers for a path that is not among OURS."""
    if not path:  # its web chat's addresses are relative to a folder
        here = quote(exchange.path.rpartition("/")[2])
        return await exchange.reply(308, b"", headers=[(b"location", f"./{here}/".encode())])
    for refused, reason in _REFUSALS:
        if path == refused or path.startswith(refused):
            raise NotOffered(path, reason)
    target = _QUESTIONS.get(path)
    if exchange.method != "GET":
        allowed = "only GET" if target is not None else "nothing"
        raise NoSuchRoute(f"{allowed} is offered there under {PREFIX}")
    if target is None:
        target = _file(path, is_offered=door.settings.ui)
    with exchange.attended():
        try:
            await _fetched(door, exchange, target)
        except UpstreamGone:
            await _fetched(door, exchange, target)


def _file(path: str, *, is_offered: bool) -> bytes:
    if not is_offered:
        raise NoSuchRoute("llama-server's web chat is off; set ui = true under [server]")
    if not _FILE.fullmatch(path):
        raise NoSuchRoute("no file of the web chat has such a name")
    return path.encode()


async def _fetched(door: Door, exchange: Exchange, target: bytes) -> None:
    """Whole, with the headers that matter to a browser; nothing of it takes a slot."""
    model = names.served(door, exchange, "")
    asked = ((name, exchange.header(name)) for name in _ASKED_WITH)
    headers = [*((name, value) for name, value in asked if value), *exchange.passed_on]
    headers.append((b"accept-encoding", _GZIP))
    async with door.service.lease(
        model.model_id, caller=exchange.caller, takes_slot=False
    ) as lease:
        exchange.lease = lease
        sent = door.pools.request(lease.socket_path, method=b"GET", target=target, headers=headers)
        try:
            async with sent as response:
                body = await response.read(limit_bytes=REPLY_BYTES)
        except UpstreamGone:
            await door.service.until_gone(lease, within_s=REAPED_S)
            raise
    told = {name: value for name in _TOLD_WITH if (value := response.header(name))}
    if told.get(b"content-encoding") == _GZIP:
        told.setdefault(b"vary", b"accept-encoding")
        if not reads_gzip(exchange.header(b"accept-encoding")):
            body = _unpacked(response, body)
            del told[b"content-encoding"]
    kind, headers = response.header(b"content-type"), [*told.items(), *_POLICY]
    await exchange.reply(response.status, body, content_type=kind, headers=headers)


def reads_gzip(accepted: bytes) -> bool:
    """Whether a caller takes it, by its Accept-Encoding (RFC 9110, 12.5.3)."""
    weights: dict[bytes, bytes] = {}
    for part in accepted.lower().split(b","):
        coding, _, weight = part.partition(b";")
        weights[coding.strip()] = weight.replace(b" ", b"")
    weight = weights.get(_GZIP, weights.get(b"*", b"q=0"))
    return not re.fullmatch(rb"q=0(\.0*)?", weight)


def _unpacked(response: UpstreamResponse, body: bytes) -> bytes:
    """Raises UpstreamBroken for what is no gzip, or more than a reply may be."""
    packed = zlib.decompressobj(wbits=_GZIP_WBITS)
    try:
        unpacked = packed.decompress(body, REPLY_BYTES)
    except zlib.error as exc:
        raise UpstreamBroken(response.socket_path, f"a file of another shape ({exc})") from exc
    if not packed.eof:
        raise UpstreamBroken(response.socket_path, "a file that is cut, or too large")
    return unpacked
