"""What launches and requests on this machine showed, as values: samples, and what they teach.

Made by the supervisor, turned into lessons by planners.lessons.learning, read by placement.
"""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct, field

from planners.graph.kv_cache import LaunchShape
from planners.hardware import DeviceId
from planners.instances.ladder import Rung, RungKey
from planners.model import ModelId, ModelSettings
from planners.plan import DeviceBytes, LaunchPlan


class LaunchKey(Struct, frozen=True):
    """Launches with the same key take the same buffers and serve at the same speed."""

    engine_id: str
    model_digest: str
    devices: str
    """Their ids, joined by commas; "" is the processor alone."""
    flags: str
    """12 hex digits over every flag that counts: not the prompt cache's, nor paths and names."""


class LaunchSample(Struct, frozen=True):
    """One launch and what became of it."""

    launch: str
    """Names it among all launches of this machine."""
    at: float
    """UTC seconds."""
    model_id: ModelId
    key: LaunchKey
    context: int
    outcome: str
    """"ready", "died" or "stopped"."""
    predicted: tuple[DeviceBytes, ...]
    measured: tuple[DeviceBytes, ...] = ()
    """As the engine logged it; `overhead_bytes` is what the process or driver took beyond it."""
    load_s: float | None = None
    """None where it never was ready."""
    cause: str | None = None
    """Why it died, as a sentence."""
    rung: str | None = None
    """What the next launch must do without, as a ladder writes it; None: nothing yet."""


class RateSample(Struct, frozen=True):
    """One request that had its child to itself."""

    at: float
    model_id: ModelId
    key: LaunchKey
    decode_tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    owner: DeviceId | None
    """The one device that the whole launch lies on; None where there are several."""
    bytes_per_s: float | None = None
    """The rate of the owner's memory that explains the decode, within bounds."""
    flops: float | None = None
    """The rate of its arithmetic that explains the prompt, within bounds."""


class Lesson(Struct, frozen=True):
    """What all samples of one key say."""

    launches: int = 0
    """Of them that were ready and told their buffers."""
    measured: tuple[DeviceBytes, ...] = ()
    """Of the newest launch."""
    load_s: float | None = None
    """Median."""
    requests: int = 0
    decode_tokens_per_s: float | None = None
    """Median of requests alone in their child; None until there are enough of them."""
    prompt_tokens_per_s: float | None = None


class Learned(Struct, frozen=True):
    """What was observed on this machine, which outranks every table."""

    bytes_per_s: Mapping[DeviceId, float]
    flops: Mapping[DeviceId, float]
    requests: Mapping[DeviceId, int] = field(default_factory=dict)
    """How many of them each device's rates are medians of."""
    lessons: Mapping[LaunchKey, Lesson] = field(default_factory=dict)
    overhead_bytes: Mapping[tuple[str, DeviceId], int] = field(default_factory=dict)
    """By engine and device, or HOST: what its processes took beyond their buffers, median."""
    rungs: Mapping[RungKey, Rung] = field(default_factory=dict)
    """Where launches died of memory: what not to ask for again."""


def measured_speeds(learned: Learned, model_digest: str) -> dict[str, dict[str, float]]:
    """Decode tokens/s of a model by engine and devices, of the fastest flags that were measured."""
    found: dict[str, dict[str, float]] = {}
    for key, lesson in learned.lessons.items():
        if key.model_digest == model_digest and lesson.decode_tokens_per_s is not None:
            by_devices = found.setdefault(key.engine_id, {})
            fastest = max(by_devices.get(key.devices, 0.0), lesson.decode_tokens_per_s)
            by_devices[key.devices] = fastest
    return found


_NONE: Mapping[DeviceId, float] = MappingProxyType({})
NOTHING_LEARNED = Learned(_NONE, _NONE)


def key_of_shape(
    shape: LaunchShape,
    settings: ModelSettings,
    *,
    engine_id: str,
    model_digest: str,
    n_threads: int,
) -> LaunchKey:
    """The key of a launch of this shape."""
    numbers = (shape.n_ctx, shape.n_parallel, shape.n_batch, shape.n_ubatch, n_threads)
    kinds = (shape.type_k, shape.type_v, shape.flash_attn, shape.embedding, shape.swa_full)
    files = (settings.mmproj_path, settings.draft_path, settings.lora_paths)
    told = (numbers, kinds, shape.n_cpu_moe, files, settings.flags)
    return _key(engine_id, model_digest, shape.split, told)


def key_of(plan: LaunchPlan) -> LaunchKey:
    """The key of a plan, which is that of its shape."""
    numbers = (plan.n_ctx, plan.n_parallel, plan.n_batch, plan.n_ubatch, plan.n_threads)
    kinds = (plan.type_k, plan.type_v, plan.flash_attn, plan.embedding, plan.swa_full)
    files = (plan.mmproj_path, plan.draft_path, plan.lora_paths)
    told = (numbers, kinds, plan.n_cpu_moe, files, plan.extra_flags)
    split = tuple((device_id, layers) for device_id, _, layers in plan.devices)
    return _key(plan.engine_id, plan.model_digest, split, told)


def _key(
    engine_id: str, model_digest: str, split: tuple[tuple[DeviceId, int], ...], flags: object
) -> LaunchKey:
    told = repr((tuple(layers for _, layers in split), flags))
    return LaunchKey(
        engine_id,
        model_digest,
        ",".join(device_id for device_id, _ in split),
        hashlib.sha256(told.encode(errors="backslashreplace")).hexdigest()[:12],
    )
