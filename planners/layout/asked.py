"""What a model and its operator ask of a launch: slots, contexts, batches, cache types."""

from msgspec import Struct
from msgspec.structs import replace

from planners.errors import PlanError
from planners.ggml.types import CACHE_TYPES
from planners.graph.compute import MAMBA_1
from planners.graph.kinds import kinds
from planners.graph.kv_cache import padded, padded_context
from planners.hardware import HOST
from planners.layout.overruling import overruled
from planners.lessons.rates import Rates
from planners.model import LayerInfo, ModelInfo, ServedModel
from planners.reasons import Price, Reason, ReasonKind, Unit
from planners.settings import PlacementRules

CONTEXTS = (32768, 16384, 8192, 4096)  # automatic: the largest that costs no layer its device
LEAST_CONTEXT = 2048  # automatic, where even 4096 finds no room
CONTEXT_WORTH_LAYERS = 4096  # Ollama's default; more of it never pushes layers to the host
CONTEXT_ON_HOST = 8192  # a processor needs minutes to read more than this
EMBEDDING_CONTEXTS = (2048, 1024, 512)  # their outputs take n_vocab × 4 bytes a token
DEVICE_UBATCHES = (512, 256, 128)  # 512 is llama.cpp's default; halving it halves the buffers
HOST_UBATCHES = (512, 256, 128, 64, 32)
PREFILL_LEAVE_S = 1.0  # within about this a caller who leaves in prefill is noticed
BATCHES_UNTIL_FREE = 2  # llama-server hears of it at the end of one, and has begun the next by then
HOST_SLACK = 1.25  # of a processor that others use, too: 1.14 s measured where 0.88 were predicted
AUTOMATIC_TYPES = ("f16", "q8_0")  # half the bytes at a loss that perplexity hardly shows
NO_FLASH_ATTENTION = ("grok",)  # llama-context.cpp turns it off for these


class Asked(Struct, frozen=True):
    """What placement may choose from."""

    n_parallel: int
    contexts: tuple[int, ...]
    """Tokens of one request as the engine allocates them, largest first."""
    is_context_fixed: bool
    types: tuple[tuple[str, str], ...]
    """KV cache types (K, V) to choose from, in the order in which they are conceded."""
    flash_attn: bool
    embedding: bool
    notes: tuple[Reason, ...]
    """What the file lacks, and what was asked for and cannot be had."""
    unheld: int | None = None
    """The largest automatic context, where other models' sake keeps `contexts` below it."""

    def contexts_up_to(self, most: int) -> tuple[int, ...]:
        """The choices not above `most`; the smallest one where all are."""
        return tuple(c for c in self.contexts if c <= most) or self.contexts[-1:]

    def held_to(self, most: int | None) -> "Asked":
        """The same with no automatic context above `most`, for the sake of other models."""
        if most is None or self.is_context_fixed or self.contexts[0] <= most:
            return self
        return replace(self, contexts=self.contexts_up_to(most), unheld=self.contexts[0])


def asked(served: ServedModel, *, rules: PlacementRules, least_context: int = 0) -> Asked:
    """What the settings, the rules and the file come to. Raises PlanError on an unknown type.

    `least_context`: tokens that a caller wants for one request; less of them is no choice.
    """
    info = served.info
    notes = [Reason(ReasonKind.FILE, warning) for warning in info.warnings]
    notes += overruled(served.settings.flags)
    fixed = served.settings.context or rules.context
    trained = info.n_ctx_train or LEAST_CONTEXT
    if fixed is not None and fixed > trained:
        text = f"context {fixed} is cut to {trained}, the most it was trained for"
        price = Price(Unit.CONTEXT, had=trained, would_be=fixed)
        notes.append(Reason(ReasonKind.CONTEXT_CUT, text, price=price))
    if least_context > (fixed or 0):
        text = f"context {min(least_context, trained)} at least: a caller asked for it"
        notes.append(Reason(ReasonKind.CONTEXT, text))
    flash_attn = info.architecture not in NO_FLASH_ATTENTION
    types = _cache_types(info, rules=rules, flash_attn=flash_attn, notes=notes)
    if info.architecture in MAMBA_1:
        text = "some of its state-space tensors stay on the host: GPUs lack an operation"
        notes.append(Reason(ReasonKind.KEPT_ON_HOST, text))
    return Asked(
        n_parallel=served.settings.parallel or rules.parallel or 1,
        contexts=_contexts(info, fixed=fixed, trained=trained, least=least_context),
        is_context_fixed=fixed is not None and not least_context > fixed,
        types=types,
        flash_attn=flash_attn,
        embedding=info.is_embedding,
        notes=tuple(notes),
    )


def ubatches(asked: Asked, info: ModelInfo, *, context: int, rates: Rates) -> tuple[int, ...]:
    """Batch sizes to try, largest first, for what `rates` has: devices, or HOST alone.

    Between batches the engine looks whether its caller is still there: no size is tried that would
    have it look later than within PREFILL_LEAVE_S by the predicted speed, but for the smallest. On
    a processor, which reads nearly as fast in small batches (128 tokens: a twentieth more slowly
    than 256), the slot is to be free by then, and with HOST_SLACK where it is busy.
    """
    if asked.embedding:
        # The engine reads one input in one ubatch or not at all, and b10434 aborts on an encoder
        # whose slots do not divide its ubatch.
        return (padded(context, asked.n_parallel),)
    devices = [rate.flops for device_id, rate in rates.items() if device_id != HOST]
    flops = max(devices, default=rates[HOST].flops)
    sizes = DEVICE_UBATCHES if devices else HOST_UBATCHES
    batch_s = PREFILL_LEAVE_S if devices else PREFILL_LEAVE_S / (BATCHES_UNTIL_FREE * HOST_SLACK)
    within = flops * batch_s / (2 * max(_active_params(info), 1))
    kept = tuple(size for size in sizes if size <= within) or sizes[-1:]
    return tuple(dict.fromkeys(min(size, context) for size in kept))


def _contexts(info: ModelInfo, *, fixed: int | None, trained: int, least: int) -> tuple[int, ...]:
    if fixed is not None:
        return (padded_context(min(max(fixed, least), trained)),)
    usual = EMBEDDING_CONTEXTS if info.is_embedding else (*CONTEXTS, LEAST_CONTEXT)
    sizes = dict.fromkeys(padded_context(min(size, trained)) for size in usual)
    floor = padded_context(min(least, trained))
    if floor <= min(sizes):
        return tuple(sizes)
    return tuple(dict.fromkeys((*(size for size in sizes if size > floor), floor)))


def _cache_types(
    info: ModelInfo, *, rules: PlacementRules, flash_attn: bool, notes: list[Reason]
) -> tuple[tuple[str, str], ...]:
    """(K, V) to choose from: what the rules fix, AUTOMATIC_TYPES where they leave it to us."""
    choices: list[tuple[str, str]] = []
    for automatic in AUTOMATIC_TYPES:
        wanted = (rules.type_k or automatic, rules.type_v or automatic)
        possible, why_not = _possible_types(info, wanted, flash_attn=flash_attn)
        if not choices:
            choices.append(possible)
            notes.extend(Reason(ReasonKind.CACHE_TYPE, why) for why in why_not)
        elif possible == wanted:  # what nobody asked for is not worth a note
            choices.append(possible)
    return tuple(dict.fromkeys(choices))


def _possible_types(
    info: ModelInfo, wanted: tuple[str, str], *, flash_attn: bool
) -> tuple[tuple[str, str], tuple[str, ...]]:
    """The types (K, V) nearest to `wanted` that the engine takes, and why they are others."""
    for name in wanted:
        if name not in CACHE_TYPES:
            allowed = ", ".join(sorted(CACHE_TYPES))
            raise PlanError(f"KV cache type {name!r} is unknown; it can be one of {allowed}")
    k, v = (CACHE_TYPES[name] for name in wanted)
    if any(
        _head(x, x.k_width) % k.block or _head(x, x.v_width) % v.block for x in kinds(info).layers
    ):
        why = f"KV cache f16, not {k.name}/{v.name}: the model's heads are no multiple"
        return ("f16", "f16"), (why,)
    if k is not v and any(x.k_width and not x.v_width for x in kinds(info).layers):
        why = f"KV cache {k.name}, not {k.name}/{v.name}: the model keeps one row for both"
        return (k.name, k.name), (why,)
    if v.block > 1 and not flash_attn:
        return (k.name, "f16"), (f"V cache f16, not {v.name}: that needs flash attention",)
    return (k.name, v.name), ()


def _head(layer: LayerInfo, width: int) -> int:
    """Elements of one head in the cache (llama-context.cpp asks that blocks divide them)."""
    return width // max(layer.n_head_kv, 1)


def _active_params(info: ModelInfo) -> float:
    """Parameters that one token passes through."""
    weights = sum(layer.weight_bytes for layer in info.layers)
    experts = sum(layer.expert_bytes for layer in info.layers)
    if not experts or not info.n_expert:
        return info.n_params
    idle = experts * (1 - min(1.0, info.n_expert_used / info.n_expert))
    return info.n_params * (1 - idle / weights)
