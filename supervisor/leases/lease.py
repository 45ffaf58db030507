"""The right to one slot of a child, and why there is none."""

from collections.abc import Sequence

import msgspec

from planners.model import ModelId
from planners.plan import InstanceId, LaunchPlan
from supervisor.errors import SupervisorError

RETRY_AFTER_S = 5.0  # until a slot was held for the first time: a short answer of a small model


class Lease(msgspec.Struct, frozen=True):
    """The right to use one slot of one child until it is given back.

    One is made for every request: a Struct is, in a fifth of a frozen dataclass' time.
    """

    instance_id: InstanceId
    model_id: ModelId
    slot: int
    """The `id_slot` that every request under this lease must name; below 0 it takes none."""
    socket_path: str
    """The child's Unix socket; a fresh path per launch, so it also names the child."""
    context: int
    """Tokens one request may use."""
    embedding: bool
    load_s: float
    """How long this caller waited for its slot, the load included; 0.0 when granted at once."""
    granted_at_s: float
    """Monotonic."""
    plan: LaunchPlan | None = None
    """The child's: whether another one writes the same."""
    can_pause: bool = True
    """Whether what it is for can go on under another lease, or be asked again, on any math."""
    restored_tokens: int = 0
    """Of the lease before it, in its slot already: they came along from another child."""
    restored_ids: tuple[int, ...] = ()
    """These tokens, where they are known."""


class LeaseError(SupervisorError):
    """No slot for this caller."""


class LineFull(LeaseError):
    """The model's line is at its bound."""

    def __init__(self, *, model_id: ModelId, waiting: int, retry_after_s: float) -> None:
        self.model_id, self.waiting, self.retry_after_s = model_id, waiting, retry_after_s
        super().__init__(
            f"server busy, please try again: {waiting} requests wait for {model_id}, its limit"
            " (models.max_waiting)"
        )


class WaitTimedOut(LeaseError):
    """A slot did not come free in time."""

    def __init__(
        self,
        *,
        model_id: ModelId,
        waited_s: float,
        place: int = 1,
        waiting: int = 1,
        retry_after_s: float = RETRY_AFTER_S,
    ) -> None:
        self.model_id, self.waited_s, self.retry_after_s = model_id, waited_s, retry_after_s
        self.place, self.waiting = place, waiting
        super().__init__(
            f"no slot of {model_id} came free within {waited_s:.0f} s;"
            f" the request was number {place} of {waiting} in line"
        )


TAIL_HEADING = "The last lines of its log:"


class ModelUnavailable(LeaseError):
    """The model cannot be served now, and why; with its process's last lines, where it had one."""

    def __init__(
        self,
        *,
        model_id: ModelId,
        reason: str,
        retry_after_s: float | None,
        log_tail: Sequence[str] = (),
    ) -> None:
        self.model_id, self.reason, self.retry_after_s = model_id, reason, retry_after_s
        self.log_tail = tuple(log_tail)
        said = "\n".join(("", TAIL_HEADING, *log_tail)) if log_tail else ""
        super().__init__(f"{model_id} cannot be served: {reason}{said}")


class Stopping(LeaseError):
    """The daemon is going down."""

    def __init__(self) -> None:
        super().__init__("inferenceosd is stopping; try again when it is back")
