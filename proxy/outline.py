"""Heads that come again byte for byte, but for their Content-Length. Pure.

Callers ask with the same head, and children answer with the same one, again and again: one whose
outline is known need not be parsed to say what it says, and how long the body behind it is.
"""

import re
from collections.abc import Iterable
from typing import Self

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})\r\n", re.IGNORECASE)
_LENGTH_DIGITS = 15
_STAYS = b"keep-alive"
_UNUSUAL = (b"transfer-encoding", b"upgrade", b"http2-settings", b"expect", b"trailer")
"""Fields by which a head says more than what follows, and how long that is."""


class Outline:
    """A head in the two pieces around its Content-Length."""

    __slots__ = ("_after", "_before", "_is_sized", "_last", "_length", "_n_bytes")

    def __init__(self, before: bytes, length: bytes, after: bytes, *, is_sized: bool) -> None:
        self._before, self._after, self._is_sized = before, after, is_sized
        self._last, self._length = before + length + after, length
        """The head as it came last, and its length as it was told."""
        self._n_bytes = int(length) if is_sized else 0

    @classmethod
    def of(
        cls, data: bytes, headers: Iterable[tuple[bytes, bytes]], *, start: bytes
    ) -> Self | None:
        """Of the message at the beginning of `data`, in HTTP/1.1 and read whole by a parser.

        `headers`: what the parser found, names in lower case; `start`: what its first line begins
        with. None where the bytes do not say by themselves where head and body end.
        """
        end = data.find(b"\r\n\r\n") + 4
        head = data[:end]
        if (
            not head.startswith(start)  # blank lines came before
            or head.count(b"\n") != head.count(b"\r\n")  # a line, or all of it, ends otherwise
            or b"\r\n " in head
            or b"\r\n\t" in head
        ):
            return None
        n_lengths = 0
        for name, value in headers:
            if name in _UNUSUAL or (name == b"connection" and value.lower() != _STAYS):
                return None
            n_lengths += name == b"content-length"
        found = _LENGTH.search(head)
        if n_lengths == 0 and found is None:
            return cls(head, b"", b"", is_sized=False)
        if n_lengths != 1 or found is None:
            return None
        before, length, after = head[: found.start(1)], found[1], head[found.end(1) :]
        return cls(before, length, after, is_sized=True)

    def again(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Length, as it is told, and body of a message with such a head, where `data` is just that.

        No length is told where there is no body.
        """
        if data.startswith(self._last):
            body = data[len(self._last) :]
            return (self._length, body) if len(body) == self._n_bytes else None
        if not (self._is_sized and data.startswith(self._before)):
            return None
        at = len(self._before)
        end = data.find(b"\r", at, at + _LENGTH_DIGITS + 1)
        told = data[at:end]
        if not (told.isdigit() and data.startswith(self._after, end)):
            return None
        body_at = end + len(self._after)
        body = data[body_at:]
        if len(body) != int(told):
            return None
        self._last, self._length, self._n_bytes = data[:body_at], told, len(body)
        return told, body
