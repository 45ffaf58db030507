"""What a request is called: in the log, in its reply, and by the child that serves it."""

import itertools
import re
import secrets
from collections.abc import Iterable, Mapping
from contextvars import ContextVar

from structlog.contextvars import STRUCTLOG_KEY_PREFIX

HEADER = b"x-request-id"
CURRENT: ContextVar[str] = ContextVar(f"{STRUCTLOG_KEY_PREFIX}request_id")
"""Of the request that is being answered; structlog adds it to whatever is logged meanwhile.

Set by hand: structlog's bind_contextvars does the same in four times as long.
"""

_RUN = secrets.token_hex(4)
"""Tells the ids of this run of the daemon from those of another."""
_COUNT = itertools.count(1)
_DECENT = re.compile(rb"[A-Za-z0-9._\-]{1,64}")


def id_of(by_name: Mapping[bytes, bytes], headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The same, without a look at each header; `by_name`: the first of each name."""
    return request_id(headers) if HEADER in by_name else _own()


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's own id where it is a decent one, so that its logs and ours can be joined."""
    for name, value in headers:
        if name == HEADER and _DECENT.fullmatch(value):
            return str(value, "ascii")
    return _own()


def _own() -> str:
    return f"{_RUN}{next(_COUNT):08x}"
