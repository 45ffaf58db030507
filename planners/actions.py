"""What reconcile tells the fleet to do: one small frozen value each."""

from dataclasses import dataclass

from planners.model import ModelId
from planners.plan import InstanceId, LaunchPlan


@dataclass(frozen=True, slots=True)
class Start:
    """Launch a new instance."""

    plan: LaunchPlan
    launch_key: str
    reason: str
    context: int = 0
    """Tokens that callers asked for, whether or not the plan could give them; 0 where none did."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Launch an instance in BACKOFF again, by a fresh plan."""

    instance_id: InstanceId
    plan: LaunchPlan
    reason: str
    context: int = 0
    """As in Start."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Drain an instance, stop its child, forget it."""

    instance_id: InstanceId
    reason: str
    room_for: ModelId | None = None
    """The model that gets its room; None where it ends on its own account."""
    finishes: bool = False
    """Whether running requests may go on for as long as they take."""


@dataclass(frozen=True, slots=True)
class Yield:
    """End the turn of an instance in use: let its requests end, stop it, its callers wait."""

    instance_id: InstanceId
    reason: str
    room_for: ModelId | None = None
    """As in Stop."""


@dataclass(frozen=True, slots=True)
class Allow:
    """Serve callers who asked for up to `context` tokens with the fewer that are loaded."""

    instance_id: InstanceId
    context: int
    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell everyone in a model's line that it cannot be served."""

    model_id: ModelId
    reason: str
    retry_after_s: float | None
    log_tail: tuple[str, ...] = ()
    """Of the process whose end is the reason."""


Action = Start | Restart | Stop | Yield | Allow | Refuse
