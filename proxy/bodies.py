"""Request bodies: read within bounds, decoded as far as a route needs, sent on unwritten."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from typing import Any, TypeVar

import msgspec

from proxy.errors import BadJson, BodyTooLarge, CallerLeft, TooManyValues

Receive = Callable[[], Awaitable[Any]]
Buffers = tuple[bytes | memoryview, ...]
"""A body in pieces, so that a large one is not copied to be amended."""

T = TypeVar("T")

MAX_VALUES = 1 << 20
"""In one body: token ids for a context of a million, or for a large batch of embeddings.

A value may take 100 bytes here and in the child, and a microsecond, however short it is written.
"""

_BLANKS = b" \t\r\n"
_LAST = b'"]}el0123456789'  # characters of members: texts, arrays, objects, true, null, numbers
_COPIED_BYTES = 16 << 10  # what is shorter costs less to copy than to be looked at in pieces
_SCANNED_BYTES = 64 << 10  # at a time: what is refused is refused early; larger copies are slower
_BACKSLASHES = re.compile(rb"\\*")
_FIELD = re.compile(r" - at `\$\.([^`]+)`$")
"""Where msgspec's sentence says that a value is of the wrong type."""


def content_length(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """The length announced, None where none is (a chunked body, or no body)."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)  # uvicorn's parser has refused what is no number
    return None


async def read_body(
    receive: Receive, headers: Sequence[tuple[bytes, bytes]], *, limit_bytes: int
) -> bytes:
    """The whole body, at most limit_bytes.

    Raises BodyTooLarge, before reading where the length is announced, and CallerLeft.
    """
    announced = content_length(headers)
    if announced is not None and announced > limit_bytes:
        raise BodyTooLarge(limit_bytes=limit_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message: MutableMapping[str, Any] = await receive()
        if message["type"] == "http.disconnect":
            raise CallerLeft
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise BodyTooLarge(limit_bytes=limit_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def body_parts(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it comes, however long it is. Raises CallerLeft."""
    while True:
        message: MutableMapping[str, Any] = await receive()
        if message["type"] == "http.disconnect":
            raise CallerLeft
        if part := message.get("body", b""):
            yield part
        if not message.get("more_body", False):
            return


def bound_values(body: bytes, *, limit: int) -> None:
    """Raises TooManyValues for JSON of more arrays, objects and commas than `limit`.

    Not decoded: what of `body` is no text is told apart by its quotation marks.
    """
    if len(body) <= limit:  # as nearly all are
        return
    values = quotes = start = 0
    while start < len(body):
        end = _unescaped(body, start + _SCANNED_BYTES)
        part = body[start:end]
        if b"\\" in part:
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        texts = part.split(b'"')
        between = b"".join(texts[quotes % 2 :: 2])
        values += between.count(b",") + between.count(b"[") + between.count(b"{")
        quotes += len(texts) - 1
        if values > limit or quotes > 4 * limit:  # of no more than that many keys and values
            raise TooManyValues(limit=limit)
        start = end


def _unescaped(body: bytes, at: int) -> int:
    """The first place from `at` on that is not within an escape."""
    if body[at - 1 : at] != b"\\":
        return at
    run = _BACKSLASHES.match(body, at)
    assert run is not None
    return run.end() + 1


def decoded(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The fields of a JSON object that `decoder` knows; of others, the syntax.

    Raises BadJson, TooManyValues.
    """
    if len(body) > MAX_VALUES:
        bound_values(body, limit=MAX_VALUES)
    if not body.strip(_BLANKS):
        raise BadJson("missing request body")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as exc:
        at = _FIELD.search(str(exc))
        param = at[1] if at else None
        raise BadJson(f"the request body is of the wrong shape: {exc}", param=param) from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadJson(f"the request body is no JSON: {exc}") from exc
    except RecursionError as exc:
        raise BadJson("the request body is nested too deeply") from exc


def texts_in(value: object, *, but_for: str | None = None) -> Iterator[str]:
    """Every text in decoded JSON, however deep; not what a key `but_for` holds."""
    rest = [value]
    while rest:
        match rest.pop():
            case str(text):
                yield text
            case list(items):
                rest += items
            case dict(members):
                rest += [item for key, item in members.items() if key != but_for]


def amended(body: bytes, extra: bytes) -> Buffers:
    """`body`, a JSON object, with `extra` (`"key":value,…`) as its last members; uncopied if long.

    llama-server, like most parsers, lets the last of two equal keys win, so `extra` also overrides.
    """
    end = len(body)
    if end < _COPIED_BYTES and body[-1:] == b"}" and body[-2] in _LAST:  # as nearly all
        return (b"%b,%b}" % (body[:-1], extra),)
    while body[end - 1] in _BLANKS:
        end -= 1
    end -= 1  # the closing brace
    inner = end
    while body[inner - 1] in _BLANKS:
        inner -= 1
    comma = b"" if body[inner - 1] == ord("{") else b","
    return (memoryview(body)[:end], comma + extra + b"}")
