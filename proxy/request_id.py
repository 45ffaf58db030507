"""What a request is called: in the log, in its reply, and by the child that serves it."""

import itertools
import re
import secrets
from collections.abc import Iterable

HEADER = b"x-request-id"

_RUN = secrets.token_hex(4)
"""Tells the ids of this run of the daemon from those of another."""
_COUNT = itertools.count(1)
_DECENT = re.compile(rb"[A-Za-z0-9._\-]{1,64}")


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's own id where it is a decent one, so that its logs and ours can be joined."""
    for name, value in headers:
        if name == HEADER and _DECENT.fullmatch(value):
            return str(value, "ascii")
    return f"{_RUN}{next(_COUNT):08x}"
