"""HEAD and POST /api/blobs/:digest: files on their way into the store, as they are uploaded."""

from proxy.bodies import body_parts, content_length
from proxy.door import Door
from proxy.exchange import Exchange
from proxy.ollama.store_errors import in_ollamas_words
from supervisor.store.digests import Digest, parse_digest

PREFIX = "/api/blobs/"
ROUTE = f"{PREFIX}{{digest}}"


async def head(door: Door, exchange: Exchange) -> None:
    """HEAD /api/blobs/:digest: whether the store has it."""
    with in_ollamas_words():
        is_there = await door.store.has_blob(_digest(exchange))
    await exchange.reply(200 if is_there else 404, b"", content_type=b"")


async def post(door: Door, exchange: Exchange) -> None:
    """POST /api/blobs/:digest: the body, however long, is what the digest says it is."""
    with in_ollamas_words():
        is_new = await door.store.take_blob(
            _digest(exchange),
            body_parts(exchange.to_caller.receive),
            size_bytes=content_length(exchange.headers),
        )
    await exchange.reply(201 if is_new else 200, b"", content_type=b"")


def _digest(exchange: Exchange) -> Digest:
    """Raises BadDigest."""
    return parse_digest(exchange.path.removeprefix(PREFIX))
