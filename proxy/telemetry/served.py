"""The log's line about a request that has ended: what it is made of, and who writes it."""

from collections.abc import Callable

import msgspec
import structlog
from msgspec.structs import asdict

log = structlog.get_logger(__name__)


class Served(msgspec.Struct):
    """What `request.served` says; seconds to a tenth of a millisecond.

    A Struct, as there is one for each request: it is made, and put into words, in half the time
    of as many keyword arguments.
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


Note = Callable[[Served], None]


def noted(line: Served) -> None:
    """Writes it as any other event."""
    log.info("request.served", **asdict(line))
