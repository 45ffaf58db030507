"""What dry runs of the engine have told, and whether more may be asked. Values alone."""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct, field

from planners.graph.kv_cache import LaunchShape
from planners.hardware import DeviceId
from planners.model import ModelId


class DryRunKey(Struct, frozen=True):
    """All that the compute buffers of a launch depend on."""

    engine_id: str
    model_digest: str
    shape: LaunchShape
    settings: tuple[str, ...]
    """Projector, draft model, adapters and the operator's own flags."""


class Reserved(Struct, frozen=True):
    """A compute buffer as printed, which rounds it: no less than this, no more than that."""

    least_bytes: int
    most_bytes: int

    def nearest_bytes(self, n_bytes: int) -> int:
        """The figure within that is nearest to a prediction."""
        return min(max(n_bytes, self.least_bytes), self.most_bytes)


class PreflightFailed(Struct, frozen=True):
    """A dry run that said nothing, and why. The plan stands on its own prediction."""

    reason: str


Told = Mapping[DeviceId, Reserved]
"""The compute buffers of a launch, without its output buffer."""


class DryRuns(Struct, frozen=True):
    """What is known of launches that were run dry."""

    told: Mapping[DryRunKey, Told | PreflightFailed] = field(
        default_factory=lambda: MappingProxyType({})
    )
    are_made: bool = False
    """Whether somebody runs a plan dry before it is launched; else its upper bound decides."""
    spent: frozenset[ModelId] = frozenset()
    """Models whose callers have waited for enough of them."""

    def of(self, key: DryRunKey) -> Told | None:
        """What the dry run of a launch told; None where there was none, or it failed."""
        told = self.told.get(key)
        return None if isinstance(told, PreflightFailed) else told

    def may_tell(self, key: DryRunKey, model_id: ModelId) -> bool:
        """Whether a launch can still be run dry."""
        return self.are_made and key not in self.told and model_id not in self.spent


NO_DRY_RUNS = DryRuns()
