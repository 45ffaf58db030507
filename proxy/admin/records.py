"""What happened, and what processes wrote: read back, or followed as it goes on."""

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_LINES = 100
MAX_LINES = 100_000
DEFAULT_EVENTS = 100
MAX_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class LogReport:
    """The last lines that a model's process wrote."""

    model: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EventReport:
    """One thing that happened."""

    at: float
    """UTC seconds."""
    kind: str
    model: str | None
    instance: str | None
    reason: str
    facts: Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class EventsReport:
    """What happened, oldest first."""

    events: tuple[EventReport, ...]


@dataclass(frozen=True, slots=True)
class Followed:
    """One line of a stream of what happens. One that tells nothing is a sign of life."""

    event: EventReport | None = None
    line: str | None = None
    """Of a process's log."""
    skipped: int = 0
    """So many before it are missing, because the reader was too slow."""
    is_last: bool = False
    """The daemon stops; a stream that ends without one was cut off."""
