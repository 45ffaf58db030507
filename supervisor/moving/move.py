"""A migration as others see it: what it is at, what it came to, why it failed; and its means."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum

from msgspec import Struct

from planners.hardware import DeviceId
from planners.model import ModelId, ServedModel
from planners.moving.migration import Order
from planners.plan import LaunchPlan
from planners.settings import FleetSettings
from planners.sizes import format_size
from supervisor.errors import SupervisorError
from supervisor.instance import Instance, Trial
from supervisor.leases.lease_book import LeaseBook
from supervisor.moving.slots import SlotShelf
from supervisor.records.journal import Journal


class MoveFailed(SupervisorError):
    """A model runs on as it did, or is launched so again."""

    def __init__(self, *, model_id: ModelId, reason: str) -> None:
        self.model_id, self.reason = model_id, reason
        super().__init__(f"{model_id} was not moved: {reason}")


class Step(Enum):
    """What a migration is at."""

    LOADING = "loading"
    CUTTING = "cutting"
    STOPPING = "stopping"
    RESTORING = "restoring"
    RETURNING = "returning"


class MoveSeen(Struct, frozen=True):
    """A migration under way."""

    model_id: ModelId
    step: Step
    order: Order | None
    """None while that is thought about."""
    reason: str
    began_s: float
    """Monotonic."""
    wanted: LaunchPlan


class Moved(Struct, frozen=True):
    """What a migration came to."""

    model_id: ModelId
    order: Order
    streams: int
    """That ran, and go on."""
    slots: int
    """Whose caches went along, those of idle conversations too."""
    moved_bytes: int
    took_s: float
    keeps_math: bool


class Stage(Struct, frozen=True):
    """What migrations work with."""

    book: LeaseBook
    journal: Journal
    shelf: SlotShelf
    settings: Callable[[], FleetSettings]
    served: Callable[[ModelId], ServedModel | None]
    free: Callable[[LaunchPlan], Awaitable[Mapping[DeviceId, int]]]
    """What may be taken now beside all that runs, on fresh numbers."""
    launch: Callable[[LaunchPlan, str, Instance, Trial, str], Instance]
    """A further instance of the model of another one: by which plan, and which launch key."""
    park: Callable[[str], None]
    """Closes all connections to the child behind a socket."""
    stopping: asyncio.Event


def streams_told(n: int) -> str:
    """How many go on, in words."""
    return "1 stream goes on" if n == 1 else f"{n} streams go on"


def slots_told(n: int, n_bytes: int) -> str:
    """What of them went along, in words."""
    if not n:
        return "no slot's cache went along"
    slots = "the cache of 1 slot" if n == 1 else f"the caches of {n} slots"
    return f"{slots} went along ({format_size(n_bytes)})"
