"""Request bodies: read within a bound, decoded as far as a route needs, sent on unwritten."""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeVar

import msgspec

from proxy.errors import BadJson, BodyTooLarge, CallerLeft

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Buffers = tuple[bytes | memoryview, ...]
"""A body in pieces, so that a large one is not copied to be amended."""

T = TypeVar("T")

_BLANKS = b" \t\r\n"


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
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerLeft
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise BodyTooLarge(limit_bytes=limit_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def decoded(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The fields of a JSON object that `decoder` knows; of others, the syntax. Raises BadJson."""
    if not body.strip(_BLANKS):
        raise BadJson("missing request body")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as exc:
        raise BadJson(f"the request body is of the wrong shape: {exc}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadJson(f"the request body is no JSON: {exc}") from exc
    except RecursionError as exc:
        raise BadJson("the request body is nested too deeply") from exc


def amended(body: bytes, extra: bytes) -> Buffers:
    """`body`, a JSON object, with `extra` (`"key":value,…`) as its last members, uncopied.

    llama-server, like most parsers, lets the last of two equal keys win, so `extra` also overrides.
    """
    end = len(body)
    while body[end - 1] in _BLANKS:
        end -= 1
    end -= 1  # the closing brace
    inner = end
    while body[inner - 1] in _BLANKS:
        inner -= 1
    comma = b"" if body[inner - 1] == ord("{") else b","
    return (memoryview(body)[:end], comma + extra + b"}")
