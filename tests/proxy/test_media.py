"""What a message may bring along."""

import json

import pytest

from proxy.media import ForeignMedia, check_media


def body(part: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": [part]}]}).encode()


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/", "HTTPS://x/y.png", "file:///etc/passwd", "/etc/passwd", ""]
)
@pytest.mark.parametrize(
    "shape",
    [
        lambda url: {"type": "image_url", "image_url": {"url": url}},
        lambda url: {"type": "image_url", "image_url": url},
        lambda url: {"type": "input_audio", "input_audio": {"url": url}},
    ],
    ids=["object", "text", "audio"],
)
def test_nothing_is_fetched_for_a_caller(shape: object, url: str) -> None:
    assert callable(shape)

    with pytest.raises(ForeignMedia):
        check_media(body(shape(url)))


def test_an_escaped_key_hides_no_address() -> None:
    told = body({"image_url": {"url": "http://x/"}}).replace(b"url", b"\\u0075rl")

    with pytest.raises(ForeignMedia):
        check_media(told)


@pytest.mark.parametrize(
    "told",
    [
        body({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}),
        body({"type": "text", "text": "see url http://x/"}),
        b'{"messages":[{"role":"user","content":"a url"}, 5, null]}',
        b'{"messages":"url"}',
        b'["url"]',
    ],
)
def test_what_the_request_holds_itself_passes(told: bytes) -> None:
    check_media(told)
