"""One way to launch a model, not yet a plan, and the best of several. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from planners.backends import Engine
from planners.hardware import HOST, DeviceId
from planners.kv_cache import LaunchShape
from planners.layout.budget import Budgets
from planners.plan import DeviceBytes
from planners.speed import NOTICED, PROMPT_WEIGHT, Speed

WORTH_STOPPING = 1.1  # an idle model is stopped for a launch that is faster by this, not for less


@dataclass(frozen=True, slots=True)
class Placed:
    """One way to launch, not yet a plan."""

    engine: Engine
    room: Budgets
    shape: LaunchShape
    predicted: tuple[DeviceBytes, ...]
    speed: Speed

    @property
    def token_s(self) -> float:
        """What placement minimises: seconds per token decoded, and a little of the prompt."""
        prompt_s = PROMPT_WEIGHT / self.speed.prompt_tokens_per_s
        return 1 / self.speed.decode_tokens_per_s + prompt_s

    @property
    def is_wanted(self) -> bool:
        """True where it runs on a device that is only there because the operator asked for it."""
        used = dict(self.shape.split)
        return any(budget.is_wanted for budget in self.room.devices if budget.device_id in used)

    def is_worth_more_than(self, other: "Placed") -> bool:
        """Whether it is so much faster that an idle model may be stopped for it."""
        return other.token_s > self.token_s * WORTH_STOPPING

    def missing_bytes(self, room: Budgets) -> dict[DeviceId, int]:
        """By how much it exceeds `room`, where it does."""
        needs = {part.device_id: part.upper_bytes for part in self.predicted}
        needs[HOST] = self.host_need_bytes
        over = {device_id: need - room.room_bytes(device_id) for device_id, need in needs.items()}
        return {device_id: n_bytes for device_id, n_bytes in over.items() if n_bytes > 0}

    @property
    def host_need_bytes(self) -> int:
        """Host memory it takes, on devices that share it too."""
        on_host = {HOST, *(b.device_id for b in self.room.devices if b.shares_host)}
        return sum(part.upper_bytes for part in self.predicted if part.device_id in on_host)


def fastest(heads: Sequence[Placed | None]) -> Placed | None:
    """The fastest of each engine's best way, the processor's last.

    The first engine's where it is as fast as predictions can tell: less than NOTICED slower.
    """
    *devices, on_host = heads
    found = [placed for placed in devices if placed is not None]
    if on_host is not None and not any(placed.is_wanted for placed in found):
        found.append(on_host)
    enough_s = NOTICED * min((placed.token_s for placed in found), default=0.0)
    return next((placed for placed in found if placed.token_s <= enough_s), None)
