"""What a message may bring along."""

import json
from collections.abc import Callable

import pytest

from proxy.chat.media import ForeignMedia, check_media
from proxy.errors import BadJson

ADDRESSES = ("http://169.254.169.254/", "HTTPS://x/y.png", " file:///etc/passwd", "ftp:/x")


def body(*parts: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()


@pytest.mark.parametrize("url", ADDRESSES)
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda url: {"image_url": {"url": url}}, id="object"),
        pytest.param(lambda url: {"image_url": url}, id="text"),
        pytest.param(lambda url: {"input_audio": {"data": url, "format": "wav"}}, id="audio"),
        pytest.param(lambda url: {"input_video": {"data": url}}, id="video"),
        pytest.param(lambda url: {"x": [{"y": [url]}]}, id="unknown"),
    ],
)
def test_nothing_is_fetched_for_a_caller(shape: Callable[[str], object], url: str) -> None:
    with pytest.raises(ForeignMedia):
        check_media(body({"type": "text", "text": "a"}, shape(url)))


@pytest.mark.parametrize(
    ("plain", "escaped"),
    [(b"http", b"\\u0068ttp"), (b"://", b":\\/\\/"), (b"p:", b"p\\u003a"), (b"url", b"\\u0075rl")],
)
def test_no_escape_hides_an_address(plain: bytes, escaped: bytes) -> None:
    told = body({"image_url": {"url": "http://x/"}}).replace(plain, escaped)

    with pytest.raises(ForeignMedia):
        check_media(told)


@pytest.mark.parametrize(
    "told",
    [
        body({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}),
        body({"type": "image_url", "image_url": {"url": "DATA:image/png;base64,A:/="}}),
        body({"type": "input_audio", "input_audio": {"data": "httpAAAA", "format": "wav"}}),
        body({"type": "text", "text": "see http://x/"}, 5, None, []),
        b'{"messages":[{"role":"user","content":"http://x/"}, 5, null]}',
        b'{"messages":"http://x/"}',
        b'["http://x/"]',
    ],
)
def test_what_the_request_holds_itself_passes(told: bytes) -> None:
    check_media(told)


def test_a_nest_too_deep_to_look_into_is_refused() -> None:
    told = b'{"messages":[{"content":[' + b"[" * 100_000 + b'"http://x"' + b"]" * 100_000 + b"]}]}"

    with pytest.raises(BadJson):
        check_media(told)
