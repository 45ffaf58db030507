"""What a model and its operator ask of a launch: slots, contexts, batches, cache types."""

from dataclasses import dataclass

from planners.compute import MAMBA_1
from planners.errors import PlanError
from planners.ggml.types import CACHE_TYPES
from planners.hardware import Host
from planners.kv_cache import padded_context
from planners.model import ModelInfo, ServedModel
from planners.settings import PlacementRules

CONTEXTS = (32768, 16384, 8192, 4096)  # automatic: the largest that costs no layer its device
LEAST_CONTEXT = 2048  # automatic, where even 4096 finds no room
CONTEXT_WORTH_LAYERS = 4096  # Ollama's default; more of it never pushes layers to the host
CONTEXT_ON_HOST = 8192  # a processor needs minutes to read more than this
EMBEDDING_CONTEXTS = (2048, 1024, 512)  # their outputs take n_vocab × 4 bytes a token
DEVICE_UBATCHES = (512, 256, 128)  # 512 is llama.cpp's default; halving it halves the buffers
HOST_UBATCHES = (512, 256, 128, 64, 32)
FLOPS_PER_CORE = 32e9  # measured: 135M Q4_1 on one AVX-512 core reads 120 tokens/s
PREFILL_STEP_S = 1.0  # a caller who leaves in prefill frees the slot within about this
_NO_FLASH_ATTENTION = ("grok",)  # llama-context.cpp turns it off for these


@dataclass(frozen=True, slots=True)
class Asked:
    """What placement may choose from."""

    n_parallel: int
    contexts: tuple[int, ...]
    """Tokens of one request as the engine allocates them, largest first."""
    is_context_fixed: bool
    type_k: str
    type_v: str
    flash_attn: bool
    embedding: bool
    notes: tuple[str, ...]

    def contexts_up_to(self, most: int) -> tuple[int, ...]:
        """The choices not above `most`; the smallest one where all are."""
        return tuple(c for c in self.contexts if c <= most) or self.contexts[-1:]


def asked(served: ServedModel, *, rules: PlacementRules) -> Asked:
    """What the settings, the rules and the file come to. Raises PlanError on an unknown type."""
    info, notes = served.info, list(served.info.warnings)
    fixed = served.settings.context or rules.context
    trained = info.n_ctx_train or LEAST_CONTEXT
    if fixed is not None and fixed > trained:
        notes.append(f"context {fixed} is cut to {trained}, the most it was trained for")
    flash_attn = info.architecture not in _NO_FLASH_ATTENTION
    type_k, type_v = _cache_types(info, rules=rules, flash_attn=flash_attn, notes=notes)
    if info.architecture in MAMBA_1:
        notes.append("some of its state-space tensors stay on the host: GPUs lack an operation")
    return Asked(
        n_parallel=served.settings.parallel or rules.parallel or 1,
        contexts=_contexts(info, fixed=fixed, trained=trained),
        is_context_fixed=fixed is not None,
        type_k=type_k,
        type_v=type_v,
        flash_attn=flash_attn,
        embedding=info.is_embedding,
        notes=tuple(notes),
    )


def ubatches(asked: Asked, info: ModelInfo, *, context: int, host: Host | None) -> tuple[int, ...]:
    """Batch sizes to try, largest first; `host` where it computes, None where devices do."""
    if asked.embedding:
        return (context,)  # the engine reads one input in one ubatch or not at all
    if host is None:
        return tuple(dict.fromkeys(min(size, context) for size in DEVICE_UBATCHES))
    flops = n_threads(host) * FLOPS_PER_CORE
    within = flops * PREFILL_STEP_S / (2 * max(_active_params(info), 1))
    return tuple(size for size in HOST_UBATCHES if size <= within) or HOST_UBATCHES[-1:]


def n_threads(host: Host) -> int:
    """Physical cores that may be used, but for one.

    llama.cpp's threads spin at every barrier: one that must share its core stalls all of them.
    Measured on two busy cores, 135M Q4_1: a load took 0.3 to 0.8 s on one thread, up to 6 s on two.
    """
    return max(1, min(host.n_physical_cores, host.n_cores) - 1)


def _contexts(info: ModelInfo, *, fixed: int | None, trained: int) -> tuple[int, ...]:
    if fixed is not None:
        return (padded_context(min(fixed, trained)),)
    ladder = EMBEDDING_CONTEXTS if info.is_embedding else (*CONTEXTS, LEAST_CONTEXT)
    return tuple(dict.fromkeys(padded_context(min(rung, trained)) for rung in ladder))


def _cache_types(
    info: ModelInfo, *, rules: PlacementRules, flash_attn: bool, notes: list[str]
) -> tuple[str, str]:
    for name in (rules.type_k, rules.type_v):
        if name not in CACHE_TYPES:
            allowed = ", ".join(sorted(CACHE_TYPES))
            raise PlanError(f"KV cache type {name!r} is unknown; it can be one of {allowed}")
    k, v = CACHE_TYPES[rules.type_k], CACHE_TYPES[rules.type_v]
    if any(layer.k_width % k.block or layer.v_width % v.block for layer in info.layers):
        notes.append(f"KV cache f16, not {k.name}/{v.name}: the model's rows are no multiple")
        return "f16", "f16"
    if v.block > 1 and not flash_attn:
        notes.append(f"V cache f16, not {v.name}: that needs flash attention")
        return k.name, "f16"
    return k.name, v.name


def _active_params(info: ModelInfo) -> float:
    """Parameters that one token passes through."""
    weights = sum(layer.weight_bytes for layer in info.layers)
    experts = sum(layer.expert_bytes for layer in info.layers)
    if not experts or not info.n_expert:
        return info.n_params
    idle = experts * (1 - min(1.0, info.n_expert_used / info.n_expert))
    return info.n_params * (1 - idle / weights)
