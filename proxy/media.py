"""Images and audio in a chat's messages: only what the request itself holds goes to a child.

llama-server fetches http addresses, and reads files below its --media-path: callers would reach
through it what only this machine can.
"""

from collections.abc import Iterator

import msgspec

from proxy.errors import BadRequest


class ForeignMedia(BadRequest):
    """A part of a message lies elsewhere."""

    code = "media_not_fetched"

    def __init__(self) -> None:
        super().__init__(
            "images and audio are taken from data: URLs alone; no other address is fetched",
            param="messages",
        )


def check_media(body: bytes) -> None:
    """Raises ForeignMedia for messages with a URL, in whatever kind of part, that is no data."""
    if b"url" not in body and b"\\u" not in body:  # as nearly all are; a key may be escaped
        return
    told = msgspec.json.decode(body)
    messages = told.get("messages") if isinstance(told, dict) else None
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if not all(url.startswith("data:") for url in _urls(part)):
                raise ForeignMedia


def _urls(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str) and (key == "url" or key.endswith("_url")):
                yield item
            yield from _urls(item)
