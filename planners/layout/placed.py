"""One way to launch a model, not yet a plan, and the best of several. Pure."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from planners.backends import Engine
from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, DeviceId
from planners.layout.asked import CONTEXT_WORTH_LAYERS
from planners.layout.budget import Budgets
from planners.layout.dry_runs import DryRunKey
from planners.plan import DeviceBytes
from planners.speed import NOTICED, PROMPT_WEIGHT, Speed

ALIKE = 1.1  # how fast two engines are on one device is told no better than this
WORTH_STOPPING = 1.1  # an idle model is stopped for a launch that is faster by this, not for less


class Placed(Struct, frozen=True):
    """One way to launch, not yet a plan."""

    engine: Engine
    room: Budgets
    shape: LaunchShape
    predicted: tuple[DeviceBytes, ...]
    speed: Speed
    doubt: DryRunKey | None = None
    """It fits by what is expected alone; a dry run of this decides."""
    passed_over: "Placed | None" = None
    """The best way of an engine that comes before, where this one's is better."""

    @property
    def token_s(self) -> float:
        """What placement minimises: seconds per token decoded, and a little of the prompt."""
        prompt_s = PROMPT_WEIGHT / self.speed.prompt_tokens_per_s
        return 1 / self.speed.decode_tokens_per_s + prompt_s

    @property
    def worthy_context(self) -> int:
        """Tokens of one request, as far as more of them count between equals."""
        return min(self.shape.n_ctx_seq, CONTEXT_WORTH_LAYERS)

    def is_like(self, other: "Placed") -> bool:
        """Whether it is as fast as `other`, as far as can be told of two engines.

        Where it has fewer layers on devices, by what anybody would notice: more memory shall never
        mean fewer layers there.
        """
        has_as_many = self.shape.n_gpu_layers >= other.shape.n_gpu_layers
        return self.token_s <= other.token_s * (ALIKE if has_as_many else NOTICED)

    @property
    def is_wanted(self) -> bool:
        """True where it runs on a device that is only there because the operator asked for it."""
        used = dict(self.shape.split)
        return any(budget.is_wanted for budget in self.room.devices if budget.device_id in used)

    def is_worth_more_than(self, other: "Placed") -> bool:
        """Whether it is so much faster that an idle model may be stopped for it."""
        return other.token_s > self.token_s * WORTH_STOPPING

    def missing_bytes(self, room: Budgets) -> dict[DeviceId, int]:
        """By how much its upper bounds exceed `room`, where they do."""
        return self._over(room, lambda part: part.upper_bytes)

    @property
    def may_fit(self) -> bool:
        """False where it does not fit whatever its buffers take."""
        return not self._over(self.room, lambda part: part.kept_bytes)

    @property
    def host_need_bytes(self) -> int:
        """Host memory it takes, on devices that share it too."""
        return self._on_host(lambda part: part.upper_bytes)

    def _over(self, room: Budgets, need: Callable[[DeviceBytes], int]) -> dict[DeviceId, int]:
        needs = {part.device_id: need(part) for part in self.predicted}
        needs[HOST] = self._on_host(need)
        over = {device_id: size - room.room_bytes(device_id) for device_id, size in needs.items()}
        return {device_id: n_bytes for device_id, n_bytes in over.items() if n_bytes > 0}

    def _on_host(self, need: Callable[[DeviceBytes], int]) -> int:
        on_host = {HOST, *(b.device_id for b in self.room.devices if b.shares_host)}
        return sum(need(part) for part in self.predicted if part.device_id in on_host)


def fastest(heads: Sequence[Placed | None]) -> Placed | None:
    """The fastest of each engine's best way, the processor's last.

    Of engines that are as fast as predictions can tell, the one with more context, as far as that
    is worth anything; of equals the first. The processor's only where it is faster than all by what
    anybody would notice.
    """
    *devices, on_host = heads
    found = [placed for placed in devices if placed is not None]
    if on_host is not None and not any(placed.is_wanted for placed in found):
        found = [placed for placed in found if placed.token_s <= NOTICED * on_host.token_s]
        if not found:
            return on_host
    best = min(found, key=lambda placed: placed.token_s, default=None)
    if best is None:
        return None
    alike = (placed for placed in found if placed.is_like(best))
    return max(alike, key=lambda placed: placed.worthy_context)
