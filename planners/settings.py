"""What the operator decided, as planners and the fleet read it.

Made by inferenceosd.settings.config, which alone holds defaults.
"""

from enum import Enum

from msgspec import Struct, field

from planners.instances.groups import Group
from planners.model import ModelId, ModelSettings
from planners.waiting.callers import Callers

MAX_NUMBER = (1 << 31) - 1  # llama-server counts tokens in 32 bits
MAX_SLOTS = 256  # LLAMA_MAX_SEQ (llama.cpp src/llama-cparams.h)


class DeviceRule(Struct, frozen=True):
    """`[devices."NAME"]`: a device id, an engine name ("Vulkan0") or the vendor's, without case."""

    name: str
    limit_bytes: int | None
    reserve_bytes: int | None
    use: bool | None
    """None: the kind decides (software devices are left alone)."""


class MemoryRule(Struct, frozen=True):
    """`[memory]`: the host's share."""

    limit_bytes: int | None
    reserve_bytes: int


class PlacementRules(Struct, frozen=True):
    """What every plan obeys."""

    devices: tuple[DeviceRule, ...]
    memory: MemoryRule
    device_reserve_bytes: int
    """Kept free on every device without a rule of its own (OLLAMA_GPU_OVERHEAD adds to it)."""
    context: int | None
    """Context of a request where the model says nothing; None is automatic."""
    parallel: int | None
    type_k: str | None
    """None leaves it to placement: f16, and q8_0 where that keeps layers on devices."""
    type_v: str | None
    backends: tuple[str, ...]
    """Backends in order of preference; empty leaves the order to planners.backends."""
    allows_cpu_fallback: bool
    """Whether a model that fits no device may run on the processor alone."""
    rpc_servers: tuple[str, ...]
    """HOST:PORT of every ggml-rpc-server whose devices may be used."""


class ContextPolicy(Enum):
    """What a context that a caller asks for (`num_ctx`) does to a launch."""

    RATCHET = "ratchet"
    """A larger one launches anew, once, and stays."""
    FIXED = "fixed"
    """Nothing."""
    CLIENT = "client"
    """The launch follows the callers, each other size launches anew."""


class FleetSettings(Struct, frozen=True):
    """How instances live."""

    max_loaded: int | None
    """Instances at once; None sets no count, memory alone decides."""
    max_waiting: int
    """Callers in one model's line."""
    load_s: float
    """A load may make no progress for this long."""
    load_limit_s: float
    """A load may take this long, whatever it tells of its progress."""
    drain_s: float
    """Running requests may go on for this long after the daemon was told to stop."""
    finish_s: float
    """Running requests may go on for this long after their model was unloaded or changed."""
    wait_s: float
    """A caller waits for a slot, a load included, for this long at most."""
    turn_s: float
    """A model whose memory another one's callers wait for goes on for this long."""
    stop_s: float
    """From SIGTERM to SIGKILL; at most 10, so that stopping ends within 15."""
    restart_window_s: float
    restart_limit: int
    """Strikes within the window that open the breaker (planners.instances.restart)."""
    cooldown_s: float
    """How long the breaker stays open the first time."""
    hang_s: float
    """A busy child may show no sign of work for this long (planners.instances.progress)."""
    context_policy: ContextPolicy
    groups: tuple[Group, ...]
    """Which models may not run beside which."""
    callers: Callers = field(default_factory=Callers)
    """Whose requests are more or less urgent."""
    keeps_conversations: bool = True
    """Whether an unloaded model's caches are kept on disk until it is loaded again."""


class ModelRule(Struct, frozen=True):
    """`[[model]]`: settings for one model, by its name or by its file."""

    name: ModelId
    path: str | None
    aliases: tuple[str, ...]
    settings: ModelSettings
