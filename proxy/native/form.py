"""One text field of a multipart form, found without decoding the rest of it."""

import re

from proxy.errors import BadRequest

MAX_PARTS = 64
MAX_HEAD_BYTES = 4 << 10
MAX_FIELD_BYTES = 1 << 10
_BOUNDARY = re.compile(
    rb"""multipart/form-data\s*;.*?boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))""", re.IGNORECASE
)
_NAME = re.compile(rb"""^content-disposition:[^\r\n]*?;\s*name="([^"\r\n]*)\"""", re.I | re.M)


class BadForm(BadRequest):
    """The body is no multipart form, or none of a sane size."""

    code = "invalid_form"


def field(body: bytes, content_type: bytes, name: bytes) -> str | None:
    """The first field of that name; None where there is none. Raises BadForm."""
    found = _BOUNDARY.match(content_type)
    if found is None:
        raise BadForm("the request body must be multipart/form-data with a boundary")
    delimiter = b"--" + (found[1] or found[2])
    at = body.find(delimiter)
    for _ in range(MAX_PARTS):
        if at < 0 or body.startswith(b"--", at + len(delimiter)):
            return None
        head = at + len(delimiter)
        start = body.find(b"\r\n\r\n", head, head + MAX_HEAD_BYTES) + 4
        if start < 4:
            raise BadForm(f"a part of the form has no head that ends within {MAX_HEAD_BYTES} bytes")
        at = body.find(b"\r\n" + delimiter, start - 2)
        if at < 0:
            raise BadForm("the form ends within a part")
        told = _NAME.search(body, head, start)
        if told is not None and told[1] == name:
            return _text(body[start:at])
        at += 2
    raise BadForm(f"the form has more than {MAX_PARTS} parts")


def _text(value: bytes) -> str:
    if len(value) > MAX_FIELD_BYTES:
        raise BadForm(f"a field of the form is over {MAX_FIELD_BYTES} bytes")
    try:
        return value.decode()
    except UnicodeDecodeError as exc:
        raise BadForm("a field of the form is no text") from exc
