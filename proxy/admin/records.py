"""What happened, and what processes wrote: read back, or followed as it goes on."""

from collections.abc import Mapping

from msgspec import Struct

DEFAULT_LINES = 100
MAX_LINES = 100_000
DEFAULT_EVENTS = 100
MAX_EVENTS = 10_000
SIGN_OF_LIFE_S = 5.0  # cadence of a stream on which nothing happens


class LogReport(Struct, frozen=True):
    """The last lines that a model's process wrote."""

    model: str
    lines: tuple[str, ...]


class EventReport(Struct, frozen=True):
    """One thing that happened."""

    at: float
    """UTC seconds."""
    kind: str
    model: str | None
    instance: str | None
    reason: str
    facts: Mapping[str, str | int | float | bool | None]


class EventsReport(Struct, frozen=True):
    """What happened, oldest first."""

    events: tuple[EventReport, ...]


class Followed(Struct, frozen=True):
    """One line of a stream of what happens. One that tells nothing is a sign of life."""

    event: EventReport | None = None
    line: str | None = None
    """Of a process's log."""
    skipped: int = 0
    """So many before it are missing, because the reader was too slow."""
    is_last: bool = False
    """The daemon stops; a stream that ends without one was cut off."""
