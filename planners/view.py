"""What reconcile looks at: one frozen view of instances, callers, machine and settings."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field

from planners.backends import Engine
from planners.hardware import DeviceId, HardwareProfile
from planners.instances.exits import Cause
from planners.instances.ladder import Rung
from planners.layout.dry_runs import NO_DRY_RUNS, DryRuns
from planners.lessons.samples import NOTHING_LEARNED, Learned
from planners.model import ModelId, ServedModel
from planners.plan import DeviceBytes, InstanceId, LaunchPlan
from planners.settings import FleetSettings, PlacementRules
from planners.waiting.line import Priority


class InstanceState(Enum):
    """Where one instance is in the drawing of planners.reconcile."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"

    @property
    def is_down(self) -> bool:
        """True without a child, after an end that nobody wanted."""
        return self in (InstanceState.BACKOFF, InstanceState.FAILED)


RELEASING = (InstanceState.DRAINING, InstanceState.STOPPING)
"""States of those that give their memory back before long."""


class Observed(Struct, frozen=True):
    """One instance as it is now."""

    instance_id: InstanceId
    model_id: ModelId
    state: InstanceState
    plan: LaunchPlan
    launch_key: str
    """What it was planned from (see launch_key); another key means it must be launched anew."""
    pid: int | None
    running: int
    """Leases held."""
    waiting: int
    """Callers in the model's line."""
    keep_alive_s: float
    last_used_s: float
    """Monotonic: end of the last lease, or the time it was asked for."""
    idle_since_s: float | None
    """Monotonic; None while busy or not ready."""
    expires_at: float | None
    """UTC seconds at which an idle instance unloads; inf is never; None while it is not idle."""
    loaded_at: float | None
    """UTC seconds at which it last became ready."""
    load_s: float | None
    load_progress: float | None
    """0 to 1 while loading, where the engine tells."""
    measured: tuple[DeviceBytes, ...]
    decode_tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    restarts: int
    cause: Cause | None
    """Of the last exit that was not wanted."""
    retry_at_s: float | None
    """Monotonic; when BACKOFF ends, or when FAILED may be tried again; None is never by itself."""
    rung: Rung | None = None
    """What its next launch must do without, after the last one died; None while it is not down."""
    openings: int = 0
    """Of its breaker, one after another with no answer between them (instances.restart)."""
    ready_since_s: float | None = None
    """Monotonic; of one that is down, since when its last child was ready; None where it never was.

    Equal to idle_since_s while nobody has used it yet."""


class Demand(Struct, frozen=True):
    """Who waits for one model."""

    waiting: int
    oldest_wait_s: float
    context: int = 0
    """Tokens that some of them wait for because what is loaded has fewer; 0 where none does."""


class InLine(Struct, frozen=True):
    """One caller in a model's line."""

    caller: str
    priority: Priority
    waiting: int
    """Requests."""
    place: int
    """Of its first one; 1 is the next to be served."""


class LineSeen(Struct, frozen=True):
    """A model's line as it is now."""

    model_id: ModelId
    waiting: int
    oldest_wait_s: float
    callers: tuple[InLine, ...]
    """The next to be served first."""


class View(Struct, frozen=True):
    """The world at one moment."""

    models: Mapping[ModelId, ServedModel]
    instances: tuple[Observed, ...]
    demand: Mapping[ModelId, Demand]
    hardware: HardwareProfile
    engines: tuple[Engine, ...] | None
    """None while they are still being tried: nothing is launched and nobody refused."""
    rules: PlacementRules
    settings: FleetSettings
    learned: Learned = NOTHING_LEARNED
    """What launches and requests on this machine taught."""
    dry_runs: DryRuns = NO_DRY_RUNS
    contexts: Mapping[ModelId, int] = field(default_factory=dict)
    """The largest context that callers of a model ever asked for, where the policy keeps it."""
    yielded_s: Mapping[ModelId, float] = field(default_factory=dict)
    """Monotonic; when a model's last turn ended, of those that wait for another one."""
    settling: Mapping[DeviceId, int] = field(default_factory=dict)
    """Bytes of what was stopped just now that still come back: free figures lack them."""
    unplannable: Mapping[ModelId, str] = field(default_factory=dict)
    """Models whose planning failed by a bug of ours, and the sentence: not planned for now."""
    moving: frozenset[ModelId] = frozenset()
    """Models that make way for another launch of their own: left alone until that is over."""
    resting: frozenset[ModelId] = frozenset()
    """Models that have only just moved to a launch that was wanted: not moved so again yet."""
    unmoved: Mapping[ModelId, str] = field(default_factory=dict)
    """Launch keys of running models whose launch as wanted did not come to serve."""
    told: Mapping[ModelId, str] = field(default_factory=dict)
    """Launch keys of pinned models that cannot be launched, which was told with nobody waiting."""
    on_trial: frozenset[str] = frozenset()
    """Engines that one model tries: no reason to launch it anew, nor for any other to go there."""
    broken: Mapping[ModelId, str] = field(default_factory=dict)
    """What is wrong with the files of models that run or are waited for, and are gone."""
