"""Images and audio in a chat's messages: only what the request itself holds goes to a child.

llama-server (b10434) fetches what begins with http, wherever a part may have its data, and reads
files below its --media-path: callers would reach through it what only this machine can.
"""

import re

import msgspec

from proxy.bodies import decoded, texts_in
from proxy.errors import BadRequest

_ANY = msgspec.json.Decoder()
_HINTS = (b":/", rb":\/", rb"\u")  # an address elsewhere has one of them, in whatever escapes
_ELSEWHERE = re.compile(r"\s*(?!data:)[a-z][a-z0-9+.\-]*:", re.IGNORECASE)


class ForeignMedia(BadRequest):
    """A part of a message lies elsewhere."""

    code = "media_not_fetched"

    def __init__(self) -> None:
        super().__init__(
            "images and audio are taken from data: URLs alone; no other address is fetched",
            param="messages",
        )


def check_media(body: bytes) -> None:
    """Raises ForeignMedia for messages with a part, of any kind but text, that names an address.

    Raises BadJson for what is nested too deeply to tell.
    """
    for hint in _HINTS:
        if hint in body:
            break
    else:
        return
    told = decoded(body, _ANY)
    messages = told.get("messages") if isinstance(told, dict) else None
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            is_text = isinstance(part, dict) and part.get("type") == "text"
            if not is_text and any(map(_ELSEWHERE.match, texts_in(part, but_for="text"))):
                raise ForeignMedia


def data_url(url: str, *, where: str) -> str:
    """`url`, which must hold its image itself: neither daemon nor child fetches or opens any."""
    if not url.startswith("data:"):
        shown = url.partition(":")[0][:20]
        raise BadRequest(
            f"{where}: an image must be sent as base64 data; nothing is fetched from a"
            f" {shown}: address",
            param=where,
        )
    return url
