import pytest
from uvicorn._types import HTTPScope

from proxy.edge.wishes import head_without_wish


def scope(*headers: tuple[bytes, bytes], version: str = "1.1") -> HTTPScope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": version,
        "method": "POST",
        "scheme": "http",
        "path": "/v1/x",
        "raw_path": b"/v1/x",
        "query_string": b"",
        "root_path": "",
        "headers": list(headers),
        "client": None,
        "server": None,
    }


def test_the_wish_is_gone_and_all_else_is_as_it_was() -> None:
    asked = scope(
        (b"host", b"a"),
        (b"upgrade", b"h2c"),
        (b"connection", b"Upgrade, HTTP2-Settings, close"),
        (b"http2-settings", b"AAMAAABk"),
        (b"content-length", b"2"),
    )

    head = head_without_wish(asked, b"/v1/x?y=%20")

    assert head == (
        b"POST /v1/x?y=%20 HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 2\r\n\r\n"
    )


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_the_version_stays(version: str) -> None:
    assert b" HTTP/" + version.encode() in head_without_wish(scope(version=version), b"/")
