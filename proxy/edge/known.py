"""Heads of requests that were parsed once, and are known again by their bytes. Pure.

What a parser and the application's door made of one before holds again.
"""

from collections.abc import Iterable
from typing import Any, Self

from uvicorn._types import HTTPScope

from proxy.outline import Outline

HEAD = "inferenceosd.head"
"""The key of a request's Head in its scope."""


class Head:
    """What a head says, and what was made of it, for every request that begins with it."""

    __slots__ = ("by_name", "verdict")

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.by_name: dict[bytes, bytes] = dict(reversed([*headers]))
        """The first value of each header."""
        self.verdict: object = None
        """The application's own, of whom it lets in: it knows its own from another's."""


class Known:
    """The head of a connection's last request."""

    __slots__ = ("_length", "_outline", "scope")

    def __init__(self, outline: Outline, length: bytes, scope: HTTPScope) -> None:
        self._outline, self._length = outline, length
        self.scope = scope
        """As it is for each of its requests, who copies it."""

    @classmethod
    def of(cls, data: bytes, scope: HTTPScope) -> Self | None:
        """That of a request which was parsed from the beginning of `data`, whole."""
        if scope["http_version"] != "1.1":
            return None
        outline = Outline.of(data, scope["headers"], start=scope["method"].encode() + b" ")
        if outline is None:
            return None
        return cls(outline, told_of(scope).by_name.get(b"content-length", b""), scope)

    def again(self, data: bytes) -> "tuple[Known, bytes] | None":
        """What is known of `data`, and its body, where it is such a request and no more."""
        found = self._outline.again(data)
        if found is None:
            return None
        length, body = found
        return (self if length == self._length else self._with(length)), body

    def _with(self, length: bytes) -> "Known":
        """The same but for the length of its body."""
        headers = [
            (name, length if name == b"content-length" else value)
            for name, value in self.scope["headers"]
        ]
        head = Head(headers)
        head.verdict = told_of(self.scope).verdict
        told: Any = {**self.scope, "headers": headers, HEAD: head}
        return Known(self._outline, length, told)


def told_of(scope: HTTPScope) -> Head:
    """The Head in a scope."""
    head: Head = scope[HEAD]  # type: ignore[literal-required]
    return head
