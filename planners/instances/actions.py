"""What reconcile tells the fleet to do: one small frozen value each."""

from enum import Enum

from msgspec import Struct

from planners.model import ModelId
from planners.plan import InstanceId, LaunchPlan


class Departure(Enum):
    """Why an instance is told to end, in a word that can be counted."""

    UNUSED = "unused"
    ROOM = "room"
    """Idle, and another model gets its memory or its place."""
    TURN = "turn"
    """In use, and another model's callers waited for their turn."""
    CONTEXT = "context"
    """To be loaded with another context."""
    SETTINGS = "settings"
    """Its file, its settings or a rule changed, or it is no longer offered."""
    ASKED = "asked"
    MEMORY = "memory"
    """Others need what it has, or were given it."""
    MOVED = "moved"
    """Another launch of its model took its place."""
    STOPPING = "stopping"
    """The daemon is."""


class Start(Struct, frozen=True):
    """Launch a new instance."""

    plan: LaunchPlan
    launch_key: str
    reason: str
    context: int = 0
    """Tokens that callers asked for, whether or not the plan could give them; 0 where none did."""


class Restart(Struct, frozen=True):
    """Launch an instance in BACKOFF again, by a fresh plan."""

    instance_id: InstanceId
    plan: LaunchPlan
    reason: str
    context: int = 0
    """As in Start."""


class Stop(Struct, frozen=True):
    """Drain an instance, stop its child, forget it."""

    instance_id: InstanceId
    reason: str
    room_for: ModelId | None = None
    """The model that gets its room; None where it ends on its own account."""
    finishes: bool = False
    """Whether running requests may go on for as long as they take."""
    is_unused: bool = False
    """Whether its keep_alive is over."""

    @property
    def departure(self) -> Departure:
        """What it counts as."""
        if self.is_unused:
            return Departure.UNUSED
        if self.room_for is not None:
            return Departure.ROOM
        return Departure.CONTEXT if self.finishes else Departure.SETTINGS


class Yield(Struct, frozen=True):
    """End the turn of an instance in use: let its requests end, stop it, its callers wait."""

    instance_id: InstanceId
    reason: str
    room_for: ModelId | None = None
    """As in Stop."""

    @property
    def departure(self) -> Departure:
        """What it counts as."""
        return Departure.CONTEXT if self.room_for is None else Departure.TURN


class Allow(Struct, frozen=True):
    """Serve callers who asked for up to `context` tokens with the fewer that are loaded."""

    instance_id: InstanceId
    context: int
    reason: str


class Refuse(Struct, frozen=True):
    """Tell everyone in a model's line that it cannot be served."""

    model_id: ModelId
    reason: str
    retry_after_s: float | None
    log_tail: tuple[str, ...] = ()
    """Of the process whose end is the reason."""


class Move(Struct, frozen=True):
    """Have another launch take an instance's place, its streams and conversations with it.

    Where its plan is the running one, what is wanted changed, and the launch does not.
    """

    instance_id: InstanceId
    plan: LaunchPlan
    launch_key: str
    reason: str


Action = Start | Restart | Stop | Yield | Move | Allow | Refuse
