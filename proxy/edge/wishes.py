"""Requests that wish to go on in another protocol (Upgrade), h2c above all: said again without it.

Java's HTTP client asks so of every server it does not know, with the first body it sends.
"""

from uvicorn._types import HTTPScope

_WISHES = (b"upgrade", b"http2-settings")


def head_without_wish(scope: HTTPScope, url: bytes) -> bytes:
    """The head of a parsed request, as it would be without Upgrade."""
    method, version = scope["method"].encode(), scope["http_version"].encode()
    lines = [b"%b %b HTTP/%b\r\n" % (method, url, version)]
    for name, value in scope["headers"]:
        if name == b"connection":
            tokens = (token.strip() for token in value.split(b","))
            value = b", ".join(token for token in tokens if token.lower() not in _WISHES)
        if name not in _WISHES:
            lines += (name, b": ", value, b"\r\n")
    return b"".join([*lines, b"\r\n"])
