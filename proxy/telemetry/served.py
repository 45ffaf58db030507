"""The log's line about a request that has ended: what it is made of, and who writes it."""

from collections.abc import Callable
from datetime import datetime
from typing import Literal

import msgspec
import structlog
from msgspec.structs import asdict

log = structlog.get_logger(__name__)


class Served(msgspec.Struct, tag_field="event", tag="request.served"):
    """What `request.served` says; seconds to a tenth of a millisecond.

    A Struct, as there is one for each request: it is made in half the time of as many keyword
    arguments, and those of one moment are put into words in one call.
    """

    request_id: str
    method: str
    path: str
    status: int
    caller: str
    address: str
    error: str | None
    model_id: str | None
    instance_id: str | None
    slot: int | None
    load_s: float | None
    first_byte_s: float | None
    total_s: float
    sent_bytes: int
    prompt_tokens: int | None
    decode_tokens: int | None
    level: Literal["info"] = "info"
    timestamp: datetime | None = None
    """UTC; set by who writes it as it is."""


Note = Callable[[Served], None]


def noted(line: Served) -> None:
    """Writes it as any other event."""
    told = asdict(line)
    del told["level"], told["timestamp"]  # who writes it adds its own
    log.info("request.served", **told)
